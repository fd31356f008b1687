"""Diagnostics against numbers worked by hand, exact fractions and enumeration."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from fade_sim.advantage import make, weight_table
from fade_sim.diagnostics import (
    entropy_split,
    expected_masses,
    pass_at_k,
    pass_at_k_interval,
    spectrum,
    subset_probabilities,
)
from fade_sim.errors import InputError

# --- pass@k -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "c", "k", "value"), [
    (10, 1, 8, 0.8),  # 1 - C(9,8)/C(10,8) = 1 - 9/45
    (3, 0, 3, 0.0),  # nothing passed
    (3, 1, 3, 1.0),  # all three drawn
    (4, 1, 2, 0.5),  # 1 - C(3,2)/C(4,2) = 1 - 3/6; the plug-in 1 - .75^2 = .4375 is biased low
    (5, 3, 3, 1.0),  # only two failures: a draw of three must hold a success
    (7, 2, 1, 2 / 7),
    (1, 0, 1, 0.0),
])
def test_pass_at_k_by_hand(n, c, k, value):
    assert pass_at_k(n, c, k) == pytest.approx(value, abs=1e-15)


@pytest.mark.parametrize(("n", "c", "k"), [
    (2000, 10, 1000), (2000, 2, 100), (2000, 1000, 1000), (2000, 1, 1999), (2000, 1999, 1),
    (5000, 3, 2500), (64, 63, 64),
])
def test_pass_at_k_equals_the_exact_fraction_where_binomials_overflow(n, c, k):
    exact = float(1 - Fraction(math.comb(n - c, k), math.comb(n, k)))
    assert pass_at_k(n, c, k) == pytest.approx(exact, rel=1e-12)


def test_pass_at_k_published_large_values():
    assert pass_at_k(2000, 10, 1000) == pytest.approx(0.9990452674, abs=1e-10)
    assert pass_at_k(2000, 2, 100) == pytest.approx(0.0975237619, abs=1e-10)


def test_pass_at_k_broadcasts_and_equals_enumeration():
    # Every subset of size k of every outcome of 6 rollouts.
    for k in range(1, 7):
        counted = [
            np.mean([any(i < c for i in subset) for subset in itertools.combinations(range(6), k)]) for c in range(7)
        ]
        np.testing.assert_allclose(pass_at_k(6, np.arange(7), k), counted, rtol=0, atol=1e-15)
    both = pass_at_k(6, np.arange(7)[:, None], np.arange(1, 7))
    np.testing.assert_array_equal(both[:, 2], pass_at_k(6, np.arange(7), 3))


@pytest.mark.parametrize("p", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_pass_at_k_is_unbiased(p, k):
    # Exact expectation over c ~ Binomial(8, p) is 1 - (1-p)^k; the plug-in misses it (by .09 at p = .5, k = 3).
    n = 8
    c = np.arange(n + 1)
    chance = np.array([math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in c])
    assert chance @ pass_at_k(n, c, k) == pytest.approx(1 - (1 - p) ** k, abs=1e-13)


@pytest.mark.parametrize(("args", "message"), [
    ((3, 0, 8), "n is 3, expected at least k = 8"),  # never 1
    (([10, 4], [1, 0], 8), "n is 4 at index 1, expected at least k = 8"),  # one short prompt does not inflate a mean
    ((3, 4, 1), "c is 4, expected at most n = 3"),
    (([3, 3], [1, -1], 1), "c is -1 at index 1, expected at least 0"),
    ((-1, 0, 1), "n is -1, expected at least 0"),
    ((3, 1, 0), "k is 0, expected at least 1"),
    ((3, 1.5, 1), "c is 1.5, expected integers"),
    ((3, float("nan"), 1), "c is nan, expected integers"),
    ((3, "1", 1), "c is '1', expected integers"),
    ((3, True, 1), "c is True, expected integers"),
    ((10**30, 1, 1), f"n is {10**30}, expected integers"),
])
def test_pass_at_k_refuses(args, message):
    with pytest.raises(InputError) as caught:
        pass_at_k(*args)
    assert str(caught.value) == message


# --- interval ---------------------------------------------------------------------------------------


def test_interval_when_every_prompt_failed_or_passed():
    # Clopper-Pearson for 0 of 10: 1 - .025^(1/10) = .30850. Rollouts do not count as prompts.
    zero = pass_at_k_interval([0] * 10, [16] * 10, 4)
    assert zero == pytest.approx((0.0, 0.0, 1 - 0.025**0.1), abs=1e-12)
    assert pass_at_k_interval([16] * 10, [16] * 10, 4) == pytest.approx((1.0, 0.025**0.1, 1.0), abs=1e-12)


def test_interval_by_hand():
    # Four prompts at pass@1 = 0, .5, .5, 1: mean .5, se^2 = (.25 + .25)/3/4 = 1/24, so .25 * 24 = 6
    # effective prompts, times (1.95996/3.18245)^2 = .37929: 2.27573. Clopper-Pearson at half of it.
    from scipy.stats import beta

    size = 6 * (1.959963984540054 / 3.182446305284263) ** 2
    expected = (0.5, beta.ppf(0.025, size / 2, size / 2 + 1), beta.ppf(0.975, size / 2 + 1, size / 2))
    assert pass_at_k_interval([0, 2, 2, 4], [4] * 4, 1) == pytest.approx(expected, abs=1e-10)


def test_interval_for_many_prompts_is_the_normal_one():
    # 2000 prompts, half at 0 and half at .5: mean .25, se = .25/sqrt(1999) = .0055917.
    estimate, low, high = pass_at_k_interval([0] * 1000 + [4] * 1000, [8] * 2000, 1)
    assert estimate == 0.25
    assert (low, high) == pytest.approx((0.25 - 1.96 * 0.00559, 0.25 + 1.96 * 0.00559), abs=4e-4)


def test_interval_is_by_prompt_not_by_sample():
    # Same prompts with a hundred times the rollouts: the spread between prompts stays, so the interval stays.
    few = pass_at_k_interval([0, 1, 2, 4, 4, 0], [4] * 6, 1)
    many = pass_at_k_interval([0, 100, 200, 400, 400, 0], [400] * 6, 1)
    assert few[0] == many[0]
    assert few[1:] == pytest.approx(many[1:], abs=1e-12)


def test_interval_widens_with_level_and_is_deterministic():
    data = ([0, 1, 3, 8, 2, 0, 5], [8] * 7, 2)
    narrow, wide = pass_at_k_interval(*data, level=0.5), pass_at_k_interval(*data, level=0.99)
    assert wide[1] < narrow[1] < narrow[0] < narrow[2] < wide[2]
    assert pass_at_k_interval(*data) == pass_at_k_interval(*data)


def test_interval_clusters_the_steps_of_a_prompt():
    # Each of 6 prompts recorded 5 times over: the same information as once.
    c, n = [0, 1, 2, 4, 4, 1], [4] * 6
    once = pass_at_k_interval(c, n, 1)
    repeated = pass_at_k_interval(c * 5, n * 5, 1, prompts=["a", "b", "c", "d", "e", "f"] * 5)
    assert repeated == pytest.approx(once, abs=1e-12)
    naive = pass_at_k_interval(c * 5, n * 5, 1)
    assert naive[2] - naive[1] < 0.6 * (once[2] - once[1])


@pytest.mark.parametrize(("a", "b", "prompts", "k"), [(0.3, 0.7, 20, 1), (0.1, 2.0, 100, 8), (2.0, 2.0, 20, 1)])
def test_interval_covers(a, b, prompts, k):
    # Solve rates ~ Beta(a, b), E pass@k = 1 - B(a, b+k)/B(a, b). 400 repeats: standard error of a coverage
    # of .95 is .011; below .91 (3.7 of them) is a fault. An interval by sample covers 39 to 68% here.
    truth = 1 - math.exp(math.lgamma(b + k) + math.lgamma(a + b) - math.lgamma(b) - math.lgamma(a + b + k))
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        c = rng.binomial(16, rng.beta(a, b, prompts))
        _, low, high = pass_at_k_interval(c, np.full(prompts, 16), k)
        hits += low <= truth <= high
    assert hits / 400 >= 0.91


def test_one_prompt_has_an_estimate_and_no_interval():
    estimate, low, high = pass_at_k_interval([1], [4], 2)
    assert estimate == 0.5
    assert math.isnan(low)
    assert math.isnan(high)


@pytest.mark.parametrize(("args", "message"), [
    (([1, 0, 2], [10, 4, 3], 8),
     "pass@8 needs 8 attempts for each prompt: 2 of 3 have fewer, the largest k possible is 3"),
    (([], [], 1), "successes and attempts have shapes (0,) and (0,), expected (P,) each with P >= 1"),
    (([1, 2], [3], 1), "successes and attempts have shapes (2,) and (1,), expected (P,) each with P >= 1"),
    (([1, 2], [3, 3], 0), "k is 0, expected an integer of at least 1"),
    (([1, 5], [3, 3], 1), "successes is 5 at index 1, expected at most attempts = 3"),
])
def test_interval_refuses(args, message):
    with pytest.raises(InputError) as caught:
        pass_at_k_interval(*args)
    assert str(caught.value) == message


def test_interval_refuses_a_level_in_percent():
    with pytest.raises(InputError, match=r"level is 95, expected a number in \(0, 1\)"):
        pass_at_k_interval([1, 2], [3, 3], 1, level=95)


# --- masses from recorded rollouts ------------------------------------------------------------------


@pytest.mark.parametrize(("c", "n", "G"), [(3, 7, 4), (0, 5, 3), (6, 6, 2), (1, 8, 8), (5, 6, 1)])
def test_subset_probabilities_equal_the_enumeration_of_all_subsets(c, n, G):
    drawn = [sum(i < c for i in subset) for subset in itertools.combinations(range(n), G)]
    counted = np.bincount(drawn, minlength=G + 1) / len(drawn)
    np.testing.assert_allclose(subset_probabilities(c, n, G)[0], counted, rtol=0, atol=1e-15)


def test_subset_probabilities_are_exact_for_thousands_of_rollouts():
    row = subset_probabilities([700, 700], [2000, 2000], 500)[1]
    for j in (120, 175, 230):
        exact = Fraction(math.comb(700, j) * math.comb(1300, 500 - j), math.comb(2000, 500))
        assert row[j] == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize("name", ["dr_grpo", "grpo", "power", "reinforce_pm1", "asym_pure_loo"])
@pytest.mark.parametrize("p", [0.1, 0.7])
def test_masses_from_counts_are_unbiased_for_a_smaller_group(name, p):
    # n = 12 recorded, training group G = 5: the mean over c ~ Binomial(12, p) is the exact mass at G = 5.
    n, G = 12, 5
    table = weight_table(make(name), G)

    def binomial(size):
        return np.array([math.comb(size, j) * p**j * (1 - p) ** (size - j) for j in range(size + 1)])

    chance = subset_probabilities(np.arange(n + 1), np.full(n + 1, n), G)
    found = [binomial(n) @ m for m in expected_masses(table, chance)]
    j = np.arange(G + 1)
    exact = [binomial(G) @ (j / G * table[:, 0]), -binomial(G) @ ((1 - j / G) * table[:, 1])]
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_masses_of_the_group_itself():
    # G = n = 4, one success: dr_grpo .25 * .75 = .1875 on either side; asym_delta(.5) doubles the failures.
    chance = subset_probabilities(1, 4, 4)
    for name, expected in (("dr_grpo", [0.1875, 0.1875]), ("asym_delta", [0.1875, 0.375])):
        found = np.concatenate(expected_masses(weight_table(make(name), 4), chance))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-15)


def test_masses_refuse_what_does_not_fit():
    with pytest.raises(InputError, match="attempts is 3 at index 1, expected at least group_size = 4"):
        subset_probabilities([1, 1], [4, 3], 4)
    with pytest.raises(InputError, match=r"chance has shape \(1, 5\), expected \(P, 6\) for this table"):
        expected_masses(weight_table(make("dr_grpo"), 5), subset_probabilities(1, 4, 4))


# --- entropy ----------------------------------------------------------------------------------------


def test_entropy_split_by_hand():
    # (.5, .25, .25), success = first arm: H = .5 ln 2 + 2 * .25 ln 4 = 1.5 ln 2 = 1.03972 (the term of the
    # chosen arm alone is .34657); H_S = 0, a single arm; H_F = ln 2; h(.5) + .5 ln 2 = 1.5 ln 2.
    H, H_S, H_F = entropy_split([0.5, 0.25, 0.25], [True, False, False])
    assert pytest.approx(1.03972, abs=5e-6) == H
    assert H_S == 0.0
    assert pytest.approx(math.log(2), abs=1e-15) == H_F


def test_entropy_split_adds_up():
    rng = np.random.default_rng(1)
    policy = rng.dirichlet(np.full(7, 0.3), size=(4, 5))
    success = rng.random((4, 5, 7)) < 0.5
    success[..., 0], success[..., 1] = True, False
    H, H_S, H_F = entropy_split(policy, success)
    p = (policy * success).sum(-1)
    h = -p * np.log(p) - (1 - p) * np.log1p(-p)
    np.testing.assert_allclose(H, h + p * H_S + (1 - p) * H_F, rtol=0, atol=1e-12)


def test_entropy_of_sets_without_probability():
    H, H_S, H_F = entropy_split([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]], [True, False])
    np.testing.assert_array_equal(H, [0.0, 0.0, math.log(2)])
    np.testing.assert_array_equal(H_S, [0.0, np.nan, 0.0])
    np.testing.assert_array_equal(H_F, [np.nan, 0.0, 0.0])
    assert not np.signbit(H).any()  # never -0.0


def test_entropy_of_a_vanishing_set_is_still_defined():
    # Two successes of 1e-200 each: uniform within the set, ln 2.
    _, H_S, _ = entropy_split([1.0, 1e-200, 1e-200], [False, True, True])
    assert pytest.approx(math.log(2)) == H_S


@pytest.mark.parametrize(("policy", "success", "message"), [
    ([0.5, 0.6], [True, False], "policy sums to 1.1 over the last axis, expected 1"),
    ([1.5, -0.5], [True, False], "policy has negative or non-finite entries, expected probabilities"),
    ([0.5, float("nan")], [True, False], "policy has negative or non-finite entries, expected probabilities"),
    ([0.5, 0.5], [0.5, 1], "success must be True or False for each arm"),
    ([0.5, 0.5], [True, False, True], "success has shape (3,), expected that of policy, (2,)"),
])
def test_entropy_refuses(policy, success, message):
    with pytest.raises(InputError) as caught:
        entropy_split(policy, success)
    assert str(caught.value) == message


# --- spectrum ---------------------------------------------------------------------------------------


def test_spectrum_by_hand():
    # Singular values 2, 1, 1: s^2 = 4, 1, 1. rank1 = 4/6, stable rank 6/4, effective rank
    # exp(2/3 ln(3/2) + 2 * 1/6 ln 6) = 1.5^(2/3) * 6^(1/3) = 2.38110.
    rank1, stable, effective = spectrum(np.diag([1.0, 2.0, -1.0]))
    assert rank1 == pytest.approx(2 / 3)
    assert stable == pytest.approx(1.5)
    assert effective == pytest.approx(1.5 ** (2 / 3) * 6 ** (1 / 3))


@pytest.mark.parametrize("scale", [1.0, 1e-300, 1e300])
def test_spectrum_of_an_outer_product_and_of_an_isometry_at_any_scale(scale):
    outer = np.outer([1.0, 2.0, 0.0], [3.0, 1.0]) * scale
    flat = np.eye(3, 5) * scale
    assert spectrum(outer) == pytest.approx((1.0, 1.0, 1.0), abs=1e-9)
    assert spectrum(flat) == pytest.approx((1 / 3, 3.0, 3.0))


def test_spectrum_of_a_stack_equals_each_and_a_zero_update_is_undefined():
    stack = np.random.default_rng(2).normal(size=(2, 3, 4, 6))
    stack[1, 2] = 0.0
    together = np.array(spectrum(stack))
    for at in np.ndindex(2, 3):
        np.testing.assert_allclose(together[(slice(None), *at)], spectrum(stack[at]), rtol=1e-12)
    assert np.isnan(together[:, 1, 2]).all()
    assert np.isfinite(np.delete(together.reshape(3, 6), 5, axis=1)).all()


def test_spectrum_of_zeros_is_nan_without_a_warning(recwarn):
    assert all(math.isnan(x) for x in spectrum(np.zeros((2, 2))))
    assert not recwarn


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_spectrum_names_non_finite_input(bad):
    with pytest.raises(InputError, match="non-finite input: 1 of 4 entries of the matrix are NaN or infinite"):
        spectrum([[0.0, 0.0], [bad, 1.0]])


def test_spectrum_refuses_a_vector_and_an_empty_matrix():
    with pytest.raises(InputError, match=r"matrix has shape \(3,\)"):
        spectrum([1.0, 2.0, 3.0])
    with pytest.raises(InputError, match=r"matrix has shape \(0, 3\)"):
        spectrum(np.zeros((0, 3)))
