"""Residual correlations and stability meters: hand-worked, against brute force, and against a known world."""

import itertools
import math

import numpy as np
import pytest

from fade_sim.advantage import make
from fade_sim.config import World
from fade_sim.diagnostics import residual_correlation, stability
from fade_sim.errors import InputError
from fade_sim.sim import reference
from fade_sim.sim.world import make_world
from fade_sim.spectral import coordinates, fisher_range
from fade_sim.theory import masses
from fade_sim.theory.stability import growth_factor

# --- residual correlation -----------------------------------------------------------------------------------

U = [1.0, 0.0, 0.0]
HIDDEN = np.array([
    # successes at right angles, then failures back to back; every row carries 2 u1
    [[2, 1, 0], [2, 0, 3], [2, 5, 0], [2, -1, 0]],
    # successes at 60 degrees (cosine 1/2); one failure; one row of padding
    [[2, 1, 0], [2, 0.5, math.sqrt(3) / 2], [2, 0, -1], [9, 9, 9]],
    # a single success: no pair. Failures along one line.
    [[2, 1, 0], [2, 0, 1], [2, 0, 4], [2, 0, 2]],
], dtype=float)
WEIGHT = np.array([[0.5, 0.25, 0.125, 0.125], [0.3, 0.1, 0.6, 0.0], [0.7, 0.1, 0.1, 0.1]])
SUCCESS = np.array([[True, True, False, False], [True, True, False, False], [True, False, False, False]])


def test_residual_correlation_by_hand():
    # Prompt 1, S: weights 2:1 and cosine 0: all pairs (4 + 1)/9 = 5/9, distinct 0. Prompt 2, S: weights 3:1,
    # cosine 1/2: all (9 + 1 + 3)/16 = 13/16, distinct 1/2. Prompt 3 has no two successes.
    # Prompt 1, F: cosine -1, equal weights: all (1 + 1 - 2)/4 = 0, distinct -1. Prompt 3, F: 1 and 1.
    rho = residual_correlation(HIDDEN, WEIGHT, SUCCESS, U)
    assert rho.all_success == pytest.approx((5 / 9 + 13 / 16) / 2, rel=1e-14)
    assert rho.distinct_success == pytest.approx(1 / 4, rel=1e-14)
    assert rho.all_failure == pytest.approx(1 / 2, abs=1e-15)
    assert rho.distinct_failure == pytest.approx(0.0, abs=1e-15)


def test_common_direction_is_found_and_scale_does_not_matter():
    rng = np.random.default_rng(0)
    residual = rng.normal(size=(20, 3, 5))
    residual[..., 1] = 0.0
    hidden = np.concatenate([residual, -residual], axis=1)  # in pairs, so that u1 is e_1 exactly
    hidden[..., 1] = 3.0
    weight = np.tile(rng.uniform(size=(20, 3)), 2)
    success = np.array([True, True, False, False, True, False]) & np.ones((20, 1), bool)
    known = residual_correlation(hidden, weight, success, [0, -4.0, 0, 0, 0])
    np.testing.assert_allclose(residual_correlation(hidden, weight, success), known, rtol=1e-9)
    rescaled = residual_correlation(7 * hidden, weight * np.arange(1, 21)[:, None], success)
    np.testing.assert_allclose(rescaled, known, rtol=1e-9)


def test_all_pairs_is_the_second_moment_of_a_sum():
    """E|sum of n residuals|^2 = n (1 - rho) + n^2 rho for unit residuals, by enumeration of n = 3 draws."""
    rows, weight = HIDDEN[1, :3, 1:], np.array([0.5, 0.3, 0.2])
    moment = sum(np.prod(weight[list(i)]) * np.sum(rows[list(i)].sum(axis=0) ** 2)
                 for i in itertools.product(range(3), repeat=3))
    rho = residual_correlation(HIDDEN[1:2, :3], weight[None], np.ones((1, 3), bool), U).all_success
    assert moment == pytest.approx(3 * (1 - rho) + 9 * rho, rel=1e-12)


def test_no_pair_is_nan_and_rows_without_residual_are_left_out():
    rho = residual_correlation(HIDDEN[:1], WEIGHT[:1], np.ones((1, 4), bool), U)
    assert math.isnan(rho.all_failure) and math.isnan(rho.distinct_failure)
    along = HIDDEN.copy()
    along[1, 2] = [5.0, 0.0, 0.0]  # now a failure on u1 itself
    assert residual_correlation(along, WEIGHT, SUCCESS, U) == residual_correlation(HIDDEN, WEIGHT, SUCCESS, U)


@pytest.mark.parametrize(("cluster", "wanted"), [
    (0.7, (0.518, 0.089, 0.192, 0.006)),
    (0.0, (0.43, 0.08, 0.009, 0.0)),
])
def test_world_at_the_start(cluster, wanted):
    """Five worlds, initial policy. One standard error: .011, .003, .017, .002. Repeats alone give .43."""
    values = []
    for seed in range(5):
        world, prompts = make_world(World(cluster=cluster), seed), np.arange(128)
        policy = reference.policy(world, prompts, np.zeros((16, 16)), world.bias[prompts])
        values.append(residual_correlation(world.hidden[prompts], policy, world.success[prompts]))
    assert (abs(np.mean(values, axis=0) - wanted) < [0.035, 0.012, 0.05, 0.006]).all()


# --- eigenvalues ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [7, 400], ids=["D below n", "D above n"])
def test_signed_eigenvalues_equal_brute_force(dim):
    rng = np.random.default_rng(1)
    scores = [rng.normal(size=(n, dim)) * rng.uniform(0.5, 2, dim) for n in (5, 9, 2, 14)]
    weight = np.array([0.3, -0.8, 0.1, 0.4])
    matrix = sum(w * s.T @ s / len(s) for w, s in zip(weight, scores, strict=True)) / 4
    exact = np.linalg.eigvalsh(matrix)
    assert fisher_range(scores, weight) == pytest.approx((exact[0], exact[-1]), rel=1e-9)
    # All weights negative: 0 is the largest where the scores do not span the space.
    low, high = fisher_range(scores, -abs(weight))
    assert low < 0 and (high == 0.0 if dim == 400 else high < 0)


@pytest.mark.parametrize("dim", [7, 400], ids=["D below n", "D above n"])
def test_cross_validation_equals_brute_force(dim):
    rng = np.random.default_rng(2)
    scores = [rng.normal(size=(n, dim)) for n in (6, 9, 11)]
    weight = np.array([0.3, -0.1, 0.4])
    even, odd = (sum(w * s[i::2].T @ s[i::2] / len(s[i::2]) for w, s in zip(weight, scores, strict=True)) / 3
                 for i in (0, 1))
    tops = [(np.linalg.eigh(a)[1][:, -1], b) for a, b in ((even, odd), (odd, even))]
    wanted = np.mean([v @ b @ v for v, b in tops])
    assert fisher_range(scores, weight, cross_validate=True)[1] == pytest.approx(wanted, rel=1e-8)


def test_coordinates_stand_in_for_long_scores():
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(12, 5000))
    stand_in = coordinates(scores @ scores.T)
    assert stand_in.shape[1] <= 12
    args = np.array([0.5, 1.0, -0.2])
    assert fisher_range(np.split(stand_in, 3), args) == pytest.approx(fisher_range(np.split(scores, 3), args), rel=1e-9)


# --- stability --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled():
    """World of 64 prompts: exact lambda_max for asym_delta(.25) at G = 16, and a sampler of head scores."""
    world, prompts = make_world(World(train_prompts=64, test_prompts=1), seed=0), np.arange(64)
    policy = reference.policy(world, prompts, np.zeros((16, 16)), world.bias[prompts])
    p = (policy * world.success[prompts]).sum(axis=1)
    psi = np.einsum("xkv,xkd->xkvd", world.token[prompts], world.hidden[prompts]).reshape(64, 32, 256)
    psi -= np.einsum("xk,xkj->xj", policy, psi)[:, None]
    m_S, m_F = masses(make("asym_delta", delta=0.25), 16, p)
    fisher = np.einsum("xk,xki,xkj->xij", policy, psi, psi, optimize=True)
    exact = [np.linalg.eigvalsh(np.einsum("x,xij->ij", m / 64, fisher))[-1] for m in (m_F - m_S, m_S)]

    def draw(rollouts, seed):
        rng = np.random.default_rng(seed)
        return np.stack([psi[x, rng.choice(32, rollouts, p=policy[x])] for x in prompts])

    return p, m_S, m_F, exact, draw


def test_lambda_is_recovered_and_cross_validated_below_in_sample(sampled):
    """32 rollouts for each of 64 prompts: both within 10% of the exact eigenvalue, on either side of it."""
    p, m_S, m_F, (eigenvalue, lambda_S), draw = sampled
    step, lag = 1.25 / (20 * eigenvalue), 20  # exact Lambda: 1.25
    inside, across = [], []
    for seed in range(6):
        scores = draw(32, seed)
        one, other = (stability(scores, p, m_S, m_F, step, lag, cross_validate=cv) for cv in (False, True))
        assert other.Lambda < one.Lambda
        assert one.Lambda == pytest.approx(1.25, rel=0.1) and other.Lambda == pytest.approx(1.25, rel=0.1)
        assert other.growth < one.growth and other.delta_min < one.delta_min
        assert math.log(one.growth) == pytest.approx(math.log(growth_factor(one.Lambda / lag, lag)), rel=1e-9)
        inside.append(one)
        across.append(other)
    assert np.mean(across, axis=0)[0] < 1.25 < np.mean(inside, axis=0)[0]
    floor = 1 / (1 + 1 / (step * lag * lambda_S))
    assert np.mean(across, axis=0)[2] == pytest.approx(floor, rel=0.03)


def test_in_sample_bias_grows_when_rollouts_are_few(sampled):
    p, m_S, m_F, (eigenvalue, _), draw = sampled
    ratio = {n: np.mean([[stability(draw(n, s), p, m_S, m_F, 1.0, 1, cross_validate=cv).Lambda / eigenvalue
                          for cv in (False, True)] for s in range(10)], axis=0) for n in (2, 16)}
    assert ratio[2][0] > ratio[16][0] > 1.0 > ratio[16][1] > ratio[2][1]  # n = 2: 128 rollouts, D = 256


def test_delta_min_is_the_delta_of_lambda_one(sampled):
    p, _, _, _, draw = sampled
    scores = draw(8, 0)

    def at(delta):
        method = make("power_asym", alpha=2.0, delta=delta)
        both = (lambda p, i=i: masses(method, 16, p)[i] for i in (0, 1))  # masses as functions of p
        return stability(scores, p, *both, 40.0, 30, cross_validate=False)

    floor = at(0.5).delta_min
    assert at(0.25).delta_min == pytest.approx(floor, rel=1e-9)  # m_S does not depend on delta
    assert at(floor).Lambda == pytest.approx(1.0, rel=1e-9)
    assert at(floor).growth == pytest.approx(1.0, rel=1e-9)


def test_balanced_rules_are_neutral_and_success_bias_can_only_overshoot(sampled):
    p, m_S, _, _, draw = sampled
    scores = draw(8, 0)
    balanced = stability(scores, p, m_S, m_S, 40.0, 30)
    assert (balanced.Lambda, balanced.growth) == (0.0, 0.0)
    low, _ = fisher_range(scores, -m_S)
    for size, unstable in ((0.9, False), (1.1, True)):  # eta |lambda| around 1
        out = stability(scores, p, m_S, 0.0, size / abs(low), 5, cross_validate=False)
        assert out.Lambda <= 1e-9
        assert (out.growth > 1.0) == unstable


def test_bad_input_is_refused():
    scores = [np.ones((2, 3))]
    for call in (
        lambda: stability(scores, [0.5, 0.5], 0.1, 0.2, 1.0, 1),
        lambda: stability(scores, [1.5], 0.1, 0.2, 1.0, 1),
        lambda: stability([np.ones((1, 3))], [0.5], 0.1, 0.2, 1.0, 1),  # one rollout cannot be split
        lambda: stability([np.full((2, 3), np.nan)], [0.5], 0.1, 0.2, 1.0, 1),
        lambda: fisher_range([np.ones((2, 3)), np.ones((2, 4))], [1.0, 1.0]),
        lambda: coordinates(np.ones((2, 3))),
        lambda: residual_correlation(HIDDEN, WEIGHT[:2], SUCCESS),
        lambda: residual_correlation(HIDDEN, -WEIGHT, SUCCESS),
        lambda: residual_correlation(HIDDEN, WEIGHT, SUCCESS, [0.0, 0.0, 0.0]),
    ):
        with pytest.raises(InputError):
            call()
