"""The experiment on difficulty: it judges by the numbers, and its exact tables are those of the theory."""

import numpy as np
import pytest

from fade_sim.experiments import difficulty, difficulty_exact
from fade_sim.experiments.cells import Cells
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER
from fade_sim.sim import Trace

SEEDS = 10
LABELS = ("dr_grpo", *difficulty.FOCUSED)
NAMES = tuple(difficulty.REGIMES)[:2]


def trace(pass_1: float, pass_100: float) -> Trace:
    """Every focused rule differs from dr_grpo by these; seeds differ by +-.01, differences by a tenth of that."""
    noise = 0.01 * np.linspace(-1, 1, SEEDS)

    def values(shift):
        base = np.repeat((0.4 + noise)[None, :, None], len(LABELS), axis=0)
        base[1:] += (shift + 0.1 * noise)[None, :, None]
        return np.repeat(base, 2, axis=2)

    train = np.broadcast_to([0.1, 0.9], (len(LABELS), SEEDS, 2))
    return Trace(LABELS, tuple(range(SEEDS)), np.array([0, 100]),
                 {"test_pass@1": values(pass_1), "test_pass@100": values(pass_100), "train_pass@1": train})


def results(sharper=1.2, shares=(0.9, 0.8, 0.7), threshold=2.25, trades=((-0.05, 0.05),) * 2) -> dict:
    p = np.array([0.1, 0.2, 0.5])
    snr = np.ones((2, 3, 3)) * np.array([1.0, 1.0, sharper])[None, :, None]
    keys = [("uniform", "snr", "none", cut) for cut in difficulty_exact.CUTS]
    return {"alphas": (1.0, 2.0, 3.0), "group_sizes": (8, 16), "p": p, "grid": p, "snr": snr, "snr_curves": snr,
            "sampled": {(1.0, 16, 0.5): np.ones(SEEDS) + 0.01 * np.arange(SEEDS)},
            "variance": np.ones((2, 2, 3, 2)), "thresholds": dict.fromkeys(keys, threshold),
            "shares": {"uniform": list(shares)}, "best": {(1, "uniform"): 2.0},
            "quality": {("uniform", "snr"): np.ones(3)}, "softening": np.ones((2, 3)),
            "peaks": [0.3, 0.26], "traces": {name: trace(*pair) for name, pair in zip(NAMES, trades, strict=True)}}


NOTHING = {"sharper": 1.0, "shares": (0.7, 0.8, 0.9), "threshold": np.inf, "trades": ((-0.05, 0.0), (0.0, 0.05))}


def test_the_verdict_follows_the_numbers():
    assert difficulty.score(results()).verdict == HOLDS
    assert difficulty.score(results(**NOTHING)).verdict == FAILS


@pytest.mark.parametrize(("part", "said"), [
    ("sharper", "sharper on hard prompts, at G = 8, 16"), ("shares", "costs variance, for solve rates uniform"),
    ("threshold", "the threshold, by 4 of 4 definitions"),
    ("trades", f"trades pass@1 for pass@100, in {NAMES[0]}; {NAMES[1]}"),
])
def test_each_part_counts_by_itself(part, said):
    good = {"sharper": 1.2, "shares": (0.9, 0.8, 0.7), "threshold": 2.25, "trades": ((-0.05, 0.05),) * 2}
    got = difficulty.score(results(**{**NOTHING, part: good[part]}))
    assert got.verdict == UNDER and got.conditions == (said,)


def test_a_trade_needs_both_sides():
    got = difficulty.score(results(trades=((-0.05, 0.05), (-0.05, 0.0))))
    assert got.conditions[-1] == f"trades pass@1 for pass@100, in {NAMES[0]}"


def test_thresholds_are_a_function_of_the_definition():
    """Uniform solve rates, p < 1/2 hard: 2.42 by signal to noise, none by N_eff E_w s (independent quadrature)."""
    table = difficulty_exact.thresholds(("uniform",))
    assert table["uniform", "snr", "none", "1/2"] == pytest.approx(2.42, abs=0.005)
    assert table["uniform", "n_eff_quality", "none", "1/2"] == np.inf
    assert len(table) == 8 * 4


def test_best_alpha_is_found_by_search():
    assert difficulty_exact.best_alpha(1, "hard world") == pytest.approx(2.0, abs=1e-4)


def test_quality_of_equal_signals():
    """Uniform, N_eff reading: Q^2 = (E w)^2/E w^2, w = q^(alpha-1); alpha 2: 3/4, alpha 3: 5/9."""
    found = difficulty_exact.qualities((1.0, 2.0, 3.0), ("uniform",))["uniform", "n_eff"]
    assert found == pytest.approx([1.0, 0.75**0.5, (5 / 9) ** 0.5], rel=1e-9)


def test_softening_by_hand():
    """G = 2, alpha = 3: only c = 1 counts, m_S = 2pq (1/2)(1/2)^3 = pq/8, which over p q^3 is 1/(8 q^2)."""
    assert difficulty_exact.softening(3.0, (2,), np.array([0.5]))[0, 0] == pytest.approx(0.5, rel=1e-12)


def test_sampled_signal_to_noise_agrees_with_the_exact_one():
    """10 x 4000 groups: standard error about .004, so an error of 2% would show."""
    exact = difficulty_exact.snr((3.0,), (16,), np.array([0.3]))[0, 0, 0]
    found = difficulty_exact.sampled_snr(3.0, 16, 0.3, 4000, 10)
    assert found.mean() == pytest.approx(exact, rel=0.01)
    assert found.std() > 0  # every seed is its own sample


def test_end_to_end(tmp_path):
    settings = {"regimes": NAMES, "train": {"lr": 10.0, "lr_table": 0.0, "record": 20, "steps": 60, "seeds": 2},
                "exact": {"alphas": (1.0, 2.0, 3.0), "group_sizes": (8, 16), "p": (0.1, 0.2, 0.5, 0.9),
                          "densities": ("uniform",), "sampled": {"groups": 200, "seeds": 2}}}
    results = difficulty.run(settings, Cells(tmp_path / "cells", threads=1))
    assert difficulty.score(results).verdict == UNDER  # its exact parts do not depend on the training
    difficulty.figure(results, tmp_path / "difficulty.png")
    assert (tmp_path / "difficulty.png").read_bytes()[:4] == b"\x89PNG"
