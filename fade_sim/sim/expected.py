"""The training step in exact expectation over groups, all training prompts at once.

An arm a that is a success gets the mean weight E[w_S(c'+1)] of a success, c' ~ Bin(G-1, p) the
successes of the *other* rollouts, times its probability; failures likewise. On-policy the result is
(m_S/p + m_F/q) grad p: the sign axis has dropped out, and only the slope is left.
"""

import numpy as np

from fade_sim.advantage import controller, weight_table
from fade_sim.sim import kernels as k
from fade_sim.sim.reference import apply_update, behaviour_head, entropy, importance, mean_weights, policy, step_table


def arm_weights(world, prompts, mu, table, dyn: k.Dynamics):
    """(weight per arm (B, K), solve rates (B,)): mean signed weight of a rollout that picks the arm."""
    success = world.success[prompts]
    p = np.clip((mu * success).sum(axis=1), 0.0, 1.0)
    mean_s, mean_f = mean_weights(table, p)
    if dyn.slope_match:
        slope = np.where(mean_s - mean_f == 0, 1.0, mean_s - mean_f)
        mean_s, mean_f = mean_s / slope, mean_f / slope
    return np.where(success, mean_s[:, None], mean_f[:, None]), p


def train_step(world, dyn: k.Dynamics, method, ctrl: controller.State, factor: float, state: k.State, step: int):
    """One expected step on `state` in place; returns the new controller state.

    The controller reads the exact solve rate and entropy, a scale control the exact E sum |A|.
    """
    prompts = np.arange(world.n_train)
    head = behaviour_head(state, dyn, step)
    args = world.bias[prompts], world.token[prompts], world.hidden[prompts]
    mu = policy(head, state.theta, *args)
    p = (mu * world.success[prompts]).sum(axis=1)
    ctrl = controller.update(ctrl, float(min(p.mean(), 1.0)), float(entropy(mu).mean()))
    G = dyn.group_size

    def scale_ratio(full, base):
        totals = []
        for one in (full, base):
            mean_s, mean_f = mean_weights(np.abs(weight_table(one, G)), p)
            totals.append(float((p * mean_s + (1 - p) * mean_f).sum()))
        return totals[0] / totals[1] if totals[1] > 0 else None

    table, ctrl = step_table(method, ctrl, factor, G, scale_ratio)
    weight, _ = arm_weights(world, prompts, mu, table, dyn)
    for _ in range(dyn.epochs):
        pi = policy(state.head, state.theta, *args)
        apply_update(world, dyn, state, prompts, mu * importance(pi, mu, weight, dyn) * weight, pi)
    state.table[:] = table
    return ctrl


def expected_gradient(world, table, dyn: k.Dynamics) -> np.ndarray:
    """Exact expected head gradient (V, d) of a table at the start, mean over the training prompts."""
    prompts = np.arange(world.n_train)
    zero = np.zeros((world.token.shape[2], world.hidden.shape[2]))
    mu = policy(zero, 0.0, world.bias[prompts], world.token[prompts], world.hidden[prompts])
    weight, _ = arm_weights(world, prompts, mu, table, dyn)
    arm = mu * weight
    coef = arm - arm.sum(axis=1, keepdims=True) * mu
    return np.einsum("bk,bkv,bkd->vd", coef, world.token[prompts], world.hidden[prompts]) / world.n_train


def total_mass(world, table) -> float:
    """Mean over the training prompts of m_S + m_F (in absolute weights) at the start."""
    prompts = np.arange(world.n_train)
    zero = np.zeros((world.token.shape[2], world.hidden.shape[2]))
    mu = policy(zero, 0.0, world.bias[prompts], world.token[prompts], world.hidden[prompts])
    p = np.clip((mu * world.success[prompts]).sum(axis=1), 0.0, 1.0)
    mean_s, mean_f = mean_weights(np.abs(table), p)
    return float((p * mean_s + (1 - p) * mean_f).mean())
