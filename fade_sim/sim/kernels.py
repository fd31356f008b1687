"""The training loop, compiled. Arrays in, arrays filled; no objects and no method's name.

A step: B prompts, G rollouts each from the behaviour policy mu (the head of `lag` steps ago),
rewards, weights from a table of G+1 rows, update of head and table:

    g_W = (1/B) sum_x sum_a (Am_a - pi_a sum_b Am_b) v_a h_a^T,   Am_a = (1/G) sum_{i: arm a} rho_i A_i
    theta_xa += lr_table (Am_a - pi_a sum_b Am_b)

rho_i = 1, pi/mu, or pi/mu with the PPO clip. `reference.py` is the same step in plain NumPy.
Random numbers are a hash of (seed, step, index): no state, so nothing depends on threads.
"""

import math

from numba.extending import register_jitable

from fade_sim.advantage import controller, rules
from fade_sim.sim import layout as at
from fade_sim.sim.compile import kernel
from fade_sim.sim.layout import CLIP, EMA, FULL, NONE, STATIC, UNIT
from fade_sim.sim.primitives import add_gradient, copy_matrix, draw_arms, policy, step_key, uniform

for _function in (controller.ema, controller.alpha_of, controller.delta_of, controller.gains_of,
                  rules.scale_constant, rules._asymmetric, rules.power_asym):
    register_jitable(_function)
ema, gains_of, power_asym, Group = controller.ema, controller.gains_of, rules.power_asym, rules.Group



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
        table[c, 0] = power_asym(1.0, group, running[at.ALPHA], running[at.DELTA], w.normalize)
        table[c, 1] = power_asym(0.0, group, running[at.ALPHA], running[at.DELTA], w.normalize)


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
    if math.isnan(running[at.H0]):
        running[at.H0] = entropy
        running[at.HHAT] = entropy
    running[at.PHAT] = ema(running[at.PHAT], solve_rate, w.rate)
    running[at.HHAT] = ema(running[at.HHAT], entropy, w.rate)
    running[at.STEP] += 1.0
    if w.kind == STATIC:
        return
    running[at.ALPHA], running[at.DELTA] = gains_of(
        running[at.PHAT], running[at.HHAT], running[at.H0], running[at.STEP], w.alpha_max, w.delta_min,
        w.h_star, w.relative, w.ablation, w.horizon)
    fill_table(w, running, table)
    factor = w.factor
    if w.kind != FULL:
        base = _total(w.table, successes)
        ratio = _total(table, successes) / base if base > 0.0 else math.nan  # NaN: no signal in the batch
        if w.kind == EMA:
            if not math.isnan(ratio):
                old = running[at.SCALE]
                running[at.SCALE] = ratio if math.isnan(old) else ema(old, ratio, w.scale_rate)
            ratio = running[at.SCALE]
        if math.isnan(ratio):
            ratio = 1.0  # every group is uniform: all weights are 0
        if w.kind == UNIT:
            factor /= ratio
        else:
            copy_matrix(w.table, table)
            factor *= ratio
    for c in range(table.shape[0]):
        table[c, 0] *= factor
        table[c, 1] *= factor


@kernel
def rewarded(world, p):
    """Chance of reward 1 where p is the chance of a success: the verifier may err both ways."""
    return p * (1.0 - world.false_negative) + (1.0 - p) * world.false_positive


@kernel
def _success_mass(world, x, prob):
    p = 0.0
    for a in range(prob.shape[0]):
        if world.success[x, a]:
            p += prob[a]
    return min(p, 1.0)


@kernel
def _draw_rollouts(world, x, mu, stream, start, cdf, draws, arms, rewards):
    """G rollouts of prompt x: fill their arms and rewards (G,); returns the number of rewards."""
    G = arms.shape[0]
    noisy = world.false_negative > 0.0 or world.false_positive > 0.0
    upto = 0.0
    for a in range(mu.shape[0]):
        upto += mu[a]
        cdf[a] = upto
    draw_arms(cdf, stream, start, draws, arms)
    c = 0
    for g in range(G):
        reward = world.success[x, arms[g]]
        if noisy:
            chance = 1.0 - world.false_negative if reward else world.false_positive
            reward = uniform(stream, start + G + g) < chance
        rewards[g] = reward
        c += reward
    return c


@kernel
def _draw_count(world, x, mu, G, u, log_binomial, hit, miss):
    """c ~ Bin(G, P(reward)); hit and miss are the mean counts of the arms given c. One uniform."""
    p = rewarded(world, _success_mass(world, x, mu))
    c = G if p >= 1.0 else 0
    if 0.0 < p < 1.0:
        below = 0.0
        while c < G:
            log_choose = log_binomial[c] + math.log(G / (G - c))
            below += math.exp(log_choose + c * math.log(p) + (G - c) * math.log1p(-p))
            if below > u:
                break
            c += 1
    for a in range(mu.shape[0]):
        chance = 1.0 - world.false_negative if world.success[x, a] else world.false_positive
        hit[a] = c * mu[a] * chance / p if c > 0 else 0.0
        miss[a] = (G - c) * mu[a] * (1.0 - chance) / (1.0 - p) if c < G else 0.0
    return c


@kernel
def sample(world, dyn, state, log_binomial, step, batch):
    """Draw a batch from the behaviour policy.

    Returns the solve rate and mean entropy of every group drawn, before any filter, the number of
    groups drawn, and the solve rate of the groups kept. With dynamic sampling a uniform group is
    replaced by one of another prompt, until max_rounds times the batch has been drawn.
    """
    B, G = dyn.prompts, dyn.group_size
    stream = step_key(dyn.key, step)
    behaviour = state.history[max(step - dyn.lag, 0) % (dyn.lag + 1)]
    solved = 0
    kept = 0
    entropy = 0.0
    drawn = 0
    b = 0
    while b < B:
        start = drawn * (2 * G + 1)
        drawn += 1
        x = min(int(uniform(stream, start) * world.n_train), world.n_train - 1)
        entropy += policy(world, x, behaviour, dyn.use_head, state.theta[x], batch.mu[b], batch.scratch,
                          batch.work)
        if dyn.count:
            c = _draw_count(world, x, batch.mu[b], G, uniform(stream, start + 1), log_binomial,
                            batch.hit[b], batch.miss[b])
        else:
            c = _draw_rollouts(world, x, batch.mu[b], stream, start + 1, batch.scratch, batch.draws, batch.arms[b],
                               batch.rewards[b])
        batch.chosen[b] = x
        batch.successes[b] = c
        solved += c
        if dyn.dynamic and (c == 0 or c == G) and drawn + B - b <= dyn.max_rounds * B:
            continue
        kept += c
        b += 1
    return solved / (drawn * G), entropy / drawn, drawn, kept / (B * G)


@kernel
def _importance(dyn, pi, mu, weight):
    """1, pi/mu, or pi/mu with the PPO clip: 0 once a rollout has gone far enough in its own direction."""
    if dyn.correction == NONE:
        return 1.0
    rho = pi / mu
    far = (weight > 0.0 and rho > 1.0 + dyn.clip) or (weight < 0.0 and rho < 1.0 - dyn.clip)
    return 0.0 if far and dyn.correction == CLIP else rho


@kernel
def _arm_weights(dyn, batch, b, pi, w_s, w_f, row):
    """row (K,) = Am_a of prompt b, from weights already divided by G; returns its sum."""
    K, G = row.shape[0], dyn.group_size
    mu = batch.mu[b]
    total = 0.0
    row[:] = 0.0
    if dyn.count:
        for a in range(K):
            m = (batch.hit[b, a] * _importance(dyn, pi[a], mu[a], w_s) * w_s
                 + batch.miss[b, a] * _importance(dyn, pi[a], mu[a], w_f) * w_f)
            row[a] = m
            total += m
        return total
    for g in range(G):
        a = batch.arms[b, g]
        weight = w_s if batch.rewards[b, g] else w_f
        m = _importance(dyn, pi[a], mu[a], weight) * weight
        row[a] += m
        total += m
    return total


@kernel
def update(world, dyn, state, log_binomial, fresh, batch):
    """One optimiser step on the batch. fresh: mu is the current policy, so pi = mu and the table, which
    nothing reads any more, is updated at once."""
    B = dyn.prompts
    table, grad = state.table, batch.grad
    K = batch.pi.shape[0]
    grad[:] = 0.0
    for b in range(B):
        x = batch.chosen[b]
        row = batch.coef[0 if fresh else b]
        w_s, w_f = table[batch.successes[b], 0], table[batch.successes[b], 1]
        if w_s == 0.0 and w_f == 0.0:
            row[:] = 0.0
            continue
        if dyn.slope_match:
            p = rewarded(world, _success_mass(world, x, batch.mu[b]))
            mean_s, mean_f = mean_weights(table, p, log_binomial)
            slope = mean_s - mean_f
            if slope != 0.0:
                w_s /= slope
                w_f /= slope
        pi = batch.mu[b] if fresh else batch.pi
        if not fresh:
            policy(world, x, state.head, dyn.use_head, state.theta[x], pi, batch.scratch, batch.work)
        total = _arm_weights(dyn, batch, b, pi, w_s / dyn.group_size, w_f / dyn.group_size, row)
        for a in range(K):
            row[a] -= total * pi[a]
        if dyn.use_head:
            add_gradient(world, x, row, grad, batch.work)
        if fresh and dyn.lr_table != 0.0:
            _add_to_table(state.theta[x], dyn.lr_table, row)
    if dyn.use_head:
        _apply(dyn, state, grad, B)
    if not fresh and dyn.lr_table != 0.0:
        for b in range(B):
            _add_to_table(state.theta[batch.chosen[b]], dyn.lr_table, batch.coef[b])


@kernel
def _add_to_table(theta, step, row):
    for a in range(row.shape[0]):
        theta[a] += step * row[a]


@kernel
def _apply(dyn, state, grad, B):
    """SGD or Adam ascent on the head."""
    V, d = grad.shape
    if not dyn.adam:
        for i in range(V):
            for j in range(d):
                state.head[i, j] += dyn.lr * (grad[i, j] / B)
        return
    state.running[at.UPDATES] += 1.0
    t = state.running[at.UPDATES]
    fix1 = 1.0 - at.ADAM_BETA1**t
    fix2 = 1.0 - at.ADAM_BETA2**t
    for i in range(V):
        for j in range(d):
            g = grad[i, j] / B
            m = at.ADAM_BETA1 * state.moment1[i, j] + (1.0 - at.ADAM_BETA1) * g
            v = at.ADAM_BETA2 * state.moment2[i, j] + (1.0 - at.ADAM_BETA2) * g * g
            state.moment1[i, j] = m
            state.moment2[i, j] = v
            state.head[i, j] += dyn.lr * (m / fix1) / (math.sqrt(v / fix2) + at.ADAM_EPS)


@kernel
def train(world, dyn, weights, state, log_binomial, first, last, batch, phase):
    """Steps first .. last-1, in place on `state`.

    phase: WHOLE steps; or one half of a step, DRAW (the batch, the averages, this step's table) or
    LEARN (the passes over the batch), so that a caller may set the table in between.
    """
    running = state.running
    for step in range(first, last):
        if phase != at.LEARN:
            copy_matrix(state.head, state.history[step % (dyn.lag + 1)])
            solve_rate, entropy, drawn, kept = sample(world, dyn, state, log_binomial, step, batch)
            running[at.DRAWN] += drawn
            running[at.PHAT_KEPT] = ema(running[at.PHAT_KEPT], kept, weights.rate)
            weigh(weights, running, batch.successes, solve_rate, entropy, state.table)
        if phase != at.DRAW:
            for epoch in range(dyn.epochs):
                update(world, dyn, state, log_binomial, dyn.lag == 0 and epoch == 0, batch)
