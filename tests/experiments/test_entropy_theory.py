"""Predicted and measured steps of entropy: prediction and simulator share no code but the weights."""

import numpy as np
import pytest

from fade_sim.experiments import entropy_theory
from fade_sim.experiments.cells import Cells

WORLD = {"train_prompts": 64, "test_prompts": 1}


def test_the_error_of_the_first_order_shrinks_with_the_step(tmp_path):
    """An expected step of the shared head: what is left is O(lr^2), so a quarter of lr leaves a quarter."""
    errors = []
    for lr in (1.0, 0.25):
        train = {"mode": "expected", "lr": lr, "lr_table": 0.0, "seeds": 2}
        measured = entropy_theory.one_step("head", ("asym_delta(0.5)",), train, WORLD, Cells(tmp_path, threads=1))
        predicted = entropy_theory.expected_head("asym_delta(0.5)", 16, lr, WORLD, 2)
        errors.append(np.abs(measured["asym_delta(0.5)"] / predicted - 1))
    assert (errors[1] < 0.02).all() and errors[0] / errors[1] == pytest.approx(4.0, rel=0.1)


def test_slope_free_rules_differ_in_the_second_order_alone():
    """First order: slope 1 at every delta. Second: success weight stirs H_S, failure weight H_F."""
    low, high = (entropy_theory.expected_table(f"asym_pure_loo({d:g})", 4, 1.0, WORLD, 1) for d in (0.125, 8.0))
    assert low["first"] == pytest.approx(high["first"], rel=1e-12)
    assert high["second_S"] < 2 * low["second_S"] < 0 and low["second_F"] < 2 * high["second_F"] < 0


def test_sampled_table_steps_match_both_orders(tmp_path):
    """100 worlds of 64 groups. Noise of a world's mean dH about .01, so +-.001 here; the second order of
    baseline(0) at this step is about -.007, seven errors: leaving it out would show."""
    train = {"lr": 0.0, "lr_table": 1.0, "group_size": 4, "prompts": 64, "seeds": 100}
    cells = Cells(tmp_path, threads=1)
    measured = entropy_theory.one_step("table", ("baseline(0)",), train, WORLD, cells)["baseline(0)"]
    predicted = entropy_theory.expected_table("baseline(0)", 4, 1.0, WORLD, 100)
    error = measured - predicted["first"] - predicted["second"]
    spread = error.std(ddof=1) / 10
    assert abs(error.mean()) < 4 * spread and spread < 0.0015
    assert abs(predicted["second"].mean()) > 4 * spread
