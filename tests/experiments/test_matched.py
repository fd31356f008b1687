"""Comparison at equal solve rate: worked numbers, and what happens to runs that never get there."""

import numpy as np
import pytest

from fade_sim.errors import InputError
from fade_sim.experiments import matched
from fade_sim.sim import Trace


def trace(p, **values):
    """Two contenders, two seeds, records at steps 0, 10, 20."""
    values = {"train_pass@1": np.array(p, dtype=float), **{k: np.array(v, dtype=float) for k, v in values.items()}}
    return Trace(("a", "b"), (0, 1), np.array([0, 10, 20]), values)


RUN = trace([[[0.2, 0.6, 0.8], [0.2, 0.4, 0.5]], [[0.6, 0.7, 0.9], [0.1, 0.9, 0.3]]],
            entropy=[[[2.0, 1.0, 0.5], [2.0, 1.5, 1.0]], [[2.0, 1.0, 0.0], [3.0, 1.0, 2.0]]])


def test_the_value_at_the_first_crossing_is_interpolated():
    # run (a, 0) crosses .7 half-way from .6 to .8: (1 + .5)/2 = .75 at step 15; (a, 1) ends at .5: never
    # (b, 0) is at .7 exactly at step 10: 1; (b, 1) crosses once, 3/4 of the way from .1 to .9: 3 - .75 * 2 = 1.5
    np.testing.assert_allclose(matched.at_level(RUN, "entropy", 0.7), [[0.75, np.nan], [1.0, 1.5]], rtol=1e-14)
    np.testing.assert_allclose(matched.steps_to(RUN, 0.7), [[15.0, np.nan], [10.0, 7.5]], rtol=1e-14)


def test_a_run_that_starts_above_the_level_never_crosses_it():
    assert np.isnan(matched.at_level(RUN, "entropy", 0.55)[1, 0])  # starts at .6
    assert np.isnan(matched.at_level(RUN, "entropy", 0.6)[1, 0])  # starts there: nothing was learnt to reach it


def test_a_metric_without_a_value_beside_the_crossing_has_none():
    run = trace(RUN.values["train_pass@1"], rank1=[[[np.nan, 0.9, 0.5]] * 2] * 2)
    # (a, 0) crosses .3 from the first record, where rank1 is NaN; .7 after it: (.9 + .5)/2
    assert np.isnan(matched.at_level(run, "rank1", 0.3)[0, 0])
    assert matched.at_level(run, "rank1", 0.7)[0, 0] == pytest.approx(0.7)


def test_an_unknown_metric_is_refused():
    with pytest.raises(InputError, match="entropi"):
        matched.at_level(RUN, "entropi", 0.7)


def test_a_number_is_over_the_seeds_that_have_a_value_and_says_how_many_lack_it():
    # 1, 2, 3: mean 2, standard error 1/sqrt 3, t(2, .975) = 4.302653
    got = matched.number("x", [1.0, np.nan, 3.0, 2.0], note="here", prototype=".5")
    assert (got.value, got.seeds, got.note) == (2.0, 3, "here; 1 of 4 seeds have no value")
    assert got.high - 2.0 == pytest.approx(4.302653 / 3**0.5, rel=1e-6) and got.low == pytest.approx(4.0 - got.high)
    assert matched.number("x", [1.0, 2.0]).note == ""
    alone, none = matched.number("x", [1.0, np.nan]), matched.number("x", [np.nan, np.nan])
    assert (alone.value, alone.seeds) == (1.0, 1) and np.isnan([alone.low, alone.high]).all()
    assert none.seeds == 0 and np.isnan(none.value) and "2 of 2" in none.note


def test_differences_are_paired_by_seed():
    # 11 - 1, 22 - 2, 33 - 13 = 10, 20, 20; the seed that one of the two lacks counts for neither
    got = matched.paired("d", [11.0, 22.0, 33.0, np.nan], [1.0, 2.0, 13.0, 4.0])
    assert got.value == pytest.approx(50 / 3) and got.seeds == 3


def test_slope_per_seed_and_r2_of_the_means():
    # seed 0: 1, 3, 5 on -1, 0, 1: slope 2; seed 1: 0, 0, 3: slope (3 - 0)/2 = 1.5
    # means .5, 1.5, 4: around the mean 2 are -1.5, -.5, 2 (sum of squares 6.5); line 1.75 x leaves .25, -.5, .25: .375
    line = matched.slope([-1.0, 0.0, 1.0], [[1.0, 0.0], [3.0, 0.0], [5.0, 3.0]])
    np.testing.assert_allclose(line.per_seed, [2.0, 1.5], rtol=1e-14)
    assert line.r2 == pytest.approx(1 - 0.375 / 6.5)
    assert matched.slope_number("s", [-1.0, 0.0, 1.0], [[1.0, 0.0], [3.0, 0.0], [5.0, 3.0]]).note == "R2 0.94"


def test_a_seed_that_lacks_a_contender_has_no_slope_and_leaves_r2():
    line = matched.slope([0.0, 1.0, 2.0], [[1.0, 0.0], [2.0, np.nan], [3.0, 9.0]])
    assert line.per_seed[0] == pytest.approx(1.0) and np.isnan(line.per_seed[1]) and line.r2 == pytest.approx(1.0)
    got = matched.slope_number("s", [0.0, 1.0, 2.0], [[1.0, 0.0], [2.0, np.nan], [3.0, 9.0]])
    assert got.seeds == 1 and "1 of 2 seeds have no value" in got.note


def test_r2_has_no_value_where_the_means_do_not_differ():
    assert np.isnan(matched.slope([0.0, 1.0], [[0.5, 0.7], [0.5, 0.7]]).r2)
    assert np.isnan(matched.slope([0.0, 1.0], [[np.nan], [1.0]]).r2)
    with pytest.raises(InputError, match="differ"):
        matched.slope([1.0, 1.0], [[0.5], [0.6]])


def test_log_sign_ratio_is_of_mean_masses_and_bounded():
    # a: (.1 + .3)/2 over (.2 + .2)/2 = 1: log 0; b weighs no failures: bounded at log 1000
    m_S = [[[0.1] * 3, [0.3] * 3], [[0.5] * 3] * 2]
    m_F = [[[0.2] * 3, [0.2] * 3], [[0.0] * 3] * 2]
    np.testing.assert_allclose(matched.log_sign_ratio(trace(RUN.values["train_pass@1"], m_S=m_S, m_F=m_F)),
                               [0.0, np.log(1000)], atol=1e-15)
