"""The training step in plain NumPy, short enough to check by eye: the oracle of the kernels.

Same uniforms, same order of operations, no Numba. `expected.py` shares `apply_update`.
"""

import math

import numpy as np

from fade_sim.advantage import BatchStats, controller, step_table
from fade_sim.sim import layout as k

_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """splitmix64 finaliser on Python integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(key: int, step: int, index: int) -> float:
    """The uniform of (seed key, step, index): the same bits as the kernels'."""
    golden = 0x9E3779B97F4A7C15
    stream = _mix((int(key) + step * golden) & _MASK)
    return (_mix((stream + (index + 1) * golden) & _MASK) >> 11) / 2**53


def policy(world, prompts, head, own):
    """Probabilities (B, K) on these prompts: softmax of own + v^T W h, or own + h W; own (B, K) are the
    prompts' logits at W = 0, bias and learned table."""
    hidden = world.hidden[prompts]
    if world.linear:
        z = hidden[:, 0] @ head
    else:
        z = ((world.token[prompts] @ head) * hidden).sum(axis=-1)
    z = own + z
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def head_gradient(world, prompts, coef):
    """Mean over prompts of sum_a coef_a d z_a / d W, (V, d) or (d, K)."""
    hidden = world.hidden[prompts]
    if world.linear:
        return hidden[:, 0].T @ coef / len(prompts)
    token = world.token[prompts]
    weighted = (coef[..., None] * token).reshape(-1, token.shape[-1])
    return weighted.T @ hidden.reshape(-1, hidden.shape[-1]) / len(prompts)


def entropy(pi):
    """Entropy in nats over the last axis."""
    return -(pi * np.log(np.where(pi > 0, pi, 1.0))).sum(axis=-1)


def behaviour_head(state: k.State, dyn: k.Dynamics, step: int):
    """Store the current head and return that of `lag` steps ago."""
    state.history[step % (dyn.lag + 1)] = state.head
    return state.history[max(step - dyn.lag, 0) % (dyn.lag + 1)]


def importance(pi, mu, weight, dyn: k.Dynamics):
    """rho per arm: 1, pi/mu, or pi/mu with the PPO clip; weight is the signed weight of the arm."""
    if dyn.correction == k.NONE:
        return np.ones_like(pi)
    rho = pi / mu
    if dyn.correction == k.CLIP:
        rho = np.where((weight > 0) & (rho > 1 + dyn.clip) | (weight < 0) & (rho < 1 - dyn.clip), 0.0, rho)
    return rho


def apply_update(world, dyn: k.Dynamics, state: k.State, prompts, arm_weight, pi) -> None:
    """One optimiser step from Am (B, K), the weight that falls on each arm of each prompt of the batch."""
    coef = arm_weight - arm_weight.sum(axis=1, keepdims=True) * pi  # centred: scores have mean zero
    grad = head_gradient(world, prompts, coef)
    if dyn.adam:
        state.running[k.UPDATES] += 1
        t = state.running[k.UPDATES]
        state.moment1[:] = k.ADAM_BETA1 * state.moment1 + (1 - k.ADAM_BETA1) * grad
        state.moment2[:] = k.ADAM_BETA2 * state.moment2 + (1 - k.ADAM_BETA2) * grad**2
        m, v = state.moment1 / (1 - k.ADAM_BETA1**t), state.moment2 / (1 - k.ADAM_BETA2**t)
        state.head[:] += dyn.lr * m / (np.sqrt(v) + k.ADAM_EPS)
    else:
        state.head[:] += dyn.lr * grad
    if dyn.lr_table:
        np.add.at(state.theta, prompts, dyn.lr_table * coef)


def mean_weights(table, p):
    """E[weight of a success], E[weight of a failure] when the other G-1 rollouts ~ Bin(G-1, p); p (B,)."""
    n = len(table) - 2
    c = np.arange(n + 1)
    pmf = np.array([math.comb(n, i) for i in c], dtype=float) * p[:, None] ** c * (1 - p[:, None]) ** (n - c)
    return pmf @ table[1:, 0], pmf @ table[:-1, 1]


def reward_chance(world, prompts):
    """P(reward 1) of each arm, (B, K): 1 for a success and 0 for a failure unless the verifier errs."""
    false_negative, false_positive = world.noise
    return np.where(world.success[prompts], 1 - false_negative, false_positive)


def draw_group(world, dyn: k.Dynamics, x: int, mu, step: int, start: int):
    """(hit, miss), each (K,): rewarded and unrewarded rollouts by arm, from the uniforms at `start`."""
    G, chance = dyn.group_size, reward_chance(world, x)
    if dyn.count:
        p = float(mu @ chance)
        pmf = [math.comb(G, c) * p**c * (1 - p) ** (G - c) for c in range(G + 1)]
        c = int(np.searchsorted(np.cumsum(pmf)[:-1], uniform(dyn.key, step, start), side="right"))
        return (c * mu * chance / p if c else 0 * mu), ((G - c) * mu * (1 - chance) / (1 - p) if c < G else 0 * mu)
    hit, miss, cdf = np.zeros_like(mu), np.zeros_like(mu), np.cumsum(mu)
    for g in range(G):
        u = uniform(dyn.key, step, start + g) * cdf[-1]
        a = min(np.searchsorted(cdf, u, side="right"), len(cdf) - 1)
        rewarded = chance[a] == 1 or (chance[a] > 0 and uniform(dyn.key, step, start + G + g) < chance[a])
        (hit if rewarded else miss)[a] += 1
    return hit, miss


def train_step(world, dyn: k.Dynamics, method, ctrl: controller.State, factor: float, state: k.State, step: int):
    """One sampled step on `state` in place; returns the new controller state."""
    B, G = dyn.prompts, dyn.group_size
    head = behaviour_head(state, dyn, step)
    kept, solved, entropies = [], [], []
    while len(kept) < B:
        start = len(solved) * (2 * G + 1)
        x = min(int(uniform(dyn.key, step, start) * world.n_train), world.n_train - 1)
        mu = policy(world, [x], head, state.theta[[x]])[0]
        hit, miss = draw_group(world, dyn, x, mu, step, start + 1)
        solved.append(round(hit.sum()))
        entropies.append(float(entropy(mu)))
        if not (dyn.dynamic and solved[-1] in (0, G) and len(solved) + B - len(kept) <= dyn.max_rounds * B):
            kept.append((x, mu, hit, miss))
    prompts, mu, hit, miss = (np.array(column) for column in zip(*kept, strict=True))
    successes = np.rint(hit.sum(axis=1)).astype(int)
    ctrl = controller.update(ctrl, sum(solved) / (len(solved) * G), float(np.mean(entropies)))
    batch = BatchStats(successes, np.full(B, G))
    table, ctrl = step_table(method, ctrl, G, batch)
    table = factor * table
    w_s, w_f = table[successes, 0][:, None], table[successes, 1][:, None]
    if dyn.slope_match:
        mean_s, mean_f = mean_weights(table, (mu * reward_chance(world, prompts)).sum(axis=1))
        slope = np.where(mean_s - mean_f == 0, 1.0, mean_s - mean_f)[:, None]
        w_s, w_f = w_s / slope, w_f / slope
    for _ in range(dyn.epochs):
        pi = policy(world, prompts, state.head, state.theta[prompts])
        arm_weight = hit * importance(pi, mu, w_s, dyn) * w_s + miss * importance(pi, mu, w_f, dyn) * w_f
        apply_update(world, dyn, state, prompts, arm_weight / G, pi)
    state.table[:] = table
    return ctrl
