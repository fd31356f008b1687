"""Do rules that suppress failures, and updates of low rank, generalise worse to prompts that share skills?

Held-out prompts use the skills of the training prompts and nothing else of them. Rules are compared where
they solve the training prompts equally well, never at equal steps: a rule may only have learned less.
"""

import numpy as np

from fade_sim.experiments import matched
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER, Claim, Number, Score
from fade_sim.experiments.numbers import below, beside_prototype, measured, raw, shown, spearman

LATE = 0.9  # train pass@1 at which the rules are compared once more: that decides nothing
RANGE = 0.1  # of the rules' mean rank-1 energy: below it rank has nothing to explain with
CLAIM = Claim(
    "generalisation", "Suppressing failures, through the low rank of its update, costs generalisation",
    "An update that has collapsed to few directions generalises less: rules that suppress failures, and rank-1 "
    "updates in general, solve fewer held-out prompts that share skills with the training prompts.",
    "arXiv 2607.01490, read from its account of rank",
    f"At equal train pass@1: (sign) held-out pass@1 of asym_delta(0.3) minus dr_grpo has its whole 95% interval below "
    f"0, paired by seed; (rank) over the rules of a seed the rank correlation of rank-1 energy and held-out pass@1 "
    f"has its whole interval below 0. A regime whose rules differ by less than {RANGE} in mean rank-1 energy cannot "
    "test (rank) and counts as not holding, as does one whose rules never "
    "reach the level. A regime holds if both do, 'holds' needs all, 'does not hold here' means none.",
)

FAMILY = ({"name": "dr_grpo"}, *({"name": "asym_delta", "delta": d} for d in (0.3, 0.5, 2.0, 4.0)),
          {"name": "power", "alpha": 2.0}, {"name": "nsr"})
FREE = tuple({"name": "asym_pure_loo", "delta": d} for d in (0.25, 4.0))  # equal slope: the sign alone
ADAM, STALE = {"optimizer": "adam", "lr": 0.02}, {"staleness": 30}
REGIMES = {  # (train, world, train pass@1 at which rules are compared)
    "on-policy, lr 10": ({}, {}, 0.7),
    "on-policy, lr 40": ({"lr": 40.0}, {}, 0.85),
    "per-prompt table": ({"lr_table": 10.0}, {}, 0.7),
    "Adam": (ADAM, {}, 0.7),
    "stale 10, lr 20": ({"staleness": 10, "lr": 20.0}, {}, 0.7),
    "stale 30, lr 10": (STALE, {}, 0.7),
    "stale 30, lr 10, ratio": ({**STALE, "correction": "ratio"}, {}, 0.7),
    "stale 30, lr 10, PPO clip": ({**STALE, "correction": "clip"}, {}, 0.7),
    "stale 30, lr 40": ({**STALE, "lr": 40.0}, {}, 0.7),
    "table, groups of 4": ({"lr_table": 10.0, "group_size": 4}, {}, 0.7),
    "32 training prompts": ({}, {"train_prompts": 32}, 0.7),
    "Adam, stale 20": ({**ADAM, "staleness": 20}, {}, 0.7),
    "hard world": ({}, {"name": "hard"}, 0.5),
    "rare world, Adam": ({**ADAM, "lr": 0.04}, {"name": "rare"}, 0.3),
}
_TRAIN = {"lr": 10.0, "lr_table": 0.0, "record": 10}
SETTINGS = {
    "quick": {"regimes": tuple(REGIMES)[:8], "train": {**_TRAIN, "steps": 400, "seeds": 10}},
    "full": {"regimes": tuple(REGIMES), "train": {**_TRAIN, "steps": 1500, "seeds": 24}},
}
PROTOTYPE = {  # held-out pass@1 after 1500 steps, asym_delta(0.3) - dr_grpo; those runs had a table, lr_table 1
    "stale 30, lr 40": "-.195", "stale 30, lr 10": "-.107",
}
DIFFERS = (("stale 30", "the prototype's policy had a per-prompt table, over 1500 steps"),)
LIMITS = (
    "Held-out prompts are new prompts of the same world: same skills, same common direction. Transfer to other "
    "skills is not tested.",
    "A seed counts only where every rule of the comparison reaches the level; how many do not is in the note. What "
    "a rule loses by never reaching it shows in the numbers at the end of training.",
    "Rank-1 energy is that of the whole update of one shared head.",
    "The levels were raised once, and the stale regimes with ratio and clip moved from lr 40 to lr 10, after a "
    "first run in which three regimes crossed theirs before the first record.",
)


def configs(settings: dict) -> dict:
    return {f"generalisation: {name}": raw(name, FAMILY + FREE, {**settings["train"], **REGIMES[name][0]},
                                           REGIMES[name][1]) for name in settings["regimes"]}


def run(settings: dict, cells) -> dict:
    """{regime: Trace}."""
    done = {what: cells.trace(asked, what) for what, asked in configs(settings).items()}
    return {name: done[f"generalisation: {name}"] for name in settings["regimes"]}


def at_level(name: str, trace, metric: str) -> np.ndarray:
    """(rules, seeds) of a metric where train pass@1 first crosses the regime's level; NaN where it never does."""
    return matched.at_level(trace, metric, REGIMES[name][2])


def score(results: dict) -> Score:
    held, signs, ranks, numbers, said = [], [], [], [], []
    for name, trace in results.items():
        rows = regime_numbers(name, trace)
        sign, rank, spread = rows[:3]
        numbers += rows
        by_sign, by_rank = below(sign), spread.value >= RANGE and below(rank)
        signs += [name] * by_sign
        ranks += [name] * by_rank
        held += [name] * (by_sign and by_rank)
        said.append(f"{name} {shown(sign)}")
    numbers.append(pooled(results))
    verdict = HOLDS if len(held) == len(results) else UNDER if held else FAILS
    because = (f"Sign predicts it in {len(signs)} of {len(results)} regimes, rank in {len(ranks)}, both in "
               f"{len(held)}. Held-out pass@1 at equal train pass@1, asym_delta(0.3) - dr_grpo: {'; '.join(said)}.")
    return Score(verdict, tuple(held) if verdict == UNDER else (), because, tuple(numbers), LIMITS,
                 beside_prototype(numbers, DIFFERS))


def regime_numbers(name: str, trace) -> list[Number]:
    """The two that decide and the spread of rank first; then the other comparisons at the level, then the end."""
    level = REGIMES[name][2]
    held_out, energy = at_level(name, trace, "test_pass@1"), at_level(name, trace, "rank1")
    row = {label: i for i, label in enumerate(trace.labels)}
    low, base, high = row["asym_delta(0.3)"], row["dr_grpo"], row["asym_delta(4)"]

    def gap(what, values, a, b):
        return matched.paired(f"{name}: {what}, {trace.labels[a]} - {trace.labels[b]}", values[a], values[b])

    at = f"at train pass@1 {level:g}"
    spread = rank_spread(energy)
    rows = [
        gap(f"held-out pass@1 {at}", held_out, low, base),
        matched.number(f"{name}: rank correlation of rank-1 energy and held-out pass@1, {at}",
                       correlations(energy, held_out)),
        Number(f"{name}: range of the rules' mean rank-1 energy, {at}", spread,
               note="" if spread >= RANGE else f"below {RANGE}: rank cannot be tested"),
        gap(f"held-out pass@1 {at}", held_out, high, base),
        gap(f"held-out pass@1 {at}", held_out, row["asym_pure_loo(0.25)"], row["asym_pure_loo(4)"]),
        gap(f"held-out pass@100 {at}", at_level(name, trace, "test_pass@100"), low, base),
        gap(f"steps {at}", matched.steps_to(trace, level), low, base),
    ]
    late = matched.at_level(trace, "test_pass@1", LATE)
    rows += [gap(f"held-out pass@1 later, at train pass@1 {LATE:g}", late, a, b)
             for a, b in ((low, base), (row["asym_pure_loo(0.25)"], row["asym_pure_loo(4)"]))]
    train, test = trace.last("train_pass@1"), trace.last("test_pass@1")
    rows += [measured(f"{name}: held-out pass@1 at the end, asym_delta(0.3) - dr_grpo", test[low] - test[base],
                      prototype=PROTOTYPE.get(name, ""))]
    rows += [measured(f"{name}: train - held-out pass@1 at the end, {trace.labels[i]}", train[i] - test[i])
             for i in (low, base, high)]
    return rows


def correlations(energy, held_out) -> np.ndarray:
    """(seeds,) rank correlation over the rules of each seed; NaN where fewer than four reach the level."""
    out = np.full(energy.shape[1], np.nan)
    for seed in range(energy.shape[1]):
        there = np.isfinite(energy[:, seed]) & np.isfinite(held_out[:, seed])
        if there.sum() >= 4:
            out[seed] = spearman(energy[there, seed], held_out[there, seed])
    return out


def rank_spread(energy) -> float:
    """Largest less smallest mean rank-1 energy of the rules, each over the seeds in which it reaches the level."""
    there = np.isfinite(energy)
    means = [row[seen].mean() for row, seen in zip(energy, there, strict=True) if seen.any()]
    return float(np.ptp(means)) if means else 0.0


def pooled(results: dict) -> Number:
    """Over all rules and regimes: does excess rank-1 energy go with a loss of held-out pass@1 at equal train pass@1?"""
    excess = {"rank1": [], "test_pass@1": []}
    for name, trace in results.items():
        base = trace.labels.index("dr_grpo")
        for metric, columns in excess.items():
            values = at_level(name, trace, metric)
            columns.append(np.delete(values - values[base], base, axis=0))
    energy, held_out = (np.concatenate(columns) for columns in excess.values())
    return matched.number("all regimes: rank correlation of excess rank-1 energy and held-out pass@1 over dr_grpo",
                          correlations(energy, held_out), note=f"{len(energy)} rules and regimes a seed")




def figure(results: dict, path) -> None:
    from fade_sim.experiments.generalisation_figure import draw

    draw(results, path)
