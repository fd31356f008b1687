"""The experiment on decomposition: it judges by the numbers, and its parts find what does not decompose."""

import numpy as np
import pytest

from fade_sim.advantage import make, weight_table
from fade_sim.experiments import decomposition, decomposition_exact
from fade_sim.experiments.cells import Cells
from fade_sim.experiments.claim import FAILS, HOLDS, UNDER

NOISE = 0.001 * np.linspace(-1, 1, 10)


def results(table=1e-12, update=1e-13, off=0.0, continuous=0.0, length=0.0, batch=1.0) -> dict:
    """Two rules of the group and one of the batch; off: difference of a measured mass, in units of the mass."""
    p = np.linspace(0.01, 0.99, 9)
    mass = p * (1 - p)
    runs = (np.array([off + NOISE, off + NOISE]), np.ones((2, 10)))
    rules = ("dr_grpo", "power(2)", "lite_ppo")
    return {"group_size": 4, "p": p, "masses": {label: (mass, mass) for label in rules},
            "table": dict.fromkeys(rules, table), "enumerated": dict.fromkeys(rules, (1e-15, update)),
            "runs": {"dr_grpo": (np.array([NOISE, NOISE]), np.ones((2, 10))), "power(2)": runs, "lite_ppo": runs},
            "of_batch": {"lite_ppo": batch},
            "more": {"opo (lengths)": length, "dr_grpo, continuous rewards": continuous}}


def test_the_verdict_follows_the_numbers():
    assert decomposition.score(results()).verdict == HOLDS
    for broken in (results(table=1e-3), results(update=1e-3), results(off=0.01)):
        assert decomposition.score(broken).verdict == FAILS
    some = decomposition.score(results(continuous=0.3, length=0.1, batch=1.2))
    assert some.verdict == UNDER and len(some.conditions) == 3
    assert decomposition.score(results(continuous=0.3)).conditions == ("rewards are 0 or 1",)


def test_chance_of_a_difference_is_that_of_student_t():
    """Values +-1: mean 0, so chance 1. Shifted by 1 s.e. of 10 seeds: t = 1 with 9 degrees of freedom, two sides .3434;
    two masses of one rule: .687."""
    x = np.linspace(-1, 1, 10)
    shift = x.std(ddof=1) / 10**0.5
    assert decomposition.least_chance({"a": (np.array([x, x]), 1)}, ["a"])[0] == 1.0
    chance, where = decomposition.least_chance({"a": (np.array([x, x + shift]), 1)}, ["a"])
    assert chance == pytest.approx(2 * 0.3434, abs=1e-4) and where == "m_F of a"
    exact_but_off = np.array([np.zeros(10), np.full(10, 0.1)])
    assert decomposition.least_chance({"a": (exact_but_off, 1)}, ["a"])[0] == 0.0


def test_axes_hold_a_negative_and_a_zero_mass():
    """(3, 1), (0, 2), (1, -3): sizes 4, 2, 4, mean 10/3; angles atan2(m_S, m_F)."""
    sign, difficulty, scale = decomposition_exact.axes_of(np.array([3.0, 0.0, 1.0]), np.array([1.0, 2.0, -3.0]))
    assert scale == pytest.approx(10 / 3) and difficulty == pytest.approx([1.2, 0.6, 1.2])
    m_S, m_F = decomposition_exact.masses_from(sign, difficulty, scale)
    assert m_S == pytest.approx([3, 0, 1], abs=1e-15) and m_F == pytest.approx([1, 2, -3])


def test_enumeration_by_hand():
    """G = 1, A = r, policy (.35, .1 | .4, .15): m_S = .45, m_F = 0 and the update is .45 g_S."""
    m_S, m_F, residual = decomposition_exact.enumerated(lambda arms: (arms < 2).astype(float), 1)
    assert (m_S, m_F) == pytest.approx((0.45, 0.0)) and residual < 1e-15
    # Weights 1 and 3 tell the successes apart: update .35 s_1 + .3 s_2, against .65 (.35 s_1 + .1 s_2)/.45
    _, _, residual = decomposition_exact.enumerated(lambda arms: np.array([1.0, 3.0, 0.0, 0.0])[arms], 1)
    s = np.eye(4) - decomposition_exact.POLICY
    update = 0.35 * s[0] + 0.3 * s[1]
    said = 0.65 * (0.35 * s[0] + 0.1 * s[1]) / 0.45
    assert residual == pytest.approx(np.linalg.norm(update - said) / np.linalg.norm(update), rel=1e-12)


def test_a_table_that_is_not_the_rules_is_noticed(monkeypatch):
    rule = make("power", alpha=3.0)
    assert decomposition_exact.table_error(rule, 6) < 1e-11

    def other(method, group_size, batch=None):
        table = weight_table(method, group_size)
        table[2, 0] += 1e-6
        return table

    monkeypatch.setattr(decomposition_exact, "weight_table", other)
    assert decomposition_exact.table_error(rule, 6) == pytest.approx(1e-6 / abs(weight_table(rule, 6)).max(), rel=1e-2)


def test_masses_measured_on_given_groups():
    """Groups of 2 with 1 and 2 successes at p = 1/2, rule reinforce: m_S (1/2 + 1)/2 against 1/2; m_F 0 against 0."""
    c, p = np.array([[[1, 2]]]), np.full((1, 1, 2), 0.5)
    off, exact = decomposition_exact.measured_masses(make("reinforce"), 2, c, p)
    assert off[:, 0] == pytest.approx([0.25, 0.0]) and exact[:, 0] == pytest.approx([0.5, 0.0])
    # dapo keeps the mixed group only: A = (1 - 1/2)/(std + eps), std of (0, 1) with ddof 1 = 1/sqrt 2; mass 1/2 of that
    off, exact = decomposition_exact.measured_masses(make("dapo"), 2, c, p)
    assert exact[:, 0] == pytest.approx(2 * [0.25 * 2**0.5], rel=1e-5) and abs(off).max() < 1e-15


def test_drawn_groups_are_those_of_the_policy():
    """Successes - G p of the groups with p from .1 to .9 (some 5000) have mean 0 and, in units of their standard
    deviation, spread 1 (error .02). The old policy, or groups of another prompt, would show."""
    c, p = decomposition_exact.drawn_groups({"steps": 200, "group_size": 8, "lr": 10.0, "lr_table": 0.0}, 4)
    inside = abs(p - 0.5) <= 0.4
    z = ((c - 8 * p) / np.sqrt(8 * p * (1 - p)))[inside]
    assert abs(z.mean()) < 4 / z.size**0.5 and abs((z**2).mean() - 1) < 0.08
    assert p[:, -20:].mean() > p[:, :20].mean() + 0.1  # it trains


def test_end_to_end(tmp_path):
    settings = {"group_size": 5, "enumerate": 3, "train": {"lr": 10.0, "steps": 20}, "seeds": 2}
    results = decomposition.run(settings, Cells(tmp_path / "cells", threads=1))
    got = decomposition.score(results)
    assert len(got.conditions) == 3
    decomposition.figure(results, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
