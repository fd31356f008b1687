"""Does FADE reach its best earlier than every static rule, and is it the schedule or the scale that does it?

Every rule runs on a grid of learning rates and is judged at its own best one: an untuned rate makes
any rule look good whose scale happens to grow.
"""

import numpy as np

from fade_sim.experiments.claim import FAILS, HOLDS, UNDER, Claim, Score
from fade_sim.experiments.fade_numbers import Regime, ablation_numbers, oddity_numbers, regime_numbers
from fade_sim.experiments.numbers import above, beside_prototype, raw, shown

CLAIM = Claim(
    "fade", "FADE reaches peak pass@1 earlier than the best static rule, with the best pass@1/10/100 trade-off",
    "FADE reaches its peak pass@1 earlier than the best static rule and has the best trade-off over pass@1, 10 and "
    "100; without the delta schedule entropy collapses, without the alpha schedule diversity falls; driving both by "
    "entropy, or by a logarithmic schedule, is worse.",
    "arXiv 2607.01490",
    "In a regime it holds if, each rule at its own best learning rate (highest mean held-out pass@1 over the run), "
    "(1) FADE needs fewer steps than the best static rule (highest peak of the mean curve) to 98% of that rule's peak "
    "in the same world (95% interval of the paired difference above 0), and (2) every static rule is worse than FADE "
    "at one of pass@1, 10 and 100 at the end (interval above 0). 'holds' needs every regime, 'does not hold here' "
    "means none. Whether schedule or scale does it is read from FADE minus scale_ema (dr_grpo times FADE's smoothed "
    "scale): that decides no verdict and stands beside it.",
)

STATIC = ({"name": "dr_grpo"}, {"name": "asym_delta", "delta": 0.5}, {"name": "asym_delta", "delta": 2.0},
          {"name": "power", "alpha": 2.0}, {"name": "power", "alpha": 3.0},
          {"name": "power_asym", "alpha": 2.0, "delta": 2.0})
ADAPTIVE = ({"name": "fade"}, {"name": "fade", "controller": {"h_star": 2.0}},
            *({"name": "fade", "controller": {"ablation": one}}
              for one in ("no_alpha", "no_delta", "entropy_only", "log_schedule")),
            {"name": "scale_only"}, {"name": "scale_ema"}, {"name": "fade_unit"})
ADAM = (0.04, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
SGD = (10.0, 40.0, 160.0, 320.0, 640.0, 1280.0, 2560.0, 5120.0)
CORRECTED = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)  # under stale data longer steps do harm earlier
COMMON = 0.04  # an untuned rate for all rules, where Adam's grids have it
STALE = {"lr_table": 1.0, "staleness": 30}
REGIMES = {  # world, train, learning rates
    "split_rare, Adam": ("split_rare", {"optimizer": "adam"}, ADAM),
    "rare, Adam": ("rare", {"optimizer": "adam"}, ADAM),
    "hard, Adam": ("hard", {"optimizer": "adam"}, ADAM),
    "default, Adam": ("default", {"optimizer": "adam"}, ADAM),
    "split_rare, Adam, G 4": ("split_rare", {"optimizer": "adam", "group_size": 4}, ADAM),
    "split_rare, Adam, stale 20": ("split_rare", {"optimizer": "adam", "staleness": 20}, ADAM),
    "split_rare, Adam, stale 20, clip": ("split_rare", {"optimizer": "adam", "staleness": 20, "correction": "clip"},
                                         ADAM),
    "split_rare, SGD": ("split_rare", {}, SGD),
    "rare, SGD, G 4": ("rare", {"group_size": 4}, SGD),
    "default, SGD": ("default", {}, SGD),
    "default, SGD, stale 30": ("default", STALE, (1.25, 2.5, *CORRECTED[:-1])),
    "default, SGD, stale 30, ratio": ("default", {**STALE, "correction": "ratio"}, CORRECTED),
    "default, SGD, stale 30, clip": ("default", {**STALE, "correction": "clip"}, CORRECTED),
}
ODD = {"lr_table": 1.0, "staleness": 30, "steps": 1500}
ODD_CASES = {  # the same stale world under a correction; a rate of 120 gives dr_grpo the failure steps of delta .33
    "ratio, lr 40": {"correction": "ratio", "lr": 40.0}, "ratio, lr 13": {"correction": "ratio", "lr": 13.0},
    "ratio, lr 120": {"correction": "ratio", "lr": 120.0}, "clip, lr 40": {"correction": "clip", "lr": 40.0},
}
ODD_RULES = ({"name": "dr_grpo"}, {"name": "asym_delta", "delta": 0.3}, *ADAPTIVE[:1], *ADAPTIVE[2:4],
             *({"name": name} for name in ("scale_ema", "fade_unit")))
_TRAIN = {"steps": 1200, "lr_table": 0.0, "record": 25}
SETTINGS = {
    "quick": {"regimes": tuple(REGIMES)[:1], "train": {**_TRAIN, "seeds": 10}, "odd": ()},
    "full": {"regimes": tuple(REGIMES), "train": {**_TRAIN, "seeds": 12}, "odd": tuple(ODD_CASES)},
}
LIMITS = (
    "One learning rate per rule, constant over the run; the best is chosen on the seeds it is judged on, for every "
    "rule alike.",
    "A policy over 32 arms, not a language model; entropies and H* are of that policy.",
    "Regimes share their random worlds (one per seed), so they are not independent of each other.",
)
DIFFERS = ()  # (start of a number's name, why it is not the prototype's)


def configs(settings: dict) -> dict:
    """The cells that run asks for: a regime at a learning rate, or an odd case."""
    train, asked = settings["train"], {}
    for name in settings["regimes"]:
        world, changed, rates = REGIMES[name]
        for lr in settings.get("rates", rates):
            asked[f"fade: {name}, lr {lr:g}"] = raw(name, STATIC + ADAPTIVE, {**train, **changed, "lr": lr},
                                                    {"name": world}, {"horizon": train["steps"]})
    for case in settings["odd"]:
        asked[f"fade: {case}"] = raw(case, ODD_RULES, {**train, **ODD, **ODD_CASES[case]})
    return asked


def run(settings: dict, cells) -> dict:
    """{"regimes": {name: {lr: Trace}}, "odd": {case: Trace}}."""
    done = {what: cells.trace(asked, what) for what, asked in configs(settings).items()}
    regimes = {name: {lr: done[f"fade: {name}, lr {lr:g}"] for lr in settings.get("rates", REGIMES[name][2])}
               for name in settings["regimes"]}
    return {"regimes": regimes, "odd": {case: done[f"fade: {case}"] for case in settings["odd"]}}


def score(results: dict) -> Score:
    held, numbers, said, earlier, front = [], [], [], 0, 0
    for name, traces in results["regimes"].items():
        regime = Regime(name, traces)
        rows = regime_numbers(regime, len(STATIC))
        numbers += rows.all
        numbers += ablation_numbers(regime)
        if COMMON in traces:
            untuned = Regime(f"{name}, lr {COMMON:g} for all", {COMMON: traces[COMMON]})
            numbers += regime_numbers(untuned, len(STATIC)).all
        earlier, front = earlier + above(rows.earlier), front + rows.on_front
        if above(rows.earlier) and rows.on_front:
            held.append(name)
        said.append(f"{name}: {shown(rows.earlier, 0)} steps before the peak of {rows.best}, "
                    f"{'on' if rows.on_front else 'inside'} the pass@k front; mean pass@1 minus scale_ema "
                    f"{shown(rows.schedule)}")
    for case, trace in results["odd"].items():
        numbers += oddity_numbers(case, trace)
    because = (f"Of {len(said)} regimes FADE is earlier than the best static rule in {earlier}, on the pass@k front in "
               f"{front}, both in {len(held)}. {'; '.join(said)}.")
    verdict = HOLDS if len(held) == len(results["regimes"]) else UNDER if held else FAILS
    return Score(verdict, tuple(held) if verdict == UNDER else (), because, tuple(numbers), LIMITS,
                 beside_prototype(numbers, DIFFERS))


def phases(trace, label: str = "fade") -> dict[str, np.ndarray]:
    """Mean over seeds of FADE's gains and averages, each (records,); the gains before the first batch left out."""
    i = trace.labels.index(label)
    return {name: trace.values[name][i].mean(axis=0) for name in ("alpha", "delta", "phat", "Hhat")}


def figure(results: dict, path) -> None:
    from fade_sim.experiments.fade_figure import draw

    draw(results, path)
