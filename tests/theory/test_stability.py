"""Growth of stale updates: closed forms against the recursion, and against an exact run of the bilinear world."""

import math

import numpy as np
import pytest

from fade_sim.advantage import make
from fade_sim.config import Train, World
from fade_sim.errors import InputError
from fade_sim.sim import reference
from fade_sim.sim.run import dynamics, new_state
from fade_sim.sim.world import make_world
from fade_sim.theory import masses
from fade_sim.theory.stability import amplification, growth_factor, safe_delta, stability_number

# Predicted ln z, computed apart from this code by bisection on k (1 - z^-L) = z - 1.
TABLE = {
    (5, 0.8): -0.07263, (5, 1.25): 0.07632, (5, 1.6): 0.16577, (5, 2.5): 0.34388, (5, 4.0): 0.56045,
    (10, 0.8): -0.03941, (10, 1.25): 0.04189, (20, 0.8): -0.02058, (20, 1.25): 0.02202, (20, 2.5): 0.10373,
    (40, 0.8): -0.01053, (40, 4.0): 0.09311,
}


def test_growth_factor_table():
    for (lag, Lambda), wanted in TABLE.items():
        assert math.log(growth_factor(Lambda / lag, lag)) == pytest.approx(wanted, abs=6e-6), (lag, Lambda)


def test_growth_factor_solves_its_equation_and_broadcasts():
    lag = np.array([[1], [3], [20], [300]])
    k = np.geomspace(1e-6, 50, 40)
    z = growth_factor(k, lag)
    for L, row in zip(lag.ravel(), z, strict=True):
        total = k * np.exp(-np.arange(1, L + 1) * np.log(row)[:, None]).sum(axis=-1)
        np.testing.assert_allclose(total, 1.0, rtol=1e-11)
    np.testing.assert_array_equal(z > 1.0, k * lag > 1.0)
    np.testing.assert_allclose(growth_factor(1.0 / lag, lag), 1.0, rtol=0, atol=1e-14)


@pytest.mark.parametrize("lag", [1, 2, 3, 5, 12])
def test_growth_factor_is_the_largest_root(lag):
    for k in (-3.0, -1.2, -0.9, -0.1, 0.02, 0.7, 2.0):
        roots = np.roots([1.0] + [-k] * lag)
        assert growth_factor(k, lag) == pytest.approx(abs(roots).max(), rel=1e-10), k


def test_limits():
    lag = 25
    for Lambda in (1.01, 0.99):  # near threshold
        near = 2 * (Lambda - 1) / (Lambda * (lag + 1))
        assert math.log(growth_factor(Lambda / lag, lag)) == pytest.approx(near, rel=0.01)
    assert growth_factor(3.0, lag) == pytest.approx(4.0, rel=1e-12)  # far above: 1 + k
    assert growth_factor(0.4, 1) == pytest.approx(0.4) and growth_factor(-0.4, 1) == pytest.approx(0.4)
    assert growth_factor(0.0, lag) == 0.0 and growth_factor(7.0, 0) == 0.0
    for L in (1, 2, 7, 20):  # overshooting steps: the threshold is k = -1 at every lag
        assert growth_factor(-0.99, L) < 1.0 < growth_factor(-1.01, L)


@pytest.mark.parametrize("k", [0.03, 0.05, 0.2, -0.5, -1.3])
@pytest.mark.parametrize("lag", [1, 6, 20])
def test_growth_against_the_recursion(k, lag):
    """D_t = k (D_{t-1} + ... + D_{t-L}) from a single kick; size averaged over many steps, oscillations included."""
    past = np.zeros(lag)
    past[0] = 1.0
    logs, scale = [], 0.0
    for _ in range(6000):
        new = k * past.sum()
        past = np.concatenate([[new], past[:-1]])
        size = np.linalg.norm(past)
        past, scale = past / size, scale + math.log(size)
        logs.append(scale)
    measured = (logs[-1] - logs[999]) / 5000
    assert measured == pytest.approx(math.log(growth_factor(k, lag)), abs=1e-3 if k < 0 else 1e-9)


@pytest.mark.parametrize("Lambda", [-2.0, -0.3, 0.4, 0.8])
def test_amplification_is_the_steady_increment(Lambda):
    lag, increments = 8, [0.0] * 8
    for _ in range(2000):
        increments.append(1.0 + Lambda / lag * sum(increments[-lag:]))
    assert increments[-1] == pytest.approx(amplification(Lambda), rel=1e-12)


def test_amplification_is_infinite_when_unstable():
    np.testing.assert_array_equal(amplification([0.5, 1.0, 3.0]), [2.0, np.inf, np.inf])


def test_safe_delta_is_where_lambda_is_one():
    eta, lag, lambda_S = 10.0, np.array([0, 5, 40]), 0.004
    floor = safe_delta(eta, lag, lambda_S)
    assert floor[0] == 0.0  # on-policy
    at_floor = stability_number(eta, lag[1:], (1 / floor[1:] - 1) * lambda_S)
    np.testing.assert_allclose(at_floor, 1.0, rtol=1e-12)
    assert safe_delta(10.0, 5, 0.02) == 0.5  # eta L lambda_S = 1: failures may weigh twice as much
    assert (np.diff(floor) > 0).all()  # staler data need a milder failure bias
    # Alpha and normalisation enter through m_S only, and m_F is m_S/delta in every group.
    m_S, m_F = masses(make("power_asym", alpha=2.0, delta=float(floor[1])), 8, np.array([0.1, 0.6]))
    np.testing.assert_allclose(m_F - m_S, (1 / floor[1] - 1) * m_S, rtol=1e-12)


def test_bad_input_is_refused():
    for call in (lambda: growth_factor(0.1, 1.5), lambda: growth_factor(0.1, -1), lambda: growth_factor(np.nan, 2),
                 lambda: safe_delta(1.0, 2, -0.1)):
        with pytest.raises(InputError):
            call()


# --- the bilinear world in exact expectation ------------------------------------------------------------------


class StaleWorld:
    """No reward signal: every arm of prompt x has the weight -(pq)(1/delta - 1), so g = 0 and only A acts."""

    def __init__(self, seed, delta, prompts=64):
        self.world = make_world(World(train_prompts=prompts, test_prompts=1), seed)
        self.prompts = np.arange(prompts)
        self.shape = self.world.token.shape[2], self.world.hidden.shape[2]
        policy = reference.policy(self.world, self.prompts, np.zeros(self.shape), self.world.bias[self.prompts])
        p = (policy * self.world.success[self.prompts]).sum(axis=1)
        self.push = p * (1 - p) * (1 / delta - 1)  # m_F - m_S of asym_delta, G -> inf
        psi = np.einsum("xkv,xkd->xkvd", self.world.token[self.prompts], self.world.hidden[self.prompts])
        psi = psi.reshape(*policy.shape, -1)
        psi -= np.einsum("xk,xkj->xj", policy, psi)[:, None]
        rows = np.sqrt(self.push[:, None] * policy / prompts)[..., None] * psi
        rows = rows.reshape(-1, psi.shape[-1])
        value, vector = np.linalg.eigh(rows.T @ rows)
        self.eigenvalue, self.top = value[-1], vector[:, -1].reshape(self.shape)

    def log_growth(self, Lambda, lag, settle, steps):
        """Mean log growth of the increments per step after `settle` steps, from a kick of 1e-7 along the top."""
        train = Train(mode="expected", lr=Lambda / (lag * self.eigenvalue), lr_table=0.0, staleness=lag)
        dyn = dynamics(train, 0)
        state = new_state(self.world, dyn)
        reference.behaviour_head(state, dyn, 0)  # step 0 leaves the head at 0 ...
        state.head[:] = 1e-7 * self.top  # ... but for the kick
        size, last, own = [], np.zeros(self.shape), self.world.bias[self.prompts]
        for step in range(1, settle + steps + 1):
            last[:] = state.head
            mu = reference.policy(self.world, self.prompts, reference.behaviour_head(state, dyn, step), own)
            pi = reference.policy(self.world, self.prompts, state.head, own)
            reference.apply_update(self.world, dyn, state, self.prompts, -self.push[:, None] * mu, pi)
            size.append(math.log(np.linalg.norm(state.head - last)))
        return (size[-1] - size[settle - 1]) / steps


# settle: other roots have died out to 1e-5 of the growth; the head stays below 1e-4, where the policy is linear.
CELLS = [(5, 0.8, 40), (5, 1.0, 40), (5, 1.25, 30), (5, 2.5, 15), (20, 0.8, 100), (20, 1.0, 100), (20, 1.25, 80),
         (20, 2.5, 40)]


def check_cell(world, lag, Lambda, settle):
    """Measured errors: up to 3e-5 of ln z at lag 5, 3e-4 at lag 20, and 3e-7 where ln z = 0."""
    predicted = math.log(growth_factor(Lambda / lag, lag))
    measured = world.log_growth(Lambda, lag, settle, steps=2 * lag)
    assert measured == pytest.approx(predicted, rel=5e-4, abs=2e-6)


@pytest.fixture(scope="module")
def stale_world():
    return StaleWorld(seed=0, delta=0.25)


@pytest.mark.parametrize(("lag", "Lambda", "settle"), CELLS)
def test_world_grows_as_predicted(stale_world, lag, Lambda, settle):
    check_cell(stale_world, lag, Lambda, settle)


def test_critical_number_of_the_world_by_bisection():
    """Nothing of the theory but Lambda's definition enters: where does growth turn into decay?"""
    world, low, high = StaleWorld(seed=1, delta=0.5), 0.9, 1.1
    for _ in range(11):  # to 1e-4
        middle = (low + high) / 2
        low, high = (low, middle) if world.log_growth(middle, 5, settle=40, steps=10) > 0 else (middle, high)
    assert (low + high) / 2 == pytest.approx(1.0, abs=5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("delta", [0.25, 0.8])
def test_growth_table_in_four_worlds(seed, delta):
    """Growth depends on the world and on delta through the eigenvalue only."""
    world = StaleWorld(seed, delta)
    for lag, settle in ((10, 60), (40, 240)):
        for Lambda in (0.8, 1.25, 1.6, 2.5):
            check_cell(world, lag, Lambda, settle if Lambda < 1.6 else settle // 2)
