"""Rules that read lengths, log-probabilities or a greedy rollout: worked numbers and refusals."""

import math

import numpy as np
import pytest

from fade_sim.advantage import advantages, make
from fade_sim.advantage.more_inputs import delightful, ds_grpo, empirical_masses, opo, remax
from fade_sim.errors import InputError


def test_opo_by_hand():
    """Baseline (1*1 + 2*1)/(1 + 3 + 2 + 2) = 3/8; sign ratio = L_F/L_S = 2.5/1.5."""
    r, length = [1, 0, 1, 0], [1, 3, 2, 2]
    a = opo(r, length, [5, 5, 5, 5])
    np.testing.assert_allclose(a, [0.625, -0.375, 0.625, -0.375], rtol=1e-15)
    m_S, m_F = empirical_masses(r, a)
    assert (m_S, m_F) == pytest.approx((0.3125, 0.1875))
    assert m_S / m_F == pytest.approx(2.5 / 1.5)


def test_opo_of_equal_lengths_is_dr_grpo_in_any_order_and_a_singleton_gets_0():
    rng = np.random.default_rng(0)
    r, ids = rng.integers(0, 2, 40), rng.permutation(np.repeat(np.arange(8), 5))
    np.testing.assert_allclose(opo(r, np.full(40, 7), ids), advantages(r, ids, make("dr_grpo")), atol=1e-15)
    assert opo([1], [3], [0]).tolist() == [0.0]


def test_remax_is_nsr_or_reinforce_per_prompt():
    r = [1, 0, 1, 0]
    assert remax(r, [1, 1, 0, 0]).tolist() == [0, -1, 1, 0]
    assert remax(r, [1] * 4).tolist() == advantages(r, [0] * 4, make("nsr")).tolist()
    assert remax(r, [0] * 4).tolist() == advantages(r, [0] * 4, make("reinforce")).tolist()


def test_delightful_by_hand():
    """l = ln 3: sigma(ln 3) = 3/4 for A = 1, -sigma(-ln 3) = -1/4 for A = -1; l = 0: half; eta = 2: sigma(ln(3)/2)."""
    log3 = math.log(3)
    np.testing.assert_allclose(delightful([1, -1, 1], [-log3, -log3, 0.0]), [0.75, -0.25, 0.5], rtol=1e-15)
    np.testing.assert_allclose(delightful([1], [-log3], eta=2.0), [math.sqrt(3) / (1 + math.sqrt(3))], rtol=1e-15)
    assert delightful([1, -1], [-1e300, -1e300]).tolist() == pytest.approx([1.0, 0.0])


def test_ds_grpo_by_hand():
    """grpo (ddof 0): .5/(.5 + 1e-6); bonus -.05 * -2 for the success, +.05 * -1 for the failure; uniform groups too."""
    base = 0.5 / (0.5 + 1e-6)
    a = ds_grpo([1, 0, 1, 1], [-2.0, -1.0, -2.0, -4.0], [0, 0, 1, 1])
    np.testing.assert_allclose(a, [base + 0.1, -base - 0.05, 0.1, 0.2], rtol=1e-14)


def test_empirical_masses_by_hand():
    """dr_grpo, 1 of 4: m_S = 1/4 * 3/4, m_F = 3/4 * 1/4."""
    r = [0, 1, 0, 0]
    assert empirical_masses(r, advantages(r, [0] * 4, make("dr_grpo"))) == (0.1875, 0.1875)


@pytest.mark.parametrize("call, expected", [
    (lambda: opo([1, 2], [1, 1], [0, 0]), "reward 1 is 2, expected 0 or 1"),
    (lambda: opo([1, 0], [1, 0], [0, 0]), "lengths must be positive"),
    (lambda: opo([1, 0], [1], [0, 0]), "expected one per rollout"),
    (lambda: opo([1, 0], [1, 1], [0.0, 0.0]), "expected one integer id per rollout"),
    (lambda: remax([1, 0], [1, 0.5]), "reward 1 is 0.5"),
    (lambda: delightful([1], [0.1]), "at most 0"),
    (lambda: delightful([1], [-1], eta=0), "eta is 0, expected a number above 0"),
    (lambda: ds_grpo([1, 0], [-1, math.nan], [0, 0]), "finite and at most 0"),
])
def test_bad_input(call, expected):
    with pytest.raises(InputError, match=expected):
        call()
