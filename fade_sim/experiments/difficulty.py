"""Does a focus on hard prompts sharpen signal and cost variance, when does it pay, what does training trade for it?"""

import numpy as np

from fade_sim.experiments import matched
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER, Claim, Number, Score
from fade_sim.experiments.numbers import above, below, beside_prototype, measured, raw, shown

SHARPER = 1.05  # signal to noise of alpha = 3 over alpha = 1, on hard prompts
HARD = (0.1, 0.2)  # solve rates that are called hard there
THRESHOLD, NEAR = 2.25, 0.05  # claimed ratio of signals, relative tolerance
CLAIM = Claim(
    "difficulty", "A focus on hard prompts sharpens their signal, costs variance, and pays from 2.25 times the signal",
    "Power(alpha) sharpens the signal of hard prompts and costs variance (fewer effective prompts); at mean solve "
    "rate .5, alpha = 3 beats GRPO only if hard prompts carry at least 2.25 times the signal. In training it trades "
    "pass@1 for pass@100.",
    "arXiv 2607.01490",
    f"Four parts. Sharpens: at p = {HARD[0]:g} and {HARD[1]:g} the exact signal to noise of alpha = 3 is more than "
    f"{SHARPER:g} times that of alpha = 1, at every group size. Costs: N_eff falls with alpha for every density. "
    f"Threshold: every definition gives {THRESHOLD:g} within {NEAR:.0%}. Trade: for power(2) and power(3) mean "
    f"held-out pass@1 over the run is below dr_grpo's and final held-out pass@100 above it (four whole 95% intervals, "
    f"paired), in every regime. 'holds' needs all four; a part or a regime that holds is a condition; "
    f"'does not hold here' means that none does.",
)
COMPARE = ({"name": "dr_grpo"}, {"name": "power", "alpha": 2.0}, {"name": "power", "alpha": 3.0},
           {"name": "power_asym", "alpha": 2.0, "delta": 2.0})
FOCUSED = ("power(2)", "power(3)", "power_asym(alpha=2, delta=2)")
_ADAM = {"optimizer": "adam", "lr": 0.04}
_EQUAL = {"match": "grad"}
REGIMES = {  # (train, world, train pass@1 at which pass@100 is compared)
    "default, SGD": ({}, {}, 0.7), "hard, SGD": ({}, {"name": "hard"}, 0.5),
    "rare, SGD": ({"lr": 20.0}, {"name": "rare"}, 0.3),
    "default, Adam": ({**_ADAM, "lr": 0.02}, {}, 0.7), "hard, Adam": (_ADAM, {"name": "hard"}, 0.5),
    "rare, Adam": (_ADAM, {"name": "rare"}, 0.3),
    "default, SGD, equal gradients": (_EQUAL, {}, 0.7), "hard, SGD, equal gradients": (_EQUAL, {"name": "hard"}, 0.5),
    "rare, SGD, equal gradients": ({**_EQUAL, "lr": 20.0}, {"name": "rare"}, 0.3),
}
PROTOTYPE = {  # difference to GRPO of (mean held-out pass@1, final held-out pass@100) for power 2 and 3
    "default, SGD": (("-.044", "+.003"), ("-.082", "+.004")), "hard, SGD": (("", "+.024"), ("", "+.024")),
    "rare, Adam": (("", "+.012"), ("", "+.024")),
}
_EXACT = {"alphas": (1.0, 2.0, 3.0), "group_sizes": (8, 16, 64), "p": (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)}
_TRAIN = {"lr": 10.0, "lr_table": 0.0, "record": 50}
SETTINGS = {
    "quick": {
        "regimes": tuple(REGIMES)[:7], "train": {**_TRAIN, "steps": 600, "seeds": 10},
        "exact": {**_EXACT, "densities": ("uniform", "default world"), "sampled": {"groups": 10000, "seeds": 10}},
    },
    "full": {
        "regimes": tuple(REGIMES), "train": {**_TRAIN, "steps": 1500, "seeds": 24},
        "exact": {**_EXACT, "sampled": {"groups": 40000, "seeds": 10},
                  "densities": ("uniform", "Beta(2, 2)", "Beta(1/2, 1/2)", "default world", "hard world")},
    },
}
LIMITS = (
    "Signal to noise is that of a model of one prompt: a score along the logit of p and unit noise across it.",
    "Learning rates are the same for every rule; Power has smaller masses, so part of what it loses early is step "
    "size. The regimes with equal gradients remove that at the start only.",
    "The source gives no definition of signal and quality that was at hand; the definitions are readings of its words.",
)
_SAMPLED = "there 40 000 sampled groups without a printed error"
DIFFERS = (  # (start of a number's name, why it is not the prototype's)
    ("signal to noise", _SAMPLED), ("variance formula", _SAMPLED),
    ("hard, SGD", "there another number of steps, without a printed error"),
)


def configs(settings: dict) -> dict:
    """The cells that run asks for, by regime."""
    return {f"difficulty: {name}": raw(name, COMPARE, {**settings["train"], **REGIMES[name][0]}, REGIMES[name][1])
            for name in settings["regimes"]}


def run(settings: dict, cells) -> dict:
    """Exact tables of one gradient and of sums, a check of them by sampling, and training in every regime."""
    from fade_sim.experiments import difficulty_exact as exact

    done = {what: cells.trace(asked, what) for what, asked in configs(settings).items()}
    asked = settings["exact"]
    alphas, sizes, p, densities = asked["alphas"], asked["group_sizes"], np.array(asked["p"]), asked["densities"]
    grid = np.linspace(0.01, 0.99, 99)
    return {
        "alphas": alphas, "group_sizes": sizes, "p": p, "grid": grid,
        "snr": exact.snr(alphas, sizes, p), "snr_curves": exact.snr(alphas, sizes, grid),
        "sampled": {(alpha, G, x): exact.sampled_snr(alpha, G, x, **asked["sampled"])
                    for alpha in (1.0, 3.0) for G in (16,) for x in (0.1, 0.5, 0.9)},
        "variance": exact.variance_table(alphas[1:], sizes, p), "thresholds": exact.thresholds(densities),
        "shares": exact.shares(alphas, densities), "quality": exact.qualities(alphas, densities),
        "best": {(j, density): exact.best_alpha(j, density) for j in (0, 1, 2) for density in densities},
        "softening": exact.softening(3.0, sizes, np.array([0.02, 0.5, 0.9])), "peaks": exact.peaks(3.0, sizes),
        "traces": {name: done[f"difficulty: {name}"] for name in settings["regimes"]},
    }


def score(results: dict) -> Score:
    sharper = [G for G, ratio in sharpening(results).items() if min(ratio) > SHARPER]
    costs = [density for density, share in results["shares"].items() if all(np.diff(share) < 0)]
    near = [name for name, ratio in results["thresholds"].items() if abs(ratio / THRESHOLD - 1) <= NEAR]
    training = {name: training_numbers(name, trace) for name, trace in results["traces"].items()}
    traded = [name for name, rows in training.items() if trades(rows, name)]
    parts = {  # part -> (where it holds, of how many)
        f"sharper on hard prompts, at G = {', '.join(map(str, sharper))}": (sharper, results["group_sizes"]),
        f"costs variance, for solve rates {'; '.join(costs)}": (costs, results["shares"]),
        f"the threshold, by {len(near)} of {len(results['thresholds'])} definitions": (near, results["thresholds"]),
        f"trades pass@1 for pass@100, in {'; '.join(traded)}": (traded, results["traces"]),
    }
    verdict = (HOLDS if all(len(held) == len(everything) for held, everything in parts.values())
               else UNDER if any(held for held, _ in parts.values()) else FAILS)
    conditions = tuple(part for part, (held, _) in parts.items() if held) if verdict == UNDER else ()
    numbers = (*_snr_numbers(results), *_variance_numbers(results), *_threshold_numbers(results),
               *_other_exact_numbers(results), *(row for rows in training.values() for row in rows.values()))
    return Score(verdict, conditions, _because(results, near, training), numbers, LIMITS,
                 beside_prototype(numbers, DIFFERS))


def sharpening(results: dict) -> dict[int, list[float]]:
    """Group size -> signal to noise of the largest alpha over that of alpha = 1, at the hard solve rates."""
    at = [int(np.flatnonzero(results["p"] == x)[0]) for x in HARD]
    return {G: [float(results["snr"][k, -1, i] / results["snr"][k, 0, i]) for i in at]
            for k, G in enumerate(results["group_sizes"])}


PASS_1, PASS_100 = "mean held-out pass@1 over the run", "final held-out pass@100"


def difference(name: str, what: str, rule: str) -> str:
    """Name of a paired difference of a regime."""
    return f"{name}: {what}, {rule} - dr_grpo"


def training_numbers(name: str, trace) -> dict[str, Number]:
    """Paired differences to dr_grpo by name; those of pass@100 also at equal train pass@1."""
    base, level, rows = trace.labels.index("dr_grpo"), REGIMES[name][2], {}
    mean = trace.values["test_pass@1"].mean(axis=-1)
    final_1, final_100 = trace.last("test_pass@1"), trace.last("test_pass@100")
    equal = matched.at_level(trace, "test_pass@100", level)
    for k, rule in enumerate(FOCUSED):
        i = trace.labels.index(rule)
        said = PROTOTYPE.get(name, (("", ""), ("", "")))[k] if k < 2 else ("", "")
        notes = ["a prototype's runs were of another length, on other worlds" if text else "" for text in said]
        found = (
            measured(difference(name, PASS_1, rule), mean[i] - mean[base], prototype=said[0], note=notes[0]),
            measured(difference(name, PASS_100, rule), final_100[i] - final_100[base], prototype=said[1],
                     note=notes[1]),
            measured(difference(name, "final held-out pass@1", rule), final_1[i] - final_1[base]),
            matched.paired(difference(name, f"held-out pass@100 at train pass@1 {level:g}", rule), equal[i],
                           equal[base]),
        )
        rows |= {row.name: row for row in found}
    return rows


def trades(rows: dict[str, Number], name: str) -> bool:
    """Do power(2) and power(3) both lose pass@1 and win pass@100?"""
    return all(below(rows[difference(name, PASS_1, rule)]) and above(rows[difference(name, PASS_100, rule)])
               for rule in FOCUSED[:2])


def _snr_numbers(results: dict) -> list[Number]:
    rows = []
    for k, G in enumerate(results["group_sizes"]):
        for a, alpha in enumerate(results["alphas"]):
            for i, p in enumerate(results["p"]):
                said = _SNR.get((G, alpha, float(p)), "")
                rows.append(Number(f"signal to noise at G = {G}: alpha {alpha:g}, p = {p:g}",
                                   float(results["snr"][k, a, i]), prototype=said))
    for (alpha, G, p), values in results["sampled"].items():
        i = int(np.flatnonzero(results["p"] == p)[0])
        exact = results["snr"][results["group_sizes"].index(G), results["alphas"].index(alpha), i]
        rows.append(measured(f"signal to noise, sampled: alpha {alpha:g}, G = {G}, p = {p:g}", values,
                             predicted=float(exact)))
    return rows


_SNR = {(16, 1.0, 0.5): "1.92", (16, 2.0, 0.3): "1.69-1.72", (16, 2.0, 0.5): "1.69-1.72", (16, 3.0, 0.3): "1.64",
        (16, 3.0, 0.5): "1.40", (16, 3.0, 0.9): ".47", (16, 1.0, 0.9): ".91", (64, 3.0, 0.2): "3.05",
        (64, 1.0, 0.2): "2.73"}
_VARIANCE = {(2.0, 0.1): "1.19", (2.0, 0.3): "1.24", (2.0, 0.5): "1.00", (2.0, 0.7): ".70", (2.0, 0.9): ".35",
             (3.0, 0.1): "1.39", (3.0, 0.3): "1.40", (3.0, 0.5): ".95", (3.0, 0.7): ".55", (3.0, 0.9): ".15"}


def _variance_numbers(results: dict) -> list[Number]:
    """The formula of two terms, never without the exact value beside it."""
    return [Number(f"variance formula / exact at G = {G}: alpha {alpha:g}, p = {p:g}",
                   float(results["variance"][k, a, i, 0]), predicted=1.0,
                   prototype=_VARIANCE.get((alpha, float(p)), "") if G == 16 else "",
                   note=f"with the covariance of weight and gradient {results['variance'][k, a, i, 1]:.2f}")
            for k, G in enumerate(results["group_sizes"]) for a, alpha in enumerate(results["alphas"][1:])
            for i, p in enumerate(results["p"])]


def _threshold_numbers(results: dict) -> list[Number]:
    return [Number(f"break-even, {density}: {reading}{f', {scale} matched' if reading == 'signal' else ''}, hard: "
                   f"p < {cut}", ratio, prototype=_BREAK_EVEN.get((density, reading, cut), ""))
            for (density, reading, scale, cut), ratio in results["thresholds"].items()]


_BREAK_EVEN = {("uniform", reading, cut): said for reading, row in (
    ("snr", ("2.42", "2.18", "2.22", "2.53")), ("n_eff", ("2.67", "2.38", "2.33", "2.41")),
    ("n_eff_quality", ("none", "13.5", "8.7", "7.2"))) for cut, said in zip(("1/2", "2/5", "1/3", "1/4"), row,
                                                                            strict=True)}


def _other_exact_numbers(results: dict) -> list[Number]:
    rows = [Number(f"N_eff/N, {density}: alpha {alpha:g}", share) for density, values in results["shares"].items()
            for alpha, share in zip(results["alphas"], values, strict=True)]
    rows += [Number(f"Q over that of alpha 1, {density}: {reading}, alpha {alpha:g}", float(value))
             for (density, reading), row in results["quality"].items()
             for alpha, value in zip(results["alphas"][1:], row[1:], strict=True)]
    rows += [Number(f"best alpha, {density}: signal q^{j}", best, predicted=1.0 + j,
                    prototype={1: "2.00", 2: "3.00"}.get(j, "")) for (j, density), best in results["best"].items()]
    for k, G in enumerate(results["group_sizes"]):
        said = (".68", ".96", "4.24") if G == 8 else ("",) * 3
        rows += [Number(f"finite groups: mass of power(3) over p q^3 at G = {G}, p = {p:g}",
                        float(results["softening"][k, i]), predicted=1.0, prototype=said[i])
                 for i, p in enumerate((0.02, 0.5, 0.9))]
        rows.append(Number(f"finite groups: peak of power(3) at G = {G}", results["peaks"][k], predicted=0.25))
    return rows


def _because(results: dict, near, training) -> str:
    ratios = sharpening(results)
    ratio_of = list(results["thresholds"].values())
    lowest, highest = (f"{x:.2f}" if np.isfinite(x) else "never" for x in (min(ratio_of), max(ratio_of)))
    text = "Signal to noise of alpha 3 over alpha 1 on hard prompts: " + ", ".join(
        f"{min(ratio):.2f} to {max(ratio):.2f} at G = {G}" for G, ratio in ratios.items())
    text += (f". Break-even from {lowest} to {highest} by definition ({len(near)} of {len(ratio_of)} within "
             f"{NEAR:.0%} of {THRESHOLD:g}). Power(3) minus dr_grpo, pass@1 over the run and final pass@100: ")
    return text + "; ".join(
        " and ".join([f"{name} {shown(rows[difference(name, PASS_1, 'power(3)')])}",
                      shown(rows[difference(name, PASS_100, "power(3)")])]) for name, rows in training.items()) + "."


def figure(results: dict, path) -> None:
    from fade_sim.experiments.difficulty_figure import draw

    draw(results, path)
