"""The simulator and the transformer under the same rules: their curves, and where differences between rules agree.

A sweep of `fade-llm sweep` and, beside it, a run of `fade-sim run`. The quantities are namesakes, not
equals: entropies are per arm in the simulator and per token in the transformer, Lambda is of the head
there and of all trained parameters here, so only the signs of differences are compared.
"""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fade_sim import config as shared
from fade_sim.errors import InputError
from fade_sim.store import write_atomic
from llm import config
from llm.sweep import PLAN

CLEAR = 0.9  # share of the seeds that must have the sign of a difference,
FEWEST = 3  # and how many seeds there must be
DIGITS = 3  # what the table shows; a difference of 0 in it has no sign
LAMBDA_SEEDS = 3  # seeds of the simulator that run again for Lambda


class Quantity(NamedTuple):
    """One row of the picture."""

    title: str
    simulated: str  # field of arrays.npz; Lambda is computed
    measured: tuple[str, ...]  # where it is in a line of metrics.jsonl
    averaged: bool = False  # over the steps since the last record: what every step has
    largest: bool = False  # compared by its largest value over the steps, not by its last


QUANTITIES = (
    Quantity("rank-1 energy", "rank1", ("rank1",)),
    Quantity("H_S (nats)", "train_entropy_success", ("entropy_success",), averaged=True),
    Quantity("H_F (nats)", "train_entropy_failure", ("entropy_failure",), averaged=True),
    Quantity("pass@1, training", "train_pass@1", ("eval", "train", "pass@1", "mean")),
    Quantity("pass@1, held out", "test_pass@1", ("eval", "held_out", "pass@1", "mean")),
    Quantity("Lambda", "", ("Lambda",), largest=True),
)


class Curve(NamedTuple):
    """steps (R,) and values (rules, seeds, R), NaN where there is none."""

    steps: np.ndarray
    values: np.ndarray


class Column(NamedTuple):
    """One regime of one of the two."""

    name: str
    stale: bool
    labels: tuple[str, ...]  # the first is what the others are compared with
    curves: dict[str, Curve]  # by title


def read_sweep(folder: Path) -> tuple[list[Column], int, int]:
    """(a column per regime, complete runs, runs of the sweep). Runs that are not complete are left out.

    Raises InputError on a folder that is no sweep, or where a rule of a regime has no complete run.
    """
    if not (folder / PLAN).is_file():
        raise InputError(f"{folder}: is no folder of fade-llm sweep (it has no {PLAN})")
    plan = json.loads((folder / PLAN).read_text())
    runs = {(r["regime"], r["rule"], r["seed"]): folder / r["folder"] for r in plan
            if (folder / r["folder"] / "summary.json").is_file()}
    rules, seeds = (tuple(dict.fromkeys(row[key] for row in plan)) for key in ("rule", "seed"))
    columns = []
    for regime in dict.fromkeys(row["regime"] for row in plan):
        found = {(i, j): read_run(runs[regime, rule, seed]) for i, rule in enumerate(rules)
                 for j, seed in enumerate(seeds) if (regime, rule, seed) in runs}
        missing = [rule for i, rule in enumerate(rules) if not any(at[0] == i for at in found)]
        if missing:
            raise InputError(f"{folder}: no complete run of {missing[0]} under {regime!r} yet; go on with the sweep")
        steps = next(iter(found.values()))[0]
        if any(not np.array_equal(steps, one) for one, _ in found.values()):
            raise InputError(f"{folder}: runs under {regime!r} have different numbers of steps or records")
        curves = {}
        for q, quantity in enumerate(QUANTITIES):
            values = np.full((len(rules), len(seeds), len(steps)), np.nan)
            for at, (_, rows) in found.items():
                values[at] = rows[q]
            curves[quantity.title] = Curve(steps, values)
        own = next(path for (name, _, _), path in runs.items() if name == regime)
        stale = config.load(own / "config.toml").train.staleness > 0
        columns.append(Column(regime, stale, rules, curves))
    return columns, len(runs), len(plan)


def read_run(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """(steps of the records (R,), values (quantities, R)) of a complete run.

    Entropies are averaged from one record to the next; the first record is the first step.
    """
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = np.array([row["step"] for row in rows if "eval" in row])
    out = np.full((len(QUANTITIES), len(steps)), np.nan)
    for r, step in enumerate(steps):
        after = steps[r - 1] if r else -1
        window = [row for row in rows if after < row["step"] <= max(step, 1)]
        for q, quantity in enumerate(QUANTITIES):
            values = [v for v in (_at(row, quantity.measured) for row in window) if v is not None]
            if values:
                out[q, r] = np.mean(values) if quantity.averaged else values[-1]
    return steps, out


def _at(row, keys):
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row


def read_simulation(folder: Path, with_lambda: bool = True) -> list[Column]:
    """A column per regime of a run folder of fade-sim; Lambda by running the first seeds of stale regimes again."""
    paths = [folder / "config.toml", folder / "arrays.npz"]
    if not all(path.is_file() for path in paths):
        raise InputError(f"{folder}: is no run folder of fade-sim run (it needs config.toml and arrays.npz)")
    cfg = shared.load(str(paths[0]))
    columns = []
    with np.load(paths[1]) as arrays:
        for regime in cfg.regimes:
            steps = arrays[f"{regime.name}/steps"]
            curves = {q.title: Curve(steps, arrays[f"{regime.name}/{q.simulated}"]) for q in QUANTITIES if q.simulated}
            stale = regime.train.staleness > 0
            if stale and with_lambda:
                from fade_sim.feedback import lambda_trace

                seeds = min(LAMBDA_SEEDS, regime.train.seeds)
                curves["Lambda"] = Curve(*lambda_trace(regime, cfg.contenders, seeds))
            columns.append(Column(regime.name, stale, tuple(c.label for c in cfg.contenders), curves))
    return columns


def pairs(simulated: list[Column], measured: list[Column]) -> list[tuple[Column | None, Column]]:
    """Each regime of the sweep with the simulator's of its kind: fresh with fresh, stale with stale."""
    out = []
    for column in measured:
        kin = [one for one in simulated if one.stale == column.stale]
        if simulated and len(kin) != 1:
            kind = "stale" if column.stale else "fresh"
            raise InputError(f"--sim has {len(kin)} {kind} regimes to set beside {column.name!r}, expected one")
        out.append((kin[0] if kin else None, column))
    return out


# --- differences between rules -------------------------------------------------------------------------


class Difference(NamedTuple):
    """A rule minus the first one, paired by seed."""

    median: float
    low: float
    high: float
    sign: int  # 0: not clear


def difference(column: Column, quantity: Quantity, rule: str, reference: str) -> Difference | None:
    """None where the column has no such rule or quantity, or no seed with both."""
    if quantity.title not in column.curves or rule not in column.labels or reference not in column.labels:
        return None
    values = column.curves[quantity.title].values
    with np.errstate(invalid="ignore"):
        ends = np.fmax.reduce(values, axis=-1) if quantity.largest else values[..., -1]
    d = ends[column.labels.index(rule)] - ends[column.labels.index(reference)]
    d = d[~np.isnan(d)]
    if not len(d):
        return None
    signs = np.sign(np.round(d, DIGITS))
    sign = next((s for s in (1, -1) if len(d) >= FEWEST and (signs == s).mean() >= CLEAR), 0)
    return Difference(float(np.median(d)), float(d.min()), float(d.max()), sign)


def verdict(simulated: Difference | None, measured: Difference | None) -> str:
    """agree, differ, or why neither can be said."""
    if simulated is None or measured is None:
        return ""
    unclear = [name for name, one in (("simulator", simulated), ("transformer", measured)) if not one.sign]
    if unclear:
        return "unclear in " + (unclear[0] if len(unclear) == 1 else "both")
    return "agree" if simulated.sign == measured.sign else "differ"


def table(paired: list[tuple[Column | None, Column]]) -> list[tuple]:
    """(regime, quantity, rule, simulator's Difference, transformer's, verdict); no Lambda of fresh rollouts."""
    out = []
    for simulated, measured in paired:
        reference = measured.labels[0]
        for quantity in QUANTITIES:
            if quantity.title == "Lambda" and not measured.stale:
                continue
            for rule in measured.labels[1:]:
                one = difference(simulated, quantity, rule, reference) if simulated else None
                other = difference(measured, quantity, rule, reference)
                if one or other:
                    out.append((measured.name, quantity.title, rule, one, other, verdict(one, other)))
    return out


def summary(rows: list[tuple]) -> list[str]:
    """A line per regime and quantity: which rules agree in sign, which differ, which are unclear."""
    lines: dict = {}
    for regime, quantity, rule, _, _, said in rows:
        lines.setdefault((regime, quantity), {}).setdefault(said.partition(" in ")[0], []).append(rule)
    out = []
    for (regime, quantity), found in lines.items():
        parts = [f"{said}: {', '.join(found[said])}" for said in ("agree", "differ", "unclear") if said in found]
        if parts:
            out.append(f"{regime}, {quantity}: " + "; ".join(parts))
    return out


def markdown(rows: list[tuple], reference: str, note: str) -> str:
    """The whole table with the lines of `summary` above."""

    def cell(d: Difference | None) -> str:
        return "-" if d is None else "{:+.{n}f} [{:+.{n}f}, {:+.{n}f}]".format(*d[:3], n=DIGITS)

    lines = [f"# Rules minus {reference}: simulator and transformer", "", note, ""]
    lines += [f"- {line}" for line in summary(rows)]
    lines += ["", "| regime | quantity | rule | simulator | transformer | sign |", "|---|---|---|--:|--:|---|"]
    lines += [f"| {regime} | {quantity} | {rule} | {cell(one)} | {cell(other)} | {said} |"
              for regime, quantity, rule, one, other, said in rows]
    return "\n".join(lines) + "\n"


def run(sweep: Path, simulation: Path | None, out: Path) -> list[str]:
    """Draw the picture, write the table beside it as .md; returns the lines for the terminal."""
    from llm.compare_figure import draw

    measured, complete, planned = read_sweep(sweep)
    paired = pairs(read_simulation(simulation) if simulation else [], measured)
    beside = "; ".join(f"{own.name} (simulator: {kin.name})" for kin, own in paired if kin)
    note = (f"Medians over seeds of the difference at the end of training (of Lambda: of its largest value, in the "
            f"simulator over {LAMBDA_SEEDS} seeds), paired by seed, with smallest and largest. A sign is clear where "
            f"there are at least {FEWEST} seeds and {CLEAR:.0%} of them have it; three seeds share a sign by chance "
            f"in a quarter of all cases. Entropies are per arm in the simulator and per token in the transformer; "
            f"Lambda is of the head there and of all parameters here. {complete} of {planned} runs are complete."
            + (f" Regimes: {beside}." if beside else ""))
    rows = table(paired)
    draw(paired, note_of(paired, complete, planned), out)
    text = out.with_suffix(".md")
    write_atomic(text, markdown(rows, measured[0].labels[0], note).encode())
    return [*summary(rows), f"{complete} of {planned} runs are complete", f"figure: {out}", f"table: {text}"]


def note_of(paired, complete: int, planned: int) -> str:
    """The line above the picture."""
    seeds = " and ".join(dict.fromkeys(
        f"{column.curves['rank-1 energy'].values.shape[1]} ({what})"
        for pair in paired for what, column in zip(("simulator", "transformer"), pair, strict=True) if column))
    computed = f", Λ of the simulator {LAMBDA_SEEDS}" if any(kin for kin, _ in paired) else ""
    return (f"Median over seeds, band from smallest to largest; seeds: {seeds}{computed}; "
            f"{complete} of {planned} runs of the transformer")
