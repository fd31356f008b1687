"""Is a rule no more than its masses on successes and failures? Every rule of the registry, and what is not one."""

import numpy as np

from fade_sim.experiments import matched
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER, Claim, Number, Score
from fade_sim.experiments.numbers import shown

TOLERANCE = 1e-9  # relative; exact sums and a linear system leave about 1e-11
LEVEL = 0.05  # chance at which measured masses are called different, over all rules together
CLAIM = Claim(
    "decomposition", "Every rule is a choice of sign, difficulty and scale",
    "Every policy-gradient rule for binary rewards splits into a gradient mass on successes and one on failures, and "
    "so along three axes: their ratio (sign), their shape over the solve rate (difficulty), their size (scale).",
    "arXiv 2607.01490",
    f"For every rule that is a function of the group's rewards: the table of weights rebuilt from the three axes "
    f"alone, the masses and the update against all groups of four arms, each to {TOLERANCE:g}; and masses "
    f"measured on groups drawn in training differ from the exact ones for no rule (chance above {LEVEL:g}, "
    f"Bonferroni over all masses). If any of these fails it 'does not hold here'. 'holds' also needs the same of rules "
    f"that read the batch, that read more than rewards, and of continuous rewards: each kind that breaks it is a "
    f"condition.",
)
WELL_KNOWN = ("reinforce", "nsr", "rloo", "dr_grpo", "grpo", "asym_delta(0.5)", "power(2)", "maxrl", "dapo")
_TRAIN = {"lr": 10.0, "lr_table": 0.0}
SETTINGS = {
    "quick": {"group_size": 8, "enumerate": 5, "train": {**_TRAIN, "steps": 200}, "seeds": 10},
    "full": {"group_size": 16, "enumerate": 6, "train": {**_TRAIN, "steps": 600}, "seeds": 20},
}
LIMITS = (
    "Rules are taken with their default parameters; parameters move a rule along the axes.",
    "Masses say what a rule does in expectation under the policy that drew the data: not its noise, nor what a clip "
    "or old rollouts make of it.",
    "A batch whose groups are all uniform leaves reinforce_pp_baseline nothing to divide by: such rare batches "
    "dominate its exact masses at a fixed batch, hence its wide interval.",
    "The axes are functions of the solve rate: only where the sign ratio is the same at every solve rate is it "
    "one number.",
)


def run(settings: dict, cells) -> dict:
    """Everything exact, and the masses of all rules on the groups that one training run per seed draws."""
    from fade_sim.experiments import decomposition_exact as exact  # the simulator: not before something runs
    from fade_sim.theory import masses

    G, few = settings["group_size"], settings["enumerate"]
    rules = exact.static_rules(G)
    c, p = exact.drawn_groups({**settings["train"], "group_size": G}, settings["seeds"])
    runs = {}
    for k, rule in enumerate(rules):
        runs[rule.label] = exact.measured_masses(rule, G, c, p)
        cells.progress(f"decomposition: {rule.label}", (k + 1) / len(rules))
    grid = np.linspace(0.01, 0.99, 197)
    batch = exact.uniform_batch(G)
    return {
        "group_size": G, "p": grid, "masses": {m.label: masses(m, G, grid, batch=batch) for m in rules},
        "table": {m.label: exact.table_error(m, G) for m in rules},
        "enumerated": {m.label: exact.enumeration_errors(m, few) for m in exact.static_rules(few)},
        "runs": runs, "of_batch": {m.label: exact.batch_dependence(m, G) for m in rules if m.rule.reads_batch},
        "more": exact.more_inputs(4),
    }


def score(results: dict) -> Score:
    of_group = [label for label in results["table"] if label not in results["of_batch"]]
    table, (sums, update) = max(results["table"].values()), np.max(list(results["enumerated"].values()), axis=0)
    chance, label = least_chance(results["runs"], of_group)
    numbers = [
        Number("rules with a table", len(results["table"]), note=f"of them read the batch: {len(results['of_batch'])}"),
        Number("tables rebuilt from sign, difficulty and scale: largest error", table, predicted=0.0),
        Number("masses against all groups of four arms: largest error", float(sums), predicted=0.0),
        Number("update against m_S g_S - m_F g_F: largest residual", float(update), predicted=0.0),
        Number("measured masses: least chance of any difference, Bonferroni", chance, note=f"of {label}"),
        *_axes_numbers(results), *_run_numbers(results), *_other_numbers(results),
    ]
    holds = max(table, sums, update) < TOLERANCE and chance > LEVEL
    conditions = _conditions(results)
    verdict = FAILS if not holds else UNDER if conditions else HOLDS
    because = (f"{len(of_group)} rules of the group and {len(results['of_batch'])} of the batch: tables rebuilt from "
               f"the axes to {table:.0e}, updates to {update:.0e}; measured masses within their noise "
               f"(least chance {chance:.2f})" if holds else
               f"Largest errors: tables {table:.2g}, masses {sums:.2g}, updates {update:.2g}; least chance of the "
               f"measured masses {chance:.2g} ({label})")
    worst = max(results["more"], key=results["more"].get)
    because += (f". What the masses leave unsaid of an update: up to {results['more'][worst]:.0%} ({worst}). "
                + _batch_sentence(results))
    return Score(verdict, tuple(conditions) if verdict == UNDER else (), because, tuple(numbers), LIMITS)


def least_chance(runs: dict, labels) -> tuple[float, str]:
    """Smallest chance, over all masses of these rules, of a difference as large as measured if there were none;
    times the number of masses, at most 1. Student t over seeds."""
    from scipy.special import stdtr

    chances = {}
    for label in labels:
        for name, off in zip(("m_S", "m_F"), runs[label][0], strict=True):
            spread = off.std(ddof=1)
            if spread > 0:
                t = abs(off.mean()) / spread * len(off) ** 0.5
                chances[f"{name} of {label}"] = 2 * float(stdtr(len(off) - 1, -t))
            elif off.mean() != 0:
                chances[f"{name} of {label}"] = 0.0
    label = min(chances, key=chances.get)
    return min(chances[label] * len(chances), 1.0), label


def _conditions(results: dict) -> list[str]:
    """What has to be true of a rule for the decomposition to be the whole of it."""
    broken = {name for name, residual in results["more"].items() if residual > TOLERANCE}
    out = []
    if any("continuous" in name for name in broken):
        out.append("rewards are 0 or 1")
    if any("continuous" not in name for name in broken):
        out.append("the rule reads nothing of a rollout but its reward")
    if any(abs(ratio - 1) > TOLERANCE for ratio in results["of_batch"].values()):
        out.append("the statistics of the batch are held fixed, where a rule reads them")
    return out


def sign_ratio_range(m_S, m_F, p) -> tuple[float, float]:
    """(lowest, highest) m_S/m_F for solve rates from .1 to .9; NaN where both are 0."""
    inside = (p >= 0.1) & (p <= 0.9)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = m_S[inside] / m_F[inside]
    return float(ratio.min()), float(ratio.max())


def place(results: dict, label: str) -> tuple[float, float, float]:
    """(sign ratio of the mean masses, solve rate at which the mass peaks or NaN where it is flat, mean mass over
    dr_grpo's)."""
    m_S, m_F = results["masses"][label]
    base = sum(results["masses"]["dr_grpo"]).mean()
    size = abs(m_S) + abs(m_F)
    peak = float("nan") if size.min() > (1 - 1e-9) * size.max() else float(results["p"][size.argmax()])
    with np.errstate(divide="ignore"):
        return float(np.divide(m_S.mean(), m_F.mean())), peak, float(size.mean() / base)


def _axes_numbers(results: dict) -> list[Number]:
    ranges = {label: sign_ratio_range(*m, results["p"]) for label, m in results["masses"].items()}
    one = [label for label, (low, high) in ranges.items() if low >= 0 and (high == low or high - low < 1e-6 * high)]
    negative = [label for label, m in results["masses"].items() if min(x.min() for x in m) < -1e-12]
    rows = [Number("rules whose sign ratio is one number at every solve rate", len(one)),
            Number("rules with a negative mass somewhere", len(negative), note=", ".join(negative))]
    for label in results["masses"]:
        sign, peak, scale = place(results, label)
        low, high = ranges[label]
        moves = "negative somewhere" if low < 0 else f"{low:.2g} to {high:.2g} for p from .1 to .9"
        where = "flat" if np.isnan(peak) else f"peak at p = {peak:.2f}"
        rows.append(Number(f"axes: sign ratio of {label}", sign,
                           note=f"{moves}; {where}; scale {scale:.2f} of dr_grpo"))
    return rows


def _run_numbers(results: dict) -> list[Number]:
    rows = []
    for label in (*WELL_KNOWN, *results["of_batch"]):
        if label not in results["runs"]:
            continue
        off, level = results["runs"][label]
        note = "exact masses hold the statistics of the batch fixed" if label in results["of_batch"] else ""
        for k, name in enumerate(("m_S", "m_F")):
            if level[k].any():
                rows.append(matched.number(f"runs: measured / exact - 1, {name} of {label}", off[k] / level[k].mean(),
                                           predicted=0.0, note=note))
    return rows


def _other_numbers(results: dict) -> list[Number]:
    rows = [Number(f"not a table: residual of {name}", residual, note=(
        "per prompt it is reinforce or nsr, by the greedy reward" if "remax" in name else ""))
        for name, residual in results["more"].items()]
    return rows + [Number(f"batch: mass at p = .5 among hard prompts over that among mixed ones, {label}", ratio)
                   for label, ratio in results["of_batch"].items()]


def _batch_sentence(results: dict) -> str:
    if not results["of_batch"]:
        return ""
    label = max(results["of_batch"], key=lambda name: abs(np.log(results["of_batch"][name])))
    moved = [row for row in _run_numbers(results) if row.note and (row.low > 0 or row.high < 0)]
    text = f"A rule of the batch has no mass at a solve rate of its own: at p = .5 that of {label} is " \
           f"{results['of_batch'][label]:.2f} times as large among hard prompts as among mixed ones"
    if moved:
        largest = max(moved, key=lambda row: abs(row.value))
        text += f", and what a run measures is off from a fixed batch by {shown(largest)} of it " \
                f"({largest.name.partition(', ')[2]})"
    return text + "."


def figure(results: dict, path) -> None:
    from fade_sim.experiments.decomposition_figure import draw

    draw(results, path)
