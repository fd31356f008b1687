"""Recorded rollouts under every rule: what each would have weighed, where, and FADE's gains on them.

>>> report = replay(load("smollm2_135m_arithmetic"), ["dr_grpo", "fade"], group_size=8)
>>> round(report.solve_rate, 3), round(report.fade.alpha, 3)
(0.385, 2.396)
"""

import math
from dataclasses import asdict, dataclass, replace

import numpy as np

from fade_sim.advantage import RULES, BatchStats, controller, make, resolve, weight_table
from fade_sim.diagnostics import expected_masses, pass_at_k_interval, subset_probabilities
from fade_sim.errors import InputError
from fade_sim.recordings import Recording, find, load, shipped
from fade_sim.store import plain

__all__ = [
    "DIFFICULTY", "HISTOGRAM", "Gains", "PassRow", "Recording", "Report", "RuleRow", "TaskRow", "TraceRow", "find",
    "load", "render", "replay", "shipped", "to_dict",
]

HISTOGRAM = ("0", *(f"({i / 10:g}, {(i + 1) / 10:g}]" for i in range(9)), "(0.9, 1)", "1")  # solve rates, 12 bins
DIFFICULTY = ("[0, .25)", "[.25, .5)", "[.5, .75)", "[.75, 1]")  # recorded solve rates, hard to easy
_SHORT = ("0-.25", ".25-.5", ".5-.75", ".75-1")  # the same, for narrow columns
DEFAULT_GROUP = 16  # most rollouts of a training group where none is given
DEFAULT_K = (1, 10, 100, 1000)


@dataclass(frozen=True)
class Gains:
    """FADE's controller at one pair of averages. Entropies in nats; None where none was recorded."""

    phat: float  # solve rate, [0, 1]
    hhat: float | None
    h_star: float | None  # target entropy
    alpha: float  # [1, alpha_max]
    delta: float | None  # [delta_min, 1]; None: it needs an entropy, and the weights below use 1


@dataclass(frozen=True)
class TraceRow:
    """A recorded step: its batch, and the controller after it."""

    step: int
    groups: int
    solve_rate: float
    entropy: float | None
    gains: Gains


@dataclass(frozen=True)
class TaskRow:
    task: str
    groups: int
    solve_rate: float
    never: float  # share of its groups without a success
    always: float  # share without a failure


@dataclass(frozen=True)
class PassRow:
    k: int
    estimate: float
    low: float  # 95%, by prompt; NaN for a single prompt
    high: float


@dataclass(frozen=True)
class RuleRow:
    """Means over groups at the training group size; a mass is (expected) sum of weights over G."""

    rule: str
    m_S: float
    m_F: float
    sign_ratio: float  # m_S / m_F; inf without failure mass, NaN without any
    mass: tuple[float, ...]  # |m_S| + |m_F| by DIFFICULTY bin; sums to the mean over all groups
    share: tuple[float, ...]  # the same over their sum; NaN without mass


@dataclass(frozen=True)
class Report:
    source: str
    prompts: int  # distinct prompt ids
    groups: int  # rows: one prompt at one step
    rollouts: int
    solve_rate: float  # mean over groups, each equal
    entropy: float | None  # nats, mean over groups
    histogram: tuple[int, ...]  # groups by HISTOGRAM bin
    tasks: tuple[TaskRow, ...]  # in order of first appearance
    all_fail: float  # shares of the recorded groups
    all_pass: float
    group_size: int  # G of everything below
    left_out: int  # groups with fewer than G rollouts, in none of the numbers below
    predicted_all_fail: float  # expected shares of groups of G
    predicted_all_pass: float
    difficulty: tuple[int, ...]  # groups by DIFFICULTY bin
    rules: tuple[RuleRow, ...]
    pass_at_k: tuple[PassRow, ...]  # over all groups
    fade: Gains  # at the means of the whole file
    trace: tuple[TraceRow, ...]  # by step; empty where none was recorded
    notes: tuple[str, ...]  # what was left out or assumed


def replay(recording: Recording, methods=None, group_size: int | None = None, k=None,
           controller_state: controller.State | None = None) -> Report:
    """Every rule on recorded rollouts.

    methods: Methods or their names (default: every rule but `table`). group_size: rollouts per
    training group, G (default: the median recorded size, at most 16). k: the k of pass@k (default 1, 10,
    100, 1000 below the smallest group, and its size); those above it are left out. controller_state:
    settings and start of FADE's controller.

    Masses and the share of uniform groups are averages over all groups of G of a prompt's n recorded
    rollouts, drawn without replacement: unbiased for training at G, and the recorded groups
    themselves where n = G. Groups with n < G are left out and counted.

    Adaptive rules are weighed at FADE's gains: with a `step`, the controller runs over the steps (a
    step is one batch, whatever its number) and each batch is weighed at its own gains; without, at
    phat = the mean solve rate and Hhat = the mean entropy. Hhat then starts at H0 = Hhat unless the
    state has an h0, so delta is 1 unless h_star is above Hhat. Scale controls divide the masses of
    the same batch. A rule that is undefined at G is left out with a note.

    Raises InputError where no rule or no group is left, or an argument is out of range.
    """
    state = controller_state or controller.init()
    c, n = recording.successes, recording.attempts
    G = _group_size(group_size, n)
    keep = n >= G
    notes = list(recording.notes)
    if _without_uniform(c, n):
        notes.append(f"none of {len(n)} groups is uniform: were such groups filtered out? phat is then biased towards "
                     "1/2, and so are the gains and every mean here")
    if not keep.all():
        notes.append(f"{int((~keep).sum())} of {len(n)} groups have fewer than {G} rollouts: in none of the masses")
    if recording.pooled:
        notes.append("no step is recorded: all rollouts of a prompt are one group")
    if n.max() == 1 and len(n) > 1:
        notes.append("every group has a single rollout: are the prompt ids unique per rollout?")

    batches, fade, trace = _gains(recording, state)
    methods = [make(m) if isinstance(m, str) else m for m in _default_methods(methods)]
    weigh = _Weigher(c[keep], n[keep], G, [index[keep[index]] for index in batches], keep)
    rules = []
    for method in methods:
        try:
            rules.append(weigh.row(method, [row.gains for row in trace] or [fade], state))
        except InputError as error:
            notes.append(f"{error}: left out")
    if not rules:
        raise InputError(notes[-1].removesuffix(": left out"))
    if any(m.rule.mixed_only for m in methods):
        notes.append("dapo's masses are per kept group: uniform groups are resampled, not weighed")
    if any(m.rule.adaptive for m in methods):
        where = "the gains of each step" if trace else f"alpha {fade.alpha:.3f}, delta {_or_one(fade.delta):.3f}"
        notes.append(f"adaptive rules are weighed at {where}")
        if fade.delta is None:
            notes.append("no entropy is recorded: the weights take delta as 1")
    if fade.delta == 1.0 and not trace and state.h_star is None and state.h0 is None and state.ablation == "none":
        notes.append("delta is 1 by construction: without steps Hhat = H0, and H* is H0/2 unless given")

    if k is None:
        k = sorted({one for one in DEFAULT_K if one < n.min()} | {int(n.min())})
    rows, too_large = _pass_rows(recording, k)
    if too_large:
        notes.append(f"pass@k above k = {n.min()} is left out: the smallest group has {n.min()} rollouts")
    entropy = recording.entropy
    return Report(
        source=recording.source, prompts=len(set(recording.prompt_id)), groups=len(n), rollouts=int(n.sum()),
        solve_rate=float(recording.solve_rate.mean()), entropy=None if entropy is None else float(entropy.mean()),
        histogram=tuple(np.bincount(np.where(c == n, 11, -(-10 * c // n)), minlength=12).tolist()),
        tasks=_tasks(recording), all_fail=float((c == 0).mean()), all_pass=float((c == n).mean()),
        group_size=G, left_out=int((~keep).sum()),
        predicted_all_fail=float(weigh.chance[:, 0].mean()), predicted_all_pass=float(weigh.chance[:, G].mean()),
        difficulty=tuple(np.bincount(weigh.bin, minlength=4).tolist()), rules=tuple(rules), pass_at_k=rows,
        fade=fade, trace=trace, notes=tuple(notes),
    )


def _group_size(group_size, attempts) -> int:
    if group_size is None:
        return min(DEFAULT_GROUP, int(np.sort(attempts)[(len(attempts) - 1) // 2]))
    if isinstance(group_size, bool) or not isinstance(group_size, (int, np.integer)) or group_size < 1:
        raise InputError(f"group_size is {group_size!r}, expected an integer of at least 1")
    if group_size > attempts.max():
        raise InputError(f"group_size is {group_size}, expected at most {attempts.max()}, the largest recorded group")
    return int(group_size)


def _without_uniform(c, n) -> bool:
    """No uniform group where solve rates spread evenly over [0, 1] would leave that a chance of less than 1%."""
    return bool((c > 0).all() and (c < n).all() and np.log1p(-2 / (n + 1)).sum() < math.log(0.01))


def _default_methods(methods) -> list:
    methods = [name for name in RULES if name != "table"] if methods is None else list(methods)
    if not methods:
        raise InputError("methods is empty, expected at least one method")
    return methods


# --- gains ----------------------------------------------------------------------------------------


def _gains(recording, state) -> tuple[list[np.ndarray], Gains, tuple[TraceRow, ...]]:
    """(row indices of each batch, gains at the means of the file, one TraceRow per recorded step)."""
    known = recording.entropy is not None
    if not known and state.ablation == "entropy_only":
        raise InputError(f"{recording.source}: has no entropy, and controller.ablation = entropy_only needs it")
    entropy = recording.entropy if known else np.ones(len(recording))  # a constant that never shows
    overall = float(entropy.mean())
    fade = _read(replace(state, phat=float(recording.solve_rate.mean()), hhat=overall,
                         h0=overall if state.h0 is None or not known else state.h0), known)
    if recording.step is None:
        return [np.arange(len(recording))], fade, ()
    batches, trace = [], []
    if not known:
        state = replace(state, hhat=None, h0=None)
    for step in np.unique(recording.step):
        index = np.flatnonzero(recording.step == step)
        solve_rate, level = float(recording.solve_rate[index].mean()), float(entropy[index].mean())
        state = controller.update(state, solve_rate, level)
        batches.append(index)
        trace.append(TraceRow(int(step), len(index), solve_rate, level if known else None, _read(state, known)))
    return batches, fade, tuple(trace)


def _read(state, known) -> Gains:
    alpha, delta = controller.gains(state)
    if not known:
        needs = state.ablation not in ("no_delta", "log_schedule")
        return Gains(state.phat, None, state.h_star, alpha, None if needs else delta)
    return Gains(state.phat, state.hhat, 0.5 * state.h0 if state.h_star is None else state.h_star, alpha, delta)


def _or_one(delta) -> float:
    return 1.0 if delta is None else delta


# --- masses ---------------------------------------------------------------------------------------


class _Weigher:
    """Masses of any table on the kept groups: the subset probabilities are worked out once."""

    def __init__(self, successes, attempts, G, batches, keep):
        self.successes, self.attempts, self.G = successes, attempts, G
        self.chance = subset_probabilities(successes, attempts, G)
        self.bin = np.minimum(4 * successes // attempts, 3)
        renumber = np.cumsum(keep) - 1
        self.batches = [renumber[index] for index in batches]

    def masses(self, method, index) -> np.ndarray:
        """(2, groups of the batch): m_S and m_F of a static method."""
        batch = BatchStats(self.successes[index], self.attempts[index])
        return np.stack(expected_masses(weight_table(method, self.G, batch=batch), self.chance[index]))

    def adaptive(self, method, gains, index, state) -> tuple[np.ndarray, controller.State]:
        """The same for FADE and its scale controls; `state` carries the smoothed scale."""
        full = self.masses(resolve(method, gains.alpha, _or_one(gains.delta)), index)
        plain = self.masses(make("dr_grpo"), index)
        ratio = full.sum() / plain.sum() if plain.sum() > 0 else None
        state = controller.update_scale(state, ratio)
        control = method.rule.control
        if control == "none" or ratio is None:  # without a ratio the batch has no mass at all
            return full, state
        factor = {"batch": ratio, "ema": state.scale, "unit": 1.0 / ratio}[control]
        return factor * (full if control == "unit" else plain), state

    def row(self, method, gains, state) -> RuleRow:
        masses = np.zeros((2, len(self.successes)))
        for index, at in zip(self.batches, gains, strict=True):
            if not index.size:
                continue
            if method.rule.adaptive:
                masses[:, index], state = self.adaptive(method, at, index, state)
            else:
                masses[:, index] = self.masses(method, index)
        if method.rule.mixed_only:  # per kept prompt: uniform groups are replaced, not weighed
            kept = 1 - (self.chance[:, 0] + self.chance[:, -1]).mean()
            masses /= kept if kept > 0 else 1.0
        m_S, m_F = masses.mean(axis=1)
        by_bin = np.bincount(self.bin, weights=abs(masses).sum(axis=0), minlength=4) / masses.shape[1]
        total = by_bin.sum()
        share = by_bin / total if total > 0 else np.full(4, np.nan)
        ratio = m_S / m_F if m_F != 0 else (math.inf if m_S != 0 else math.nan)
        mass, share = tuple(by_bin.tolist()), tuple(share.tolist())
        return RuleRow(method.label, float(m_S), float(m_F), float(ratio), mass, share)


# --- the rest -------------------------------------------------------------------------------------


def _tasks(recording) -> tuple[TaskRow, ...]:
    rows = []
    for task in dict.fromkeys(recording.task or ()):
        rate = recording.solve_rate[[name == task for name in recording.task]]
        rows.append(TaskRow(task, len(rate), float(rate.mean()), float((rate == 0).mean()), float((rate == 1).mean())))
    return tuple(rows)


def _pass_rows(recording, k) -> tuple[tuple[PassRow, ...], bool]:
    """Rows for the k that every group allows, and whether any was too large."""
    rows, least = [], int(recording.attempts.min())
    number = {prompt: i for i, prompt in enumerate(dict.fromkeys(recording.prompt_id))}
    prompts = [number[prompt] for prompt in recording.prompt_id]
    for one in k:
        if isinstance(one, bool) or not isinstance(one, (int, np.integer)) or one < 1:
            raise InputError(f"k is {one!r}, expected an integer of at least 1")
        if one <= least:
            found = pass_at_k_interval(recording.successes, recording.attempts, one, prompts=prompts)
            rows.append(PassRow(int(one), *found))
    return tuple(rows), any(one > least for one in k)


def to_dict(report: Report) -> dict:
    """Plain values for JSON: NaN (undefined) becomes None, an infinite sign ratio the string "inf"."""
    return {**plain(asdict(report)), "histogram_bins": list(HISTOGRAM), "difficulty_bins": list(DIFFICULTY)}


# --- print ----------------------------------------------------------------------------------------


def render(report: Report, console) -> None:
    """Print a report with rich: readable at 80 columns, plain where the output is not a terminal."""
    def say(text="", **style):
        console.print(text, markup=False, highlight=False, soft_wrap=True, **style)

    r = report
    say(", ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in (
        (r.prompts, "prompt"), (r.groups, "group"), (r.rollouts, "rollout"))))
    say(f"mean solve rate {r.solve_rate:.3f}" + ("" if r.entropy is None else f", entropy {r.entropy:.3f} nats"))
    say("\nsolve rates, groups", style="bold")
    block = "█" if (console.encoding or "").lower().startswith("utf") else "#"
    for label, count in zip(HISTOGRAM, r.histogram, strict=True):
        say(f"{label:>10}  {count:6d}  {block * math.ceil(50 * count / max(r.histogram))}".rstrip())
    say(f"\nuniform groups: recorded {_uniform(r.all_fail, r.all_pass)}\n"
        f"       at group size {r.group_size}: {_uniform(r.predicted_all_fail, r.predicted_all_pass)}")
    if r.tasks:
        _print(console, ("task", "groups", "solve rate", "never", "always"), (
            (t.task, str(t.groups), f"{t.solve_rate:.3f}", f"{t.never:.1%}", f"{t.always:.1%}") for t in r.tasks))
    if r.pass_at_k:
        _print(console, ("pass@k", "estimate", "95% by prompt"), (
            (f"k = {p.k}", f"{p.estimate:.3f}", "-" if math.isnan(p.low) else f"{p.low:.3f} to {p.high:.3f}")
            for p in r.pass_at_k))
    _print(console, ("rule", "m_S", "m_F", "ratio", *_SHORT), (
        (x.rule, f"{x.m_S:.4f}", f"{x.m_F:.4f}", "-" if math.isnan(x.sign_ratio) else f"{x.sign_ratio:.3g}",
         *("-" if math.isnan(s) else f"{s:.0%}" for s in x.share)) for x in r.rules),
        f"masses at group size {r.group_size}; share of the mass by recorded solve rate")
    say(f"\nFADE at the means of the file: {_gains_text(r.fade)}")
    if r.trace:
        shown = sorted({round(i * (len(r.trace) - 1) / 9) for i in range(10)})
        _print(console, ("step", "groups", "solve rate", "entropy", "phat", "alpha", "delta"), (
            (str(t.step), str(t.groups), f"{t.solve_rate:.3f}", _number(t.entropy), f"{t.gains.phat:.3f}",
             f"{t.gains.alpha:.3f}", _number(t.gains.delta)) for t in (r.trace[i] for i in shown)),
            f"FADE over {len(r.trace)} recorded steps (moving averages; the rules use these gains)")
    for note in r.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


def _print(console, headings, rows, title=None) -> None:
    from rich.table import Table
    from rich.text import Text

    if title:
        console.print(f"\n{title}", style="bold", markup=False, highlight=False, soft_wrap=True)
    else:
        console.print()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2 if len(headings) < 8 else 1, 0, 0))
    for i, heading in enumerate(headings):
        table.add_column(Text(heading), justify="right" if i else "left", no_wrap=bool(i), overflow="fold")
    for cells in rows:
        table.add_row(*(Text(cell) for cell in cells))
    console.print(table)


def _uniform(fail, every) -> str:
    return f"{fail + every:.1%} ({fail:.1%} all fail, {every:.1%} all pass), {max(1 - fail - every, 0.0):.1%} mixed"


def _gains_text(g: Gains) -> str:
    delta = "delta needs an entropy" if g.delta is None else f"delta {g.delta:.3f}"
    nats = "" if g.hhat is None else f"\n  (Hhat {g.hhat:.3f} and H* {g.h_star:.3f} nats)"
    return f"phat {g.phat:.3f}, alpha {g.alpha:.3f}, {delta}{nats}"


def _number(x) -> str:
    return "-" if x is None else f"{x:.3f}"
