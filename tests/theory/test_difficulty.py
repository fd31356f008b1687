"""The difficulty axis: exact fractions, enumeration of rollouts, and figures that were sampled independently."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from fade_sim.errors import InputError
from fade_sim.theory.difficulty import (
    READINGS,
    average,
    break_even,
    group_snr,
    kish_share,
    optimal_alpha,
    peak_ratio,
    power_peak,
    quality,
    weighted_variance,
)

# --- variance of the weighted estimate ------------------------------------------------------------------


def test_weighted_variance_by_hand():
    # G = 2, p = 1/2, w = 1 - phat: c = 0, 1, 2 with chance 1/4, 1/2, 1/4; ghat = 1/4 plus noise of variance
    # 1/8 if c = 1, else 0. E[w ghat] = 1/16; E|w ghat|^2 = 1/2 1/4 (1/16 + 1/8) = 3/128; exact 3/128 - 1/256 = 5/256.
    # v0 = 1/2 3/16 - 1/64 = 5/64, s = 1/8, Var w = 1/8: two terms 5/256 + 1/512. w is uncorrelated with ghat here.
    out = weighted_variance(lambda x: 1 - x, 2, 0.5)
    assert (out.signal, out.exact, out.two_term) == pytest.approx((1 / 16, 5 / 256, 11 / 512), rel=1e-14)
    assert (out.covariance, out.rest) == pytest.approx((0.0, -1 / 512), abs=1e-16)


@pytest.mark.parametrize("p", [0.15, 0.8])
def test_weighted_variance_equals_enumeration_of_rollouts(p):
    """All 2^5 reward patterns; the score is r - p along the logit, plus unit noise in directions of its own."""
    G, noise, alpha = 5, 0.7, 3.0
    moments = np.zeros(2)
    for rewards in itertools.product((0, 1), repeat=G):
        r = np.array(rewards)
        w, advantage = (1 - r.mean()) ** (alpha - 1), r - r.mean()
        along = w * (advantage * (r - p)).mean()
        across = w**2 * noise * (advantage**2).sum() / G**2  # mean square of the noise part
        moments += np.prod(np.where(r, p, 1 - p)) * np.array([along, along**2 + across])
    out = weighted_variance(lambda x: (1 - x) ** (alpha - 1), G, p, noise)
    assert out.signal == pytest.approx(moments[0], rel=1e-12)
    assert out.exact == pytest.approx(moments[1] - moments[0] ** 2, rel=1e-12)


def test_parts_add_up_and_a_constant_weight_leaves_one():
    p = np.linspace(0.05, 0.95, 7)
    out = weighted_variance(lambda x: (1 - x) ** 2, 16, p)
    np.testing.assert_allclose(out.two_term + out.covariance + out.rest, out.exact, rtol=1e-13)
    # w falls with phat; ghat rises with it below 1/2 and falls above: the covariance changes sign there.
    assert (out.covariance[:3] < 0).all() and (out.covariance[4:] > 0).all()
    plain = weighted_variance(lambda x: 2.0, 16, p)
    np.testing.assert_allclose(plain.exact, plain.two_term, rtol=1e-12)
    np.testing.assert_allclose(plain.exact, 4 * weighted_variance(lambda x: 1.0, 16, p).exact, rtol=1e-12)


@pytest.mark.parametrize(("group_size", "alpha", "ratios"), [
    (16, 2.0, (1.19, 1.24, 1.00, 0.70, 0.35)),
    (16, 3.0, (1.39, 1.40, 0.95, 0.55, 0.15)),
    (256, 3.0, (1.25, 1.45, 1.01, 0.72, 0.54)),
])
def test_two_term_formula_misses_by_the_measured_amount(group_size, alpha, ratios):
    """Formula over exact at p = .1, .3, .5, .7, .9. The figures were sampled (40,000 groups: error about 1%)."""
    out = weighted_variance(lambda x: (1 - x) ** (alpha - 1), group_size, np.array([0.1, 0.3, 0.5, 0.7, 0.9]))
    np.testing.assert_allclose(out.two_term / out.exact, ratios, atol=0.015)


def test_signal_to_noise_of_one_group():
    # Sampled figures (40,000 groups), error .01.
    assert group_snr(1.0, 16, 0.5) == pytest.approx(1.92, abs=0.02)
    assert group_snr(2.0, 16, np.array([0.3, 0.5])) == pytest.approx([1.69, 1.72], abs=0.02)
    assert group_snr(3.0, 16, np.array([0.3, 0.5, 0.9])) == pytest.approx([1.64, 1.40, 0.47], abs=0.02)
    assert group_snr(1.0, 16, 0.9) == pytest.approx(0.91, abs=0.02)
    one, three = (group_snr(a, 64, np.array([0.2, 0.5, 0.9])) for a in (1.0, 3.0))
    assert (one[0], three[0]) == pytest.approx((2.73, 3.05), abs=0.02)
    np.testing.assert_allclose(three / one, [1.12, 0.72, 0.47], atol=0.005)
    # Hard prompts: alpha gains next to nothing there.
    hard = np.array([0.02, 0.05, 0.1])
    np.testing.assert_allclose(group_snr(3.0, 16, hard) / group_snr(1.0, 16, hard), 1.0, atol=0.06)


# --- averages ---------------------------------------------------------------------------------------------


def test_kish_share_of_uniform_solve_rates_is_exact():
    """(int p q^a)^2 / int p^2 q^2a with int p^i q^j = i! j! / (i+j+1)!: 5/6, 35/48, 63/100."""
    for alpha, known in ((1, Fraction(5, 6)), (2, Fraction(35, 48)), (3, Fraction(63, 100))):
        def integral(i, j):
            return Fraction(math.factorial(i) * math.factorial(j), math.factorial(i + j + 1))

        assert integral(1, alpha) ** 2 / integral(2, 2 * alpha) == known
        assert kish_share(alpha) == pytest.approx(float(known), rel=1e-12)


def test_averages_over_data_densities_and_parts():
    def square(p):
        return p**2

    assert average(square) == pytest.approx(1 / 3, rel=1e-13)
    assert average(square, low=0.25, high=0.5) == pytest.approx((0.5**3 - 0.25**3) / 3, rel=1e-13)
    # Beta(2, 3), unnormalised: E p^2 = 2*3/(5*6) = 1/5. Arcsine law, infinite at both ends: E p^2 = 3/8.
    assert average(square, lambda p: p * (1 - p) ** 2) == pytest.approx(0.2, rel=1e-12)
    assert average(square, lambda p: 1 / np.sqrt(p * (1 - p))) == pytest.approx(3 / 8, abs=1e-7)
    data = [0.0, 0.25, 0.5, 1.0]
    assert average(square, data) == pytest.approx((0.0625 + 0.25 + 1) / 4, rel=1e-14)
    assert average(square, data, high=0.5) + average(square, data, low=0.5) == pytest.approx(average(square, data))


# --- break-even ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("reading", "wanted"), [
    ("snr", (2.42, 2.18, 2.22, 2.53)),
    ("n_eff", (2.67, 2.38, 2.33, 2.41)),
    ("n_eff_quality", (math.inf, 13.5, 8.7, 7.2)),
])
def test_break_even_depends_on_the_reading_and_on_what_is_hard(reading, wanted):
    """alpha 3 against 1, uniform solve rates, hard below 1/2, 2/5, 1/3, 1/4: never 2.25."""
    got = [break_even(3.0, cut=cut, reading=reading) for cut in (0.5, 0.4, 1 / 3, 0.25)]
    assert got == pytest.approx(wanted, abs=0.05 if reading == "n_eff_quality" else 0.006)


def test_break_even_by_hand():
    # Two kinds of prompts, half at p = 1/4 and half at 3/4, reading "signal", no scale match, cut 1/2:
    # alpha 1 has masses 3/16, 3/16; alpha 2 has 9/64, 3/64: 9 R + 3 = 12 R + 12 never holds for R > 0.
    # Matched at p = 1/2 (C = 2): 18 R + 6 = 12 R + 12, so R = 1.
    # Matched peak (C = 27/16): (243/16) R + 81/16 = 12 R + 12.
    rates = [0.25, 0.75]
    kind = {"reading": "signal", "solve_rates": rates}
    assert break_even(2.0, **kind) == math.inf
    assert break_even(2.0, scale="half", **kind) == pytest.approx(1.0, rel=1e-12)
    assert break_even(2.0, scale="peak", **kind) == pytest.approx((12 - 81 / 16) / (243 / 16 - 12), rel=1e-12)


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("rates", [None, lambda p: p * (1 - p) ** 3, np.linspace(0.01, 0.99, 57)])
def test_qualities_are_equal_at_break_even(reading, rates):
    kind = {"reading": reading, "solve_rates": rates, "scale": "half"}
    ratio = break_even(2.5, than=1.5, cut=0.4, **kind)
    if math.isinf(ratio):
        return

    def signal(p):
        return np.where(p < 0.4, ratio, 1.0)

    # The jump at the cut is integrated in two parts inside break_even, in one here: hence 1%.
    one, other = (quality(a, signal, **kind) for a in (2.5, 1.5))
    assert one == pytest.approx(other, rel=0.01)
    # and more signal on hard prompts favours the larger alpha
    more = [quality(a, lambda p: np.where(p < 0.4, 2 * ratio, 1.0), **kind) for a in (2.5, 1.5)]
    assert more[0] > more[1]


def test_scale_match_matters_to_the_signal_reading_only():
    for reading in READINGS:
        values = {break_even(3.0, reading=reading, cut=0.4, scale=s) for s in ("none", "peak", "mean", "half")}
        assert (len({round(v, 9) for v in values}) > 1) == (reading == "signal"), reading


def test_peak_ratio_is_one_reading_of_two_and_a_quarter():
    assert peak_ratio(3.0) == pytest.approx(2.25, rel=1e-14)  # ((3/4)/(1/2))^2
    assert [peak_ratio(3.0, scale=s) for s in ("none", "peak", "mean")] == pytest.approx([9 / 16, 4 / 3, 15 / 8])
    assert peak_ratio(3.0, at=0.5) == pytest.approx(1.0)  # what `half` holds fixed
    assert peak_ratio(2.0) == pytest.approx(2 * 2 / 3)  # ((2/3)/(1/2))^1 at p = 1/3


# --- best alpha ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rates", [None, lambda p: p * (1 - p) ** 3, np.linspace(0.01, 0.9, 40) ** 2])
@pytest.mark.parametrize("j", [0.5, 1.0, 2.0])
def test_optimal_alpha_maximises_the_signal_to_noise(rates, j):
    alphas = np.round(np.arange(1.0, 4.0, 0.05), 2)
    curve = [quality(a, lambda p: (1 - p) ** j, reading="snr", solve_rates=rates) for a in alphas]
    assert alphas[int(np.argmax(curve))] == pytest.approx(optimal_alpha(j), abs=0.026)


def test_power_peak_at_finite_group_size():
    # G = 2: the only mixed group is c = 1, so every alpha peaks at 1/2. G = 3, alpha = 2: m_S is
    # proportional to 3 p q^2 1/3 4/9 + 3 p^2 q 2/3 1/9 ~ 2 p q^2 + p^2 q = 2p - 3p^2 + p^3: p = 1 - 1/sqrt 3.
    assert power_peak(3.0, 2) == pytest.approx(0.5, abs=1e-6)
    assert power_peak(2.0, 3) == pytest.approx(1 - 1 / math.sqrt(3), abs=1e-6)
    assert power_peak(1.0, 16) == pytest.approx(0.5, abs=1e-6)
    peaks = [power_peak(3.0, G) for G in (4, 8, 64, 1000)]
    assert (np.diff(peaks) < 0).all() and peaks[-1] == pytest.approx(0.25, abs=5e-4)


def test_bad_input_is_refused():
    for call in (lambda: quality(2.0, reading="snrr"), lambda: peak_ratio(2.0, scale="halff"),
                 lambda: break_even(1.0), lambda: average(lambda p: p, [0.5, 1.5])):
        with pytest.raises(InputError):
            call()
