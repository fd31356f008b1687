"""Values at matched solve rate, and lines through rules, against arithmetic by hand."""

import numpy as np
import pytest

from fade_sim.experiments import matched
from fade_sim.sim import Trace


def test_first_crossing_between_records():
    """.5 -> .7: through .6 half way, 1 + .1/.2 = 1.5. The second rise through it, after a fall, does not count."""
    curve = [0.3, 0.5, 0.7, 0.4, 0.9]
    assert matched.crossing(curve, 0.6) == pytest.approx(1.5)
    assert matched.crossing(curve, 0.8) == pytest.approx(3.8)  # .4 -> .9: 3 + .4/.5
    assert matched.crossing(curve, 0.5) == pytest.approx(1.0)  # at a record


def test_never_crossed_is_nan_and_so_is_a_start_above():
    found = matched.crossing([[0.1, 0.2, 0.3], [0.8, 0.7, 0.9], [0.1, 0.2, 0.6]], 0.6)
    assert np.isnan(found[:2]).all() and found[2] == 2.0


def test_a_metric_is_read_at_each_runs_own_crossing():
    """Rule a crosses .5 at record .5 (entropy 3 -> 1: 2), seed 2 at 1.25 (1 -> 5: 2); rule b never in seed 1."""
    solve = np.array([[[0.4, 0.6, 0.6], [0.1, 0.4, 0.8]], [[0.1, 0.1, 0.2], [0.0, 0.5, 0.9]]])
    H = np.array([[[3.0, 1.0, 9.0], [9.0, 1.0, 5.0]], [[1.0, 1.0, 1.0], [4.0, 7.0, np.nan]]])
    trace = Trace(("a", "b"), (0, 1), np.array([0, 10, 40]), {"train_pass@1": solve, "H": H})
    found = matched.at_solve_rate(trace, "H", 0.5)
    assert found[0] == pytest.approx([2.0, 2.0])
    assert np.isnan(found[1, 0]) and found[1, 1] == 7.0  # exactly at a record: its undefined neighbour is not read
    steps = matched.steps_to(trace, 0.5)
    assert steps[0] == pytest.approx([5.0, 17.5]) and np.isnan(steps[1, 0])  # 10 + .25 * 30


def test_line_by_hand():
    """x = -1, 0, 1. Seed 1: 0, 1, 2, slope 1. Seed 2: 0, 3, 0, slope 0. Means 0, 2, 1: slope 1/2, total 2,
    explained .25 * 2 = .5, so R^2 = 1/4."""
    found = matched.fit([-1, 0, 1], [[0, 0], [1, 3], [2, 0]])
    assert found.slopes == pytest.approx([1, 0])
    assert found.means == pytest.approx([0, 2, 1]) and found.r2 == pytest.approx(0.25)


def test_a_seed_with_a_gap_has_no_line_and_is_counted():
    found = matched.fit([0, 1, 2], [[1, 1, 1], [2, np.nan, 2], [3, 3, np.nan]])
    assert found.slopes == pytest.approx([1]) and found.missing.tolist() == [0, 1, 1]
    assert found.r2 == pytest.approx(1) and found.means == pytest.approx([1, 2, 3])
    nothing = matched.fit([0, 1], [[np.nan, np.nan], [1, 1]])
    assert len(nothing.slopes) == 0 and np.isnan(nothing.r2) and np.isnan(nothing.means).all()


def test_no_spread_has_no_r2_and_no_line_through_one_x():
    assert np.isnan(matched.fit([0, 1, 2], np.full((3, 4), 0.1)).r2)
    for x in ([1, 1], [0, np.inf]):
        with pytest.raises(ValueError, match="two different finite"):
            matched.fit(x, np.zeros((2, 3)))


def test_log_sign_ratio_is_log_delta_for_asym_delta():
    """asym_delta: m_S/m_F = delta in every group. baseline(b) at p = 1/2: (1-b)/b; its ends have one mass only."""
    found = matched.log_sign_ratio(["asym_delta(0.25)", "baseline(0.25)", "baseline(1)", "baseline(0)"], 16)
    assert found[:2] == pytest.approx([np.log(0.25), np.log(3)])
    assert found[2] == -np.inf and found[3] == np.inf
    assert matched.log_sign_ratio(["baseline(0.5)"], 4, p=0.8) == pytest.approx(np.log(4))  # p/q
