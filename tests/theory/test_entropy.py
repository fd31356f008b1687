"""Entropy formulas against hand-worked numbers, finite differences, enumeration of all groups, sampling."""

import itertools
import math

import numpy as np
import pytest

from fade_sim.advantage import controller, make, weight_table
from fade_sim.config import Train, World
from fade_sim.diagnostics import entropy_split
from fade_sim.errors import InputError
from fade_sim.sim import expected, reference
from fade_sim.sim.run import dynamics, new_state
from fade_sim.sim.world import make_world
from fade_sim.theory import masses
from fade_sim.theory.entropy import (
    bilinear_step,
    claimed_change,
    entropy,
    entropy_change,
    group_moments,
    head_kernel,
    linear_step,
    logit_step,
    second_order,
    second_order_split,
    split_change,
    table_step,
    uncentred_step,
)

RNG = np.random.default_rng(7)
PROMPTS, ARMS = 6, 9
LOGITS = RNG.normal(size=(PROMPTS, ARMS))
SUCCESS = np.arange(ARMS) < RNG.integers(2, 6, (PROMPTS, 1))
W_S, W_F = RNG.uniform(0.1, 1.0, (2, PROMPTS))
WEIGHT = np.where(SUCCESS, W_S[:, None], -W_F[:, None])
WORLD = make_world(World(train_prompts=24, test_prompts=1), seed=5)


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


POLICY = softmax(LOGITS)
BASELINE = (POLICY * WEIGHT).sum(axis=1, keepdims=True)


def falls_linearly(predict, measure, steps=(1e-2, 5e-3, 2.5e-3)) -> float:
    """Largest relative error of a first-order prediction, over all prompts; halving the step must halve it."""
    errors = [np.abs(predict(s) - measure(s)).sum() / np.abs(predict(s)).sum() for s in steps]
    for one, next_one in itertools.pairwise(errors):
        assert 1.95 < one / next_one < 2.05
    return errors[0]


# --- by hand -------------------------------------------------------------------------------------------


def test_claimed_formula_has_the_wrong_sign():
    # Success: the likely arm, pi = 1/2, 1/4, 1/4; weight 1 for a success, 0 for a failure (REINFORCE).
    # Claimed = -E[W log pi] = 1/2 log 2 > 0. True for a logit step: p q (w_S + w_F) D with
    # D = log 2 - log 4, so -1/4 log 2: entropy falls. For the policy gradient, H = 3/2 log 2:
    # -[1/4 (-log 2 + H) 1/2 - 2/16 (-2 log 2 + H) 1/2] = -[1/16 + 1/32] log 2 = -3/32 log 2.
    arms = [0.5, 0.25, 0.25], [True, False, False], 1.0, 0.0, 1.0
    assert claimed_change(*arms) == pytest.approx(0.5 * math.log(2), rel=1e-14)
    assert logit_step(*arms) == pytest.approx(-0.25 * math.log(2), rel=1e-14)
    assert table_step(*arms) == pytest.approx(-3 / 32 * math.log(2), rel=1e-14)
    # Without centring: less (m_S - m_F) Cov(log pi, pi) = 1/2 (-1/2 + 3/8 * 3/2) log 2 = 1/32 log 2.
    assert uncentred_step(*arms) == pytest.approx(-4 / 32 * math.log(2), rel=1e-14)


def test_success_weights_stir_the_success_set_by_hand():
    # Four arms of 1/4, two of them successes, G = 2, REINFORCE: E[c t_S^2]/G^2 = 1/4, so arm noise
    # within S is 1/4 [[1/4, -1/4], [-1/4, 1/4]] and dH_S = 1/2 (-1/2) (2/16) = -1/32; the common
    # part moves both successes alike. H_F: no failure has a weight, so 0. NSR is the mirror image.
    policy, success = np.full(4, 0.25), np.array([True, True, False, False])
    for rule, wanted in (("reinforce", (-1 / 32, 0.0)), ("nsr", (0.0, -1 / 32))):
        noise = group_moments(policy, success, weight_table(make(rule), 2)).covariance
        _, dH_S, dH_F = second_order_split(policy, success, noise)
        assert (dH_S, dH_F) == pytest.approx(wanted, abs=1e-15)


# --- closed forms are the general formula ---------------------------------------------------------------


def test_closed_forms_equal_the_covariance_with_their_step():
    steps = {
        logit_step: WEIGHT,
        table_step: POLICY * (WEIGHT - BASELINE),
        uncentred_step: POLICY * WEIGHT,
    }
    for formula, dz in steps.items():
        np.testing.assert_allclose(formula(POLICY, SUCCESS, W_S, W_F, 0.3), entropy_change(POLICY, 0.3 * dz),
                                   rtol=1e-12, atol=1e-15, err_msg=formula.__name__)
    claimed = -0.3 * (POLICY * WEIGHT * np.log(POLICY)).sum(axis=1)
    np.testing.assert_allclose(claimed_change(POLICY, SUCCESS, W_S, W_F, 0.3), claimed, rtol=1e-12)


def test_sign_drops_out_of_the_exact_change_but_not_of_the_others():
    biased, balanced = (1.0, 0.0), (0.2, 0.8)  # same w_S + w_F
    for formula, same in ((logit_step, True), (table_step, True), (uncentred_step, False), (claimed_change, False)):
        one, other = (formula(POLICY, SUCCESS, *w, 1.0) for w in (biased, balanced))
        assert np.allclose(one, other, rtol=1e-12) == same, formula.__name__


def test_extreme_policies_are_finite():
    policy = np.array([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [1 - 1e-300, 1e-300, 0.0]])
    success = np.array([True, False, False])
    table = weight_table(make("dr_grpo"), 4)
    moments = group_moments(policy, success, table)
    for x in (logit_step(policy, success, 1.0, 1.0, 1.0), table_step(policy, success, 1.0, 1.0, 1.0),
              claimed_change(policy, success, 1.0, 1.0, 1.0), *moments, second_order(policy, moments.covariance)):
        assert np.isfinite(x).all()
    # Whoever always fails (or passes) gives a group-baseline rule nothing to do.
    assert not np.any(moments.mean[:2]) and not np.any(moments.covariance[:2])
    split = split_change(policy, success, np.ones(3))
    assert np.isnan(split.dH_S[1]) and split.dH_F[1] == 0.0


# --- finite differences ------------------------------------------------------------------------------------


def test_logit_step_against_finite_differences():
    before = entropy(POLICY)
    worst = falls_linearly(lambda s: logit_step(POLICY, SUCCESS, W_S, W_F, s),
                           lambda s: entropy(softmax(LOGITS + s * WEIGHT)) - before)
    assert worst < 0.05


def test_table_against_the_expected_step_of_the_simulator():
    """A table of its own per prompt, exact mean over groups: weights from the masses, dH from the simulator."""
    method, prompts = make("power_asym", alpha=2.0, delta=0.5), np.arange(WORLD.n_train)
    policy = reference.policy(WORLD, prompts, np.zeros((16, 16)), WORLD.bias[prompts])
    success = WORLD.success[prompts]
    p = (policy * success).sum(axis=1)
    m_S, m_F = masses(method, 8, p)

    def simulated(step):
        after = expected_state(method, lr_table=step)
        return entropy(reference.policy(WORLD, prompts, after.head, after.theta)) - entropy(policy)

    weights = m_S / p, m_F / (1 - p)
    worst = falls_linearly(lambda s: table_step(policy, success, *weights, s), simulated, (0.2, 0.1, 0.05))
    assert worst < 0.05


def test_bilinear_head_against_the_expected_step_of_the_simulator():
    """One head for 24 prompts: each prompt's dH includes what the others did to the head."""
    method, prompts = make("asym_delta", delta=0.3), np.arange(WORLD.n_train)
    args = WORLD.token[prompts], WORLD.hidden[prompts]
    policy = reference.policy(WORLD, prompts, np.zeros((16, 16)), WORLD.bias[prompts])
    head = expected_state(method, lr=1.0).head  # the step is linear in lr

    def simulated(step):
        after = expected_state(method, lr=step)
        return (entropy(reference.policy(WORLD, prompts, after.head, after.theta)) - entropy(policy)).mean()

    worst = falls_linearly(lambda s: bilinear_step(policy, *args, s * head).mean(), simulated, (1.0, 0.5, 0.25))
    assert worst < 0.2


def expected_state(method, lr=0.0, lr_table=0.0):
    train = Train(mode="expected", prompts=24, group_size=8, lr=lr, lr_table=lr_table)
    dyn = dynamics(train, 0)
    state = new_state(WORLD, dyn)
    expected.train_step(WORLD, dyn, method, controller.init(), 1.0, state, 0)
    return state


def test_linear_head_against_finite_differences():
    features = np.random.default_rng(3).normal(size=(PROMPTS, ARMS, 4))
    coef = POLICY * (WEIGHT - BASELINE)
    gradient = np.einsum("xk,xkd->d", coef, features) / PROMPTS  # policy gradient of theta, shared by all prompts
    before = entropy(POLICY).mean()
    worst = falls_linearly(lambda s: linear_step(POLICY, features, s * gradient).mean(),
                           lambda s: entropy(softmax(LOGITS + s * features @ gradient)).mean() - before)
    assert worst < 0.05


def test_head_kernel_is_the_logit_step_of_a_bilinear_head():
    rng = np.random.default_rng(4)
    token, hidden, coef = rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), rng.normal(size=5)
    dhead = np.einsum("a,av,ad->vd", coef, token, hidden)
    dz = np.einsum("av,vd,ad->a", token, dhead, hidden)
    np.testing.assert_allclose(head_kernel(token, hidden) @ coef, dz, rtol=1e-12)


def test_split_adds_up_and_matches_finite_differences():
    dz = np.random.default_rng(5).normal(size=(PROMPTS, ARMS))
    H, H_S, H_F = entropy_split(POLICY, SUCCESS)
    p = (POLICY * SUCCESS).sum(axis=1)
    split = split_change(POLICY, SUCCESS, dz)
    total = np.log((1 - p) / p) * split.dp + (H_S - H_F) * split.dp + p * split.dH_S + (1 - p) * split.dH_F
    np.testing.assert_allclose(split.dH, total, rtol=1e-12, atol=1e-14)
    for i, name in enumerate(("dH", "dH_S", "dH_F")):
        falls_linearly(lambda s, name=name: s * getattr(split, name),
                       lambda s, i=i: entropy_split(softmax(LOGITS + s * dz), SUCCESS)[i] - (H, H_S, H_F)[i],
                       (1e-3, 5e-4))
    falls_linearly(lambda s: s * split.dp, lambda s: (softmax(LOGITS + s * dz) * SUCCESS).sum(axis=1) - p, (1e-3, 5e-4))


# --- second order ------------------------------------------------------------------------------------------


def all_groups(policy, success, table):
    """(probability, coef (K,)) of every ordered group of G arms."""
    G = len(table) - 1
    for arms in itertools.product(range(len(policy)), repeat=G):
        c = int(success[list(arms)].sum())
        weight = np.bincount(arms, minlength=len(policy)) * np.where(success, table[c, 0], table[c, 1]) / G
        yield np.prod(policy[list(arms)]), weight - weight.sum() * policy


@pytest.mark.parametrize("rule", ["dr_grpo", "reinforce", "nsr", "grpo", "maxrl", "power_asym", "asym_pure_loo"])
def test_group_moments_equal_enumeration(rule):
    policy, success = np.array([0.1, 0.35, 0.05, 0.3, 0.2]), np.array([True, False, True, False, False])
    table = weight_table(make(rule), 4)  # 5^4 = 625 groups
    chance, coef = map(np.array, zip(*all_groups(policy, success, table), strict=True))
    mean = chance @ coef
    covariance = np.einsum("g,ga,gb->ab", chance, coef - mean, coef - mean)
    got = group_moments(policy, success, table)
    np.testing.assert_allclose(got.mean, mean, rtol=0, atol=1e-14)
    np.testing.assert_allclose(got.covariance, covariance, rtol=0, atol=1e-14)


def test_second_order_is_half_the_second_derivative():
    z, direction, h = LOGITS[0], np.random.default_rng(6).normal(size=ARMS), 1e-3
    curve = [entropy(softmax(z + s * direction)) for s in (-h, 0.0, h)]
    second = (curve[0] - 2 * curve[1] + curve[2]) / h**2
    assert second_order(POLICY[0], np.outer(direction, direction)) == pytest.approx(second / 2, rel=1e-5)
    # Noise common to all logits does nothing.
    assert second_order(POLICY, np.ones((ARMS, ARMS))) == pytest.approx(np.zeros(PROMPTS), abs=1e-15)


def test_mean_change_over_all_groups_is_predicted_to_third_order():
    """E[H(z + dz)] exactly, by enumeration: what formula 7 leaves out falls as step^3."""
    policy, success = np.array([0.15, 0.3, 0.2, 0.35]), np.array([True, False, True, False])
    table = weight_table(make("asym_delta", delta=0.4), 5)
    moments = group_moments(policy, success, table)
    z, left = np.log(policy), []
    for step in (0.4, 0.2, 0.1):
        mean = sum(chance * entropy(softmax(z + step * coef)) for chance, coef in all_groups(policy, success, table))
        predicted = entropy(softmax(z + step * moments.mean)) + second_order(policy, step**2 * moments.covariance)
        left.append(abs(mean - predicted))
    assert left[0] < 2e-4
    assert 6 < left[0] / left[1] < 10 and 6 < left[1] / left[2] < 10  # 8 for step^3


@pytest.mark.parametrize("rule", ["reinforce", "dr_grpo", "nsr"])
def test_second_order_against_sampled_groups_of_the_world(rule):
    """One prompt of the world, bilinear head, groups of 16 drawn at random.

    H(z + dz) - H(z + E dz) less its linear part is averaged: its mean is the predicted term, its
    standard error below 1% of it. What is left at this step is of third order, below 2%.
    """
    x, G, step, draws = 2, 16, 0.2, 40_000
    policy = reference.policy(WORLD, np.arange(24), np.zeros((16, 16)), WORLD.bias[:24])[x]
    success, table = WORLD.success[x], weight_table(make(rule), G)
    kernel = head_kernel(WORLD.token[x], WORLD.hidden[x])
    moments = group_moments(policy, success, table)
    predicted = second_order(policy, step**2 * kernel @ moments.covariance @ kernel)

    counts = np.random.default_rng(0).multinomial(G, policy, draws)
    c = counts @ success
    weight = counts / G * np.where(success, table[c, 0][:, None], table[c, 1][:, None])
    coef = weight - weight.sum(axis=1, keepdims=True) * policy
    z, dz, mean = np.log(policy), step * coef @ kernel, step * kernel @ moments.mean
    at_mean = softmax(z + mean)
    linear = (-at_mean * (np.log(at_mean) + entropy(at_mean))) @ (dz - mean).T
    sample = entropy(softmax(z + dz)) - entropy(at_mean) - linear
    error = sample.std() / math.sqrt(draws)
    assert error < 0.01 * abs(predicted)
    assert abs(sample.mean() - predicted) < 4 * error + 0.02 * abs(predicted)


def test_bad_input_is_refused():
    for call in (
        lambda: entropy_change([0.5, 0.6], [0.0, 0.0]),
        lambda: table_step([0.5, 0.5], [1, 0], 1.0, 1.0, 1.0),  # success must be boolean
        lambda: second_order([0.5, 0.5], np.eye(3)),
        lambda: group_moments([0.5, 0.5], np.array([True, False]), np.zeros((3, 3))),
    ):
        with pytest.raises(InputError):
            call()
