"""The experiment on entropy judges by the slope-free rules, at equal solve rate, and says where it holds."""

import numpy as np
import pytest

from fade_sim.advantage import make
from fade_sim.experiments import entropy
from fade_sim.experiments.cells import Cells
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER
from fade_sim.sim import Trace
from fade_sim.theory import masses

SEEDS = 10
STEPS = np.array([0, 10, 20])
SOLVE = np.array([0.3, 0.75, 0.9])
JITTER = 0.001 * np.linspace(-1, 1, SEEDS)


def trace(rows, slope: float, bend: float = 0.0, solve=SOLVE, offset: float = 0.0) -> Trace:
    """Entropies 1 + slope x + bend x^2 at every record, x = log(m_S/m_F); seeds differ by a shift alike for all."""
    methods = [make(**row) for row in rows]
    m_S, m_F = np.array([masses(method, 16, 0.5) for method in methods]).T
    with np.errstate(divide="ignore"):
        x = np.clip(np.log(m_S / m_F), -6, 6)
    jitter = np.random.default_rng(1).normal(scale=0.001, size=(len(x), SEEDS, 1))
    level = 1 + offset + (slope * x + bend * x**2)[:, None, None] + jitter + np.zeros(len(STEPS))
    values = {name: level for name in entropy.METRIC.values()}
    shape = np.zeros((len(x), SEEDS, len(STEPS)))
    values |= {"train_pass@1": solve + shape, "m_S": m_S[:, None, None] + shape, "m_F": m_F[:, None, None] + shape}
    return Trace(tuple(method.label for method in methods), tuple(range(SEEDS)), STEPS, values)


def regime(slope: float = 0.0, bend: float = 0.0, solve=SOLVE, asym: float = 0.0, offset: float = 0.0):
    return (trace(entropy.FREE + entropy.BASELINES, slope, bend, solve),
            trace(entropy.ASYM, asym, offset=offset))


def results(**traces) -> dict:
    step = {key: np.full(SEEDS, value) + JITTER for key, value in
            {"measured": -0.03, "first": -0.028, "second": -0.002, "second_S": -0.003, "second_F": -0.01}.items()}
    table = {label: step for label in entropy.SETTINGS["quick"]["one_step"]["labels"]}
    head = {1.0: {"measured": np.full(4, -0.0102), "first": np.full(4, -0.01)}}
    return {"traces": traces, "table": table, "head": head}


def score(**traces):
    return entropy.score(results(**traces))


def found(result) -> dict:
    return {number.name: number for number in result.numbers}


def test_the_verdict_follows_the_numbers():
    assert score(a=regime(-0.02), b=regime(-0.02)).verdict == HOLDS
    some = score(a=regime(-0.02), b=regime())
    assert (some.verdict, some.conditions) == (UNDER, ("a: at .7", "a: at .8", "a: at the end"))
    assert score(a=regime(), b=regime(0.02)).verdict == FAILS


def test_a_slope_that_explains_little_is_not_predictable_from_the_sign_ratio():
    """x is nearly symmetric, so a bend b x^2 leaves the slope and adds spread: R^2 falls below .8."""
    result = score(a=regime(-0.02, bend=0.02))
    assert result.verdict == FAILS
    assert entropy.below(found(result)["a: slope of H at .8"])


def test_asym_delta_decides_nothing():
    """Its slope is q + p/delta: a difference in entropy may come from that."""
    assert score(a=regime(asym=-0.5)).verdict == FAILS
    assert found(score(a=regime(asym=-0.5)))["a: slope of H at .8, asym_delta"].value == pytest.approx(-0.5, abs=0.01)


def test_runs_that_never_reach_the_solve_rate_have_no_say_there_and_are_counted():
    result = score(a=regime(-0.02, solve=np.array([0.3, 0.5, 0.75])))
    assert result.conditions == ("a: at .7", "a: at the end")
    never = found(result)["a: slope of H at .8"]
    assert np.isnan(never.value) and never.seeds == 0 and "10 of 10 seeds have no value" in never.note


def test_rules_that_end_at_different_solve_rates_are_not_compared_there():
    free, asym = regime(-0.02)
    free.values["train_pass@1"][free.labels.index("asym_pure_loo(8)"), :, -1] = 0.95
    assert score(a=(free, asym)).conditions == ("a: at .7", "a: at .8")


def test_families_at_different_levels_are_not_one_line():
    """The same slope in all families, asym_delta a whole nat higher: the sign ratio alone explains next to nothing."""
    same, apart = (found(score(a=regime(-0.02, asym=-0.02, offset=gap)))["a: R2 of H at .8 over all 15 rules"].value
                   for gap in (0.0, 1.0))
    assert same > 0.95 and apart < 0.1


def test_second_order_share_of_a_step():
    """first -.028, second -.002: the second is 1/15, 7% of the predicted -.030."""
    step = found(score(a=regime()))["one step: dH of the table, baseline(0)"]
    assert step.predicted == pytest.approx(-0.030) and step.note == "second order 7% of it"
    error = found(score(a=regime()))["one step: relative error of the first order, head, lr 1"]
    assert error.value == pytest.approx(0.02)


def test_end_to_end(tmp_path):
    step = {**entropy.SETTINGS["quick"]["one_step"], "seeds": 2, "head_seeds": 2}
    settings = {"regimes": ("head + table, G 4", "stale 10, lr 20"), "one_step": step,
                "train": {**entropy.SETTINGS["quick"]["train"], "steps": 30, "seeds": 2}}
    measured = entropy.run(settings, Cells(tmp_path, threads=1))
    assert set(measured["traces"]) == set(settings["regimes"])
    assert entropy.score(measured).verdict in (HOLDS, UNDER, FAILS)
    entropy.figure(measured, tmp_path / "entropy.png")
    assert (tmp_path / "entropy.png").stat().st_size > 10_000
