"""The training step in exact expectation over groups, all training prompts at once.

An arm a that is a success gets the mean weight E[w_S(c'+1)] of a success, c' ~ Bin(G-1, p) the
successes of the *other* rollouts, times its probability; failures likewise. On-policy the result is
(m_S/p + m_F/q) grad p: the sign axis has dropped out, and only the slope is left.
"""

import numpy as np

from fade_sim.advantage import controller, step_table, weight_table
from fade_sim.sim import layout as k
from fade_sim.sim.reference import (
    apply_update,
    behaviour_head,
    entropy,
    head_gradient,
    importance,
    mean_weights,
    policy,
    reward_chance,
)


def reward_weights(world, prompts, mu, table, dyn: k.Dynamics):
    """(mean signed weight of a reward of 1, of a reward of 0, P(reward 1)), each (B,)."""
    p = np.clip((mu * reward_chance(world, prompts)).sum(axis=1), 0.0, 1.0)
    mean_s, mean_f = mean_weights(table, p)
    if dyn.slope_match:
        slope = np.where(mean_s - mean_f == 0, 1.0, mean_s - mean_f)
        mean_s, mean_f = mean_s / slope, mean_f / slope
    return mean_s, mean_f, p


def train_step(world, dyn: k.Dynamics, method, ctrl: controller.State, factor: float, state: k.State, step: int):
    """One expected step on `state` in place; returns the new controller state.

    The controller reads the exact solve rate and entropy, a scale control the exact E sum |A|.
    """
    prompts = np.arange(world.n_train)
    head = behaviour_head(state, dyn, step)
    mu = policy(world, prompts, head, state.theta)
    chance = reward_chance(world, prompts)
    p = (mu * chance).sum(axis=1)
    ctrl = controller.update(ctrl, float(min(p.mean(), 1.0)), float(entropy(mu).mean()))
    G = dyn.group_size

    def scale_ratio(full, base):
        total_full, total_base = (total_mass(p, weight_table(one, G)) for one in (full, base))
        return total_full / total_base if total_base > 0 else None

    table, ctrl = step_table(method, ctrl, G, scale_ratio=scale_ratio)
    table = factor * table
    mean_s, mean_f, _ = reward_weights(world, prompts, mu, table, dyn)
    w_s, w_f = mean_s[:, None], mean_f[:, None]
    for _ in range(dyn.epochs):
        pi = policy(world, prompts, state.head, state.theta)
        weight = (chance * importance(pi, mu, w_s, dyn) * w_s
                  + (1 - chance) * importance(pi, mu, w_f, dyn) * w_f)
        apply_update(world, dyn, state, prompts, mu * weight, pi)
    state.table[:] = table
    return ctrl


def total_mass(p, table) -> float:
    """Mean over prompts of E sum |A| / G at reward rates p (B,)."""
    mean_s, mean_f = mean_weights(np.abs(table), p)
    return float((p * mean_s + (1 - p) * mean_f).mean())


def initial_policy(world):
    """(training prompts, policy (N, K), P(reward 1) (N,)) before the first step."""
    prompts = np.arange(world.n_train)
    K, d = world.bias.shape[1], world.hidden.shape[2]
    mu = policy(world, prompts, np.zeros((d, K) if world.linear else (world.token.shape[2], d)),
                world.bias[prompts])
    return prompts, mu, np.clip((mu * reward_chance(world, prompts)).sum(axis=1), 0.0, 1.0)


def expected_gradient(world, table, dyn: k.Dynamics) -> np.ndarray:
    """Exact expected head gradient of a table at the start, mean over the training prompts."""
    prompts, mu, _ = initial_policy(world)
    mean_s, mean_f, _ = reward_weights(world, prompts, mu, table, dyn)
    chance = reward_chance(world, prompts)
    arm = mu * (chance * mean_s[:, None] + (1 - chance) * mean_f[:, None])
    return head_gradient(world, prompts, arm - arm.sum(axis=1, keepdims=True) * mu)
