"""The training loop, compiled. Arrays in, arrays filled; no objects and no method's name.

A step: B prompts, G rollouts each from the behaviour policy mu (the head of `lag` steps ago),
rewards, weights from a table of G+1 rows, update of head and table:

    g_W = (1/B) sum_x sum_a (Am_a - pi_a sum_b Am_b) v_a h_a^T,   Am_a = (1/G) sum_{i: arm a} rho_i A_i
    theta_xa += lr_table (Am_a - pi_a sum_b Am_b)

rho_i = 1, pi/mu, or pi/mu with the PPO clip. `reference.py` is the same step in plain NumPy.
Random numbers are a hash of (seed, step, index): no state, so nothing depends on threads.
"""

import math
from typing import NamedTuple

import numpy as np
from numba.extending import register_jitable

from fade_sim.advantage import controller, rules
from fade_sim.sim.compile import kernel

for _function in (controller.ema, controller.alpha_of, controller.delta_of, controller.gains_of,
                  rules.scale_constant, rules._asymmetric, rules.power_asym):
    register_jitable(_function)
ema, gains_of, power_asym, Group = controller.ema, controller.gains_of, rules.power_asym, rules.Group

NONE, RATIO, CLIP = 0, 1, 2  # correction
STATIC, FULL, BATCH, EMA, UNIT = 0, 1, 2, 3, 4  # how the table of a step is made
PHAT, HHAT, H0, STEP, SCALE, ALPHA, DELTA, UPDATES = range(8)  # slots of State.running
ADAM_BETA1, ADAM_BETA2, ADAM_EPS = 0.9, 0.99, 1e-8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


class Dynamics(NamedTuple):
    """Scalars of `config.Train`, in the types of the kernels."""

    key: int  # uint64 stream of the seed
    prompts: int
    group_size: int
    lr: float
    lr_table: float
    adam: bool
    lag: int
    correction: int
    clip: float
    epochs: int
    slope_match: bool


class Weights(NamedTuple):
    """How a step's table comes about: a fixed one, or the controller's, or a scale control of it."""

    kind: int  # STATIC, FULL, BATCH, EMA, UNIT
    table: np.ndarray  # (G+1, 2) of a static rule; of dr_grpo for the controls
    factor: float  # constant on all weights (match = mass, grad)
    rate: float  # of the moving averages
    scale_rate: float
    alpha_max: float
    delta_min: float
    h_star: float  # NaN: half of the starting entropy
    relative: bool
    ablation: int
    horizon: float
    normalize: int


class State(NamedTuple):
    """Everything that a step changes."""

    head: np.ndarray  # (V, d)
    history: np.ndarray  # (lag+1, V, d) ring of past heads
    theta: np.ndarray  # (N, K)
    moment1: np.ndarray  # (V, d) Adam
    moment2: np.ndarray  # (V, d) Adam
    running: np.ndarray  # (8,) phat, Hhat, H0, step, smoothed scale, alpha, delta, updates of Adam
    table: np.ndarray  # (G+1, 2) weights of the last step


@kernel
def _mix(x):
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@kernel
def step_key(key, step):
    """Stream of one step (splitmix64)."""
    return _mix(key + np.uint64(step) * _GOLDEN)


@kernel
def uniform(stream, index):
    """The index-th uniform in [0, 1) of a stream."""
    return float(_mix(stream + np.uint64(index + 1) * _GOLDEN) >> _S11) * (1.0 / 9007199254740992.0)


@kernel
def policy(head, theta, bias, token, hidden, prob):
    """Fill prob (K,) with softmax(b + theta + v^T W h); returns its entropy in nats."""
    K, V = token.shape
    d = hidden.shape[1]
    top = -np.inf
    for a in range(K):
        z = bias[a] + theta[a]
        for i in range(V):
            s = 0.0
            for j in range(d):
                s += head[i, j] * hidden[a, j]
            z += token[a, i] * s
        prob[a] = z
        top = max(top, z)
    Z = 0.0
    zsum = 0.0
    for a in range(K):
        x = prob[a] - top
        e = math.exp(x)
        prob[a] = e
        Z += e
        zsum += e * x
    for a in range(K):
        prob[a] /= Z
    return math.log(Z) - zsum / Z


@kernel
def mean_weights(table, p, log_binomial):
    """E[weight of a success], E[weight of a failure], signed, when the *other* G-1 rollouts ~ Bin(G-1, p)."""
    n = log_binomial.shape[0] - 1
    if p <= 0.0:
        return table[1, 0], table[0, 1]
    if p >= 1.0:
        return table[n + 1, 0], table[n, 1]
    log_p = math.log(p)
    log_q = math.log1p(-p)
    s = 0.0
    f = 0.0
    total = 0.0
    for c in range(n + 1):
        w = math.exp(log_binomial[c] + c * log_p + (n - c) * log_q)
        total += w
        s += w * table[c + 1, 0]
        f += w * table[c, 1]
    return s / total, f / total


@kernel
def fill_table(w, running, table):
    """The controller's table at the gains in `running`."""
    G = table.shape[0] - 1
    table[:] = 0.0
    for c in range(1, G):
        group = Group(c / G, 0.0, 1.0 / G)
        table[c, 0] = power_asym(1.0, group, running[ALPHA], running[DELTA], w.normalize)
        table[c, 1] = power_asym(0.0, group, running[ALPHA], running[DELTA], w.normalize)


@kernel
def _total(table, successes):
    """sum |A| over a batch with these success counts."""
    G = table.shape[0] - 1
    total = 0.0
    for c in successes:
        total += c * abs(table[c, 0]) + (G - c) * abs(table[c, 1])
    return total


@kernel
def weigh(w, running, successes, solve_rate, entropy, table):
    """Update the averages with this batch, then set this batch's table. Order: arXiv 2607.01490."""
    if math.isnan(running[H0]):
        running[H0] = entropy
        running[HHAT] = entropy
    running[PHAT] = ema(running[PHAT], solve_rate, w.rate)
    running[HHAT] = ema(running[HHAT], entropy, w.rate)
    running[STEP] += 1.0
    if w.kind == STATIC:
        return
    running[ALPHA], running[DELTA] = gains_of(
        running[PHAT], running[HHAT], running[H0], running[STEP], w.alpha_max, w.delta_min,
        w.h_star, w.relative, w.ablation, w.horizon)
    fill_table(w, running, table)
    factor = w.factor
    if w.kind != FULL:
        base = _total(w.table, successes)
        ratio = _total(table, successes) / base if base > 0.0 else math.nan  # NaN: no signal in the batch
        if w.kind == EMA:
            if not math.isnan(ratio):
                old = running[SCALE]
                running[SCALE] = ratio if math.isnan(old) else ema(old, ratio, w.scale_rate)
            ratio = running[SCALE]
        if math.isnan(ratio):
            ratio = 1.0  # every group is uniform: all weights are 0
        if w.kind == UNIT:
            factor /= ratio
        else:
            table[:] = w.table
            factor *= ratio
    for c in range(table.shape[0]):
        table[c, 0] *= factor
        table[c, 1] *= factor


@kernel
def sample(world, dyn, state, step, chosen, mu, counts, successes):
    """Draw a batch from the behaviour policy. Returns its solve rate and mean entropy."""
    K = world.bias.shape[1]
    B, G = dyn.prompts, dyn.group_size
    stream = step_key(dyn.key, step)
    behaviour = state.history[max(step - dyn.lag, 0) % (dyn.lag + 1)]
    solved = 0
    entropy = 0.0
    cdf = np.empty(K)
    for b in range(B):
        x = min(int(uniform(stream, b) * world.n_train), world.n_train - 1)
        chosen[b] = x
        entropy += policy(behaviour, state.theta[x], world.bias[x], world.token[x], world.hidden[x], mu[b])
        total = 0.0
        for a in range(K):
            total += mu[b, a]
            cdf[a] = total
            counts[b, a] = 0
        c = 0
        for g in range(G):
            u = uniform(stream, B + b * G + g) * total
            low, high = 0, K - 1  # first arm whose cumulative probability exceeds u
            while low < high:
                middle = (low + high) // 2
                if cdf[middle] > u:
                    high = middle
                else:
                    low = middle + 1
            counts[b, low] += 1
            if world.success[x, low]:
                c += 1
        successes[b] = c
        solved += c
    return solved / (B * G), entropy / B


@kernel
def update(world, dyn, state, log_binomial, fresh, chosen, mu, counts, successes, pi, coef, grad):
    """One optimiser step on the batch. fresh: mu is the current policy, so pi = mu."""
    K, V = world.token.shape[1:]
    d = world.hidden.shape[2]
    B, G = dyn.prompts, dyn.group_size
    table = state.table
    grad[:] = 0.0
    for b in range(B):
        x = chosen[b]
        w_s, w_f = table[successes[b], 0], table[successes[b], 1]
        if w_s == 0.0 and w_f == 0.0:
            coef[b] = 0.0
            continue
        if dyn.slope_match:
            p = 0.0
            for a in range(K):
                if world.success[x, a]:
                    p += mu[b, a]
            mean_s, mean_f = mean_weights(table, p, log_binomial)
            slope = mean_s - mean_f
            if slope != 0.0:
                w_s /= slope
                w_f /= slope
        if fresh:
            pi[:] = mu[b]
        else:
            policy(state.head, state.theta[x], world.bias[x], world.token[x], world.hidden[x], pi)
        total = 0.0
        for a in range(K):
            m = 0.0
            if counts[b, a] > 0:
                weight = w_s if world.success[x, a] else w_f
                rho = 1.0
                if dyn.correction != NONE:
                    rho = pi[a] / mu[b, a]
                    if dyn.correction == CLIP and (
                        (weight > 0.0 and rho > 1.0 + dyn.clip) or (weight < 0.0 and rho < 1.0 - dyn.clip)
                    ):
                        rho = 0.0
                m = counts[b, a] / G * rho * weight
            coef[b, a] = m
            total += m
        for a in range(K):
            coef[b, a] -= total * pi[a]
        for a in range(K):
            for i in range(V):
                s = coef[b, a] * world.token[x, a, i]
                for j in range(d):
                    grad[i, j] += s * world.hidden[x, a, j]
    _apply(dyn, state, grad, B)
    if dyn.lr_table != 0.0:
        for b in range(B):
            for a in range(K):
                state.theta[chosen[b], a] += dyn.lr_table * coef[b, a]


@kernel
def _apply(dyn, state, grad, B):
    """SGD or Adam ascent on the head."""
    V, d = grad.shape
    if not dyn.adam:
        for i in range(V):
            for j in range(d):
                state.head[i, j] += dyn.lr * (grad[i, j] / B)
        return
    state.running[UPDATES] += 1.0
    t = state.running[UPDATES]
    fix1 = 1.0 - ADAM_BETA1**t
    fix2 = 1.0 - ADAM_BETA2**t
    for i in range(V):
        for j in range(d):
            g = grad[i, j] / B
            m = ADAM_BETA1 * state.moment1[i, j] + (1.0 - ADAM_BETA1) * g
            v = ADAM_BETA2 * state.moment2[i, j] + (1.0 - ADAM_BETA2) * g * g
            state.moment1[i, j] = m
            state.moment2[i, j] = v
            state.head[i, j] += dyn.lr * (m / fix1) / (math.sqrt(v / fix2) + ADAM_EPS)


@kernel
def train(world, dyn, weights, state, log_binomial, first, last):
    """Steps first .. last-1, in place on `state`."""
    K, V = world.token.shape[1:]
    d = world.hidden.shape[2]
    B = dyn.prompts
    chosen = np.empty(B, np.int64)
    successes = np.empty(B, np.int64)
    mu = np.empty((B, K))
    counts = np.empty((B, K), np.int64)
    pi = np.empty(K)
    coef = np.empty((B, K))
    grad = np.empty((V, d))
    for step in range(first, last):
        state.history[step % (dyn.lag + 1)] = state.head
        solve_rate, entropy = sample(world, dyn, state, step, chosen, mu, counts, successes)
        weigh(weights, state.running, successes, solve_rate, entropy, state.table)
        for epoch in range(dyn.epochs):
            fresh = dyn.lag == 0 and epoch == 0
            update(world, dyn, state, log_binomial, fresh, chosen, mu, counts, successes, pi, coef, grad)
