"""A small claim with two cells, for tests of everything around the claims."""

import sys

import numpy as np

from fade_sim.experiments.claim import UNDER, Claim, Number, Score

CLAIM = Claim("fake", "Failure weight makes the update rank-1", "Below delta = 1 the update <collapses> to rank 1.",
              "arXiv 2607.01490, section 0", "the rank-1 energy of delta 0.3 is above that of dr_grpo by .1")
_TINY = {"train": {"steps": 3000, "record": 750, "seeds": 3, "lr": 40.0},
         "world": {"train_prompts": 16, "test_prompts": 8},
         "compare": [{"name": "dr_grpo"}, {"name": "asym_delta", "delta": 0.3}]}
SETTINGS = {"quick": {"staleness": [0, 10]}, "full": {"staleness": [0, 10, 30]}}


def configs(settings):
    return {f"staleness {lag}": {**_TINY, "train": {**_TINY["train"], "staleness": lag}}
            for lag in settings["staleness"]}


def run(settings, cells):
    return {what: cells.trace(raw, what) for what, raw in configs(settings).items()}


def score(results):
    numbers = []
    for what, trace in results.items():
        excess = np.diff(trace.last("rank1"), axis=0)[0]
        numbers.append(Number(f"excess of rank-1 energy, {what}", excess.mean(), excess.min(), excess.max(),
                              len(trace.seeds), prototype="about .4", note="delta 0.3 minus dr_grpo"))
    numbers.append(Number("infinite", float("inf")))
    return Score(UNDER, ("stale rollouts, no importance ratio",), f"The excess is {numbers[-2].value:.2f} when stale.",
                 tuple(numbers), ("16 prompts are few",))


def figure(results, path):
    from fade_sim.figures import run_figure

    last = list(results)[-1]
    run_figure({last: results[last]}, {last: last}, path)


def install():
    """Make it the only experiment of this process."""
    from fade_sim import experiments

    experiments.NAMES = ("fake",)
    sys.modules["fade_sim.experiments.fake"] = sys.modules[__name__]


if __name__ == "__main__":  # python fake_claim.py ARGUMENTS: fade-sim with this claim alone
    import fake_claim

    from fade_sim.cli import main

    fake_claim.install()
    sys.exit(main(sys.argv[1:]))
