"""pass@k of a solve rate: identities, peaks, and which rules climb it."""

import math

import numpy as np
import pytest

from fade_sim.advantage import make
from fade_sim.errors import InputError
from fade_sim.theory import masses, population_masses
from fade_sim.theory.passk import (
    balanced_mass,
    balanced_peak,
    exact_pass_at_k,
    harmonic_mix,
    harmonic_slope,
    pass_at_k_slope,
    success_only_mass,
    success_only_peak,
)

P = np.linspace(0.001, 0.999, 41)
K = np.array([1, 2, 4, 16, 100])[:, None]


def test_pass_at_k_by_hand_and_for_small_p():
    assert exact_pass_at_k(0.25, 2) == pytest.approx(7 / 16, rel=1e-15)
    assert exact_pass_at_k([0.0, 1.0], 3).tolist() == [0.0, 1.0]
    # 1 - (1-p)^k in plain arithmetic is off by 1e-4 here: k p - C(k,2) p^2
    assert exact_pass_at_k(1e-12, 100) == pytest.approx(1e-10 - 4950e-24, rel=1e-14)


def test_slope_is_the_derivative():
    h = 1e-6
    difference = (exact_pass_at_k(P[1:-1] + h, K) - exact_pass_at_k(P[1:-1] - h, K)) / (2 * h)
    np.testing.assert_allclose(pass_at_k_slope(P[1:-1], K), difference, rtol=1e-6, atol=1e-8)


def test_both_mass_forms_climb_pass_at_k():
    q = 1 - P
    np.testing.assert_allclose(success_only_mass(P, K) / P, pass_at_k_slope(P, K), rtol=1e-12)
    np.testing.assert_allclose(balanced_mass(P, K) * (1 / P + 1 / q), pass_at_k_slope(P, K), rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 3.5, 10])
def test_peaks(k):
    grid = np.linspace(0, 1, 200_001)
    assert grid[np.argmax(success_only_mass(grid, k))] == pytest.approx(success_only_peak(k), abs=5e-6)
    assert grid[np.argmax(balanced_mass(grid, k))] == pytest.approx(balanced_peak(k), abs=5e-6)
    assert (success_only_peak(k), balanced_peak(k)) == pytest.approx((1 / k, 1 / (k + 1)))


def test_rules_that_climb_pass_at_k():
    """Power(alpha) is pass@alpha / alpha in the limit; PKPO's leave-one-out-minus-one is pass@k at every G."""
    for alpha in (1.0, 2.0, 3.0):
        m_S, _ = population_masses(make("power", alpha=alpha), P)
        np.testing.assert_allclose(alpha * m_S, balanced_mass(P, alpha), rtol=1e-12)
    m_S, m_F = masses(make("pass_at_k_loo1", k=3), 6, P)
    np.testing.assert_allclose(m_S, success_only_mass(P, 3), rtol=1e-10)
    assert not np.any(m_F)


def test_harmonic_mix_tends_to_the_log_likelihood():
    for order in (1, 3, 12):
        h = 1e-6
        difference = (harmonic_mix(P[1:-1] + h, order) - harmonic_mix(P[1:-1] - h, order)) / (2 * h)
        np.testing.assert_allclose(harmonic_slope(P[1:-1], order), difference, rtol=1e-6)
        terms = sum(pass_at_k_slope(P, k) / k for k in range(1, order + 1))
        np.testing.assert_allclose(harmonic_slope(P, order), terms, rtol=1e-12)
    numbers = sum(1 / k for k in range(1, 401))
    assert harmonic_mix(0.3, 400) == pytest.approx(math.log(0.3) + numbers, abs=1e-12)
    assert harmonic_slope([0.0, 0.25]).tolist() == [math.inf, 4.0]
    assert harmonic_slope(0.0, 8) == 8.0


def test_maxrl_is_the_harmonic_mix_of_its_group_size():
    """The paper's estimator has order G, the centred public code order G - 1."""
    G = 7
    for rule, order in (("maxrl", G), ("maxrl_coded", G - 1)):
        m_S, m_F = masses(make(rule), G, P)
        np.testing.assert_allclose(m_S / P + m_F / (1 - P), harmonic_slope(P, order), rtol=1e-10, err_msg=rule)


def test_bad_input_is_refused():
    for call in (lambda: exact_pass_at_k(1.1, 2), lambda: exact_pass_at_k(0.5, 0), lambda: harmonic_mix(0.5, 0),
                 lambda: pass_at_k_slope(np.nan, 1)):
        with pytest.raises(InputError):
            call()
