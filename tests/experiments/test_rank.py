"""The experiment on rank: it judges by the numbers, and its growth test knows stable from unstable."""

import numpy as np
import pytest

from fade_sim.experiments import rank, rank_theory
from fade_sim.experiments.cells import Cells
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER
from fade_sim.sim import Trace
from fade_sim.theory.stability import growth_factor

SEEDS = 10
LABELS = ("dr_grpo", "asym_delta(0.3)", "asym_delta(0.5)", "asym_delta(2)", "asym_delta(4)", "power(2)", "nsr")
METRICS = ("rank1", "test_pass@1", "test_pass@100", "train_entropy")


def trace(**final: float) -> Trace:
    """Rank-1 energy of .5 for every rule at the end, unless given; seeds differ by +-.01 for all rules alike."""
    noise = 0.01 * np.linspace(-1, 1, SEEDS)
    level = np.array([final.get(label.replace("(", "_").replace(")", "").replace(".", "_"), 0.5) for label in LABELS])
    values = np.repeat((level[:, None] + noise)[:, :, None], 2, axis=2)
    return Trace(LABELS, tuple(range(SEEDS)), np.array([0, 100]), {name: values for name in METRICS})


def results(**traces: Trace) -> dict:
    theory = {"Lambda": [1.25], "lags": [5], "measured": np.full((1, 1, SEEDS), 0.0763),
              "predicted": np.array([[0.0763]]), "critical": np.ones((1, SEEDS)),
              "safe": {"delta": np.full(SEEDS, 0.5), "growth": np.zeros((SEEDS, 3))}}
    sampled = {"correlation": np.full((SEEDS, 4), 0.5), "in_sample": np.ones(SEEDS), "cross_validated": np.ones(SEEDS),
               "exact": np.ones(SEEDS)}
    grid_values = np.array([0.4, 0.9, 0.8, 0.7])[:, None, None] + np.zeros((4, SEEDS, 2))
    labels = ("dr_grpo", "asym_delta(0.25)", "asym_delta(0.5)", "asym_delta(0.75)")
    grid = {(40.0, 30): Trace(labels, tuple(range(SEEDS)), np.array([0, 100]), {"rank1": grid_values})}
    tops = {0.25: np.full(SEEDS, 0.03), 0.5: np.full(SEEDS, 0.01), 0.75: np.full(SEEDS, 0.003)}
    return {"traces": traces, "early": 0, "grid": grid, "tops": tops, "theory": theory, "sampled": sampled,
            "trained": np.full((SEEDS, 4), 0.5)}


COLLAPSED = {"asym_delta_0_3": 0.95}


def test_the_verdict_follows_the_numbers():
    assert rank.score(results(a=trace(**COLLAPSED), b=trace(**COLLAPSED))).verdict == HOLDS
    some = rank.score(results(a=trace(**COLLAPSED), b=trace()))
    assert (some.verdict, some.conditions) == (UNDER, ("a",))
    assert rank.score(results(a=trace(), b=trace())).verdict == FAILS


def test_a_balanced_rule_that_collapses_too_refutes_the_claim():
    assert rank.score(results(a=trace(**COLLAPSED, power_2=0.9))).verdict == FAILS
    assert rank.score(results(a=trace(**COLLAPSED, asym_delta_2=0.9))).verdict == FAILS


def test_rank_correlation_of_the_grid():
    """Three cells, Lambda 1200 x (.03, .01, .003) = 36, 12, 3.6 and excess .5, .4, .3: the same order, so 1."""
    points = rank.grid_points(results(a=trace()))
    assert points[:, 0] == pytest.approx([36, 12, 3.6]) and points[:, 1] == pytest.approx([0.5, 0.4, 0.3])
    found = {row.name: row.value for row in rank.score(results(a=trace())).numbers}
    assert found["rank correlation of the excess with Lambda"] == pytest.approx(1.0)


def test_growth_is_the_closed_form_on_both_sides_of_1():
    """The full softmax against the root of k (1/z + ... + 1/z^5) = 1, to the size of the kick."""
    at = rank_theory.start({"train_prompts": 24, "test_prompts": 1}, 3)
    excess = rank_theory.excess_mass(at.p, 0.5, 16)
    eigen = rank_theory.top_eigen(at, excess)
    for Lambda in (0.8, 1.0, 1.25):
        expected = np.log(growth_factor(Lambda / 5, 5))
        assert rank_theory.growth(at, excess, eigen, 5, Lambda) == pytest.approx(expected, abs=2e-5)


def test_a_growth_test_told_the_wrong_eigenvalue_does_not_confirm_it():
    at = rank_theory.start({"train_prompts": 24, "test_prompts": 1}, 3)
    excess = rank_theory.excess_mass(at.p, 0.5, 16)
    value, vector = rank_theory.top_eigen(at, excess)
    wrong = rank_theory.growth(at, excess, (1.3 * value, vector), 5, 1.25)  # in truth Lambda = .96
    assert wrong < 0 < np.log(growth_factor(0.25, 5))


def test_end_to_end(tmp_path):
    settings = {"regimes": ("stale 30, lr 40", "on-policy, lr 40"), "train": {"steps": 20, "seeds": 2, "record": 10},
                "early": 10, "grid": ((40.0, 5),), "grid_steps": 20,
                "theory": {**rank.SETTINGS["quick"]["theory"], "seeds": 2, "lags": (5,), "Lambda": (1.25,)},
                "sampled": {**rank.SETTINGS["quick"]["sampled"], "seeds": 2, "rollouts": 16}}
    found = rank.run(settings, Cells(tmp_path, threads=1))
    assert rank.score(found).verdict in (HOLDS, UNDER, FAILS)
    rank.figure(found, tmp_path / "rank.png")
    assert (tmp_path / "rank.png").stat().st_size > 10_000
