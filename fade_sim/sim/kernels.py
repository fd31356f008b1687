"""The training loop, compiled. Arrays in, arrays filled; no objects and no method's name.

A step: B prompts, G rollouts each from the behaviour policy mu (the head of `lag` steps ago),
rewards, weights from a table of G+1 rows, update of head and table:

    g_W = (1/B) sum_x sum_a (Am_a - pi_a sum_b Am_b) v_a h_a^T,   Am_a = (1/G) sum_{i: arm a} rho_i A_i
    theta_xa += lr_table (Am_a - pi_a sum_b Am_b)

rho_i = 1, pi/mu, or pi/mu with the PPO clip. `reference.py` is the same step in plain NumPy.
Random numbers are a hash of (seed, step, index): no state, so nothing depends on threads.
"""

import math

import numpy as np
from numba.extending import register_jitable

from fade_sim.advantage import controller, rules
from fade_sim.sim import layout as at
from fade_sim.sim.compile import INNER, entry, kernel, part
from fade_sim.sim.draws import draw_arms
from fade_sim.sim.layout import CLIP, EMA, FULL, NONE, STATIC, UNIT
from fade_sim.sim.primitives import (
    copy_matrix,
    linear_gradient,
    linear_logits,
    linear_rows,
    policy,
    step_key,
    uniform,
)
from fade_sim.sim.simd import add_outer, add_scaled, prefetch, set_scaled, softmax_row

for _function in (controller.ema, controller.alpha_of, controller.delta_of, controller.gains_of,
                  rules.scale_constant, rules._asymmetric, rules.power_asym):
    register_jitable(**INNER)(_function)
ema, gains_of, power_asym, Group = controller.ema, controller.gains_of, rules.power_asym, rules.Group


@part
def look_ahead(theta):
    """Rows of a large table are met in random order: so many prompts early they are asked for, at most 4 KB."""
    return max(1, min(6, 512 // theta.shape[1]))


@kernel
def mean_weights(table, p, log_binomial, row):
    """E[weight of a success], E[weight of a failure], signed, when the *other* G-1 rollouts ~ Bin(G-1, p).
    row (1, G) is scratch."""
    n = log_binomial.shape[0] - 1
    if p <= 0.0:
        return table[1, 0], table[0, 1]
    if p >= 1.0:
        return table[n + 1, 0], table[n, 1]
    log_p = math.log(p)
    log_q = math.log1p(-p)
    for c in range(n + 1):
        row[0, c] = log_binomial[c] + c * log_p + (n - c) * log_q
    total, _, _ = softmax_row(row, 0, row, 0, 0)
    s = 0.0
    f = 0.0
    for c in range(n + 1):
        s += row[0, c] * table[c + 1, 0]
        f += row[0, c] * table[c, 1]
    return s / total, f / total


@part
def fill_table(w, running, table):
    """The controller's table at the gains in `running`."""
    G = table.shape[0] - 1
    for c in range(1, G):  # the other rows are 0 from the start
        group = Group(c / G, 0.0, 1.0 / G)
        table[c, 0] = power_asym(1.0, group, running[at.ALPHA], running[at.DELTA], w.normalize)
        table[c, 1] = power_asym(0.0, group, running[at.ALPHA], running[at.DELTA], w.normalize)


@part
def _total(table, successes):
    """sum |A| over a batch with these success counts."""
    G = table.shape[0] - 1
    total = 0.0
    for c in successes:
        total += c * abs(table[c, 0]) + (G - c) * abs(table[c, 1])
    return total


@part
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


@part
def rewarded(noise, p):
    """Chance of reward 1 where p is the chance of a success: the verifier may err both ways."""
    return p * (1.0 - noise[0]) + (1.0 - p) * noise[1]


@part
def _success_mass(success, x, prob, b):
    p = 0.0
    for a in range(prob.shape[1]):
        if success[x, a]:
            p += prob[b, a]
    return min(p, 1.0)


@kernel
def _draw_rollouts(success, x, mu, b, stream, start, noise, row, arms, rewards):
    """Arms and rewards of G rollouts into row b; returns the number of rewards. noise: (false negative,
    false positive) of the verifier. Nothing, compiled to nothing, where arms is None (count mode)."""
    if arms is None:
        return 0
    draw_arms(mu, b, stream, start, row, arms)
    G = rewards.shape[1]
    noisy = noise[0] > 0.0 or noise[1] > 0.0
    c = 0
    for g in range(G):
        reward = success[x, arms[b, g]]
        if noisy:
            reward = uniform(stream, start + G + g) < (1.0 - noise[0] if reward else noise[1])
        rewards[b, g] = reward
        c += reward
    return c


@kernel
def _draw_count(success, x, mu, b, G, u, noise, log_binomial, hit, miss):
    """c ~ Bin(G, P(reward)); hit and miss are the mean counts of the arms given c. One uniform. Nothing
    where hit is None (rollouts are drawn)."""
    if hit is None:
        return 0
    p = rewarded(noise, _success_mass(success, x, mu, b))
    c = G if p >= 1.0 else 0
    if 0.0 < p < 1.0:
        below = 0.0
        while c < G:
            log_choose = log_binomial[c] + math.log(G / (G - c))
            below += math.exp(log_choose + c * math.log(p) + (G - c) * math.log1p(-p))
            if below > u:
                break
            c += 1
    for a in range(mu.shape[1]):
        chance = 1.0 - noise[0] if success[x, a] else noise[1]
        hit[b, a] = c * mu[b, a] * chance / p if c > 0 else 0.0
        miss[b, a] = (G - c) * mu[b, a] * (1.0 - chance) / (1.0 - p) if c < G else 0.0
    return c


@kernel
def _move(rows, source, target):
    """Copy a row of the batch to a slot before it."""
    if rows is not None:
        for k in range(rows.shape[1]):
            rows[target, k] = rows[source, k]


@part
def sample(world, dyn, state, log_binomial, step, batch):
    """Draw a batch from the behaviour policy.

    Returns the solve rate and mean entropy of every group drawn, before any filter, the number of
    groups drawn, and the solve rate of the groups kept. With dynamic sampling a uniform group is
    replaced by one of another prompt, until max_rounds times the batch has been drawn.
    """
    B, G = dyn.prompts, dyn.group_size
    theta, success, token, hidden = state.theta, world.success, world.token_t, world.hidden_t
    chosen, mu, arms, rewards, rows = batch.chosen, batch.mu, batch.arms, batch.rewards, batch.rows
    hit, miss = batch.hit, batch.miss
    head = state.history[max(step - dyn.lag, 0) % (dyn.lag + 1)]
    bilinear = dyn.use_head and not world.linear
    stream, distance = step_key(dyn.key, step), look_ahead(theta)
    solved, kept, entropy = 0, 0, 0.0
    drawn, filled = np.int64(0), np.int64(0)
    while filled < B:  # a round: as many groups as there are free slots
        for b in range(filled, B):
            u = uniform(stream, (drawn + b - filled) * (2 * G + 1))
            chosen[b] = min(int(u * world.n_train), world.n_train - 1)
        if dyn.use_head:
            linear_rows(world.hidden, chosen, filled, rows)
            linear_logits(rows, head, filled, mu)
        for b in range(filled, B):
            start = drawn * (2 * G + 1) + 1
            drawn += 1
            x = chosen[b]
            ahead = chosen[min(b + distance, B - 1)]
            prefetch(success, ahead)
            if dyn.use_head:
                prefetch(theta, ahead)
            if bilinear:
                prefetch(token, ahead)
                prefetch(hidden, ahead)
            entropy += policy(theta, x, head, dyn.use_head, bilinear, token, hidden, mu, b, ahead)
            if dyn.count:
                c = _draw_count(success, x, mu, b, G, uniform(stream, start), world.noise, log_binomial, hit, miss)
            else:
                c = _draw_rollouts(success, x, mu, b, stream, start, world.noise, batch.row, arms, rewards)
            solved += c
            if dyn.dynamic and (c == 0 or c == G) and drawn + B - filled <= dyn.max_rounds * B:
                continue
            if filled < b:
                chosen[filled] = x
                _move(mu, b, filled)
                _move(arms, b, filled)
                _move(rewards, b, filled)
                _move(hit, b, filled)
                _move(miss, b, filled)
                _move(rows, b, filled)
            batch.successes[filled] = c
            kept += c
            filled += 1
    return solved / (drawn * G), entropy / drawn, drawn, kept / (B * G)


@part
def _importance(correction, clip, pi, mu, weight):
    """1, pi/mu, or pi/mu with the PPO clip: 0 once a rollout has gone far enough in its own direction."""
    if correction == NONE:
        return 1.0
    rho = pi / mu
    far = (weight > 0.0 and rho > 1.0 + clip) or (weight < 0.0 and rho < 1.0 - clip)
    return 0.0 if far and correction == CLIP else rho


@kernel
def _mean_counts(correction, clip, hit, miss, b, mu, pi, w_s, w_f, row, coef, n):
    """coef[n] (K,) = Am_a - pi_a sum_b Am_b of group b, in count mode; pi[b] may be coef[n] itself."""
    if hit is not None:
        total = 0.0
        for a in range(pi.shape[1]):
            m = (hit[b, a] * _importance(correction, clip, pi[b, a], mu[b, a], w_s) * w_s
                 + miss[b, a] * _importance(correction, clip, pi[b, a], mu[b, a], w_f) * w_f)
            row[0, a] = m
            total += m
        set_scaled(coef, n, -total, pi, b)
        add_scaled(coef, n, 1.0, row, 0, n)


@kernel
def _coefficients(correction, clip, arms, rewards, b, mu, pi, w_s, w_f, draws, coef, n):
    """coef[n] (K,) = Am_a - pi_a sum_b Am_b of group b, from its rollouts; pi[b] may be coef[n] itself."""
    if arms is not None:
        total = 0.0
        G = rewards.shape[1]
        for g in range(G):
            a = arms[b, g]
            w = w_s if rewards[b, g] else w_f
            m = _importance(correction, clip, pi[b, a], mu[b, a], w) * w
            draws[0, g] = m
            total += m
        set_scaled(coef, n, -total, pi, b)
        for g in range(G):
            coef[n, arms[b, g]] += draws[0, g]


@kernel
def _table_step(arms, rewards, b, c, mu, theta, x, step, w_s, w_f, ahead):
    """theta[x] += step (Am_a - mu_a sum_b Am_b): on-policy, and no head needs the coefficients."""
    if arms is not None:
        G = rewards.shape[1]
        add_scaled(theta, x, -step * (c * w_s + (G - c) * w_f), mu, b, ahead)
        for g in range(G):
            theta[x, arms[b, g]] += step * (w_s if rewards[b, g] else w_f)


@part
def update(world, dyn, state, log_binomial, fresh, batch):
    """One optimiser step on the batch. fresh: mu is the current policy, so pi = mu. In place, groups without
    weight are left out and the others move up: slots 0 .. n-1 are left."""
    B, G = dyn.prompts, dyn.group_size
    table, theta, head = state.table, state.theta, state.head
    success, token, hidden, rows = world.success, world.token_t, world.hidden_t, batch.rows
    chosen, mu, arms, rewards, coef, grad = batch.chosen, batch.mu, batch.arms, batch.rewards, batch.coef, batch.grad
    row, draws, distance = batch.row, batch.draws, look_ahead(theta)
    direct = fresh and not dyn.use_head and not dyn.count
    bilinear = dyn.use_head and not world.linear
    pi = mu if fresh else coef
    if dyn.use_head and not fresh:
        linear_logits(rows, head, np.int64(0), coef)
    for i in range(grad.shape[0]):
        set_scaled(grad, i, 0.0, grad, i)
    n = np.int64(0)
    for b in range(B):
        x, c, ahead = chosen[b], batch.successes[b], chosen[min(b + distance, B - 1)]
        w_s, w_f = table[c, 0] / G, table[c, 1] / G
        if w_s == 0.0 and w_f == 0.0:
            if not dyn.in_place:
                set_scaled(coef, n, 0.0, mu, b)
                n += 1
            continue
        if dyn.slope_match:
            p = rewarded(world.noise, _success_mass(success, x, mu, b))
            mean_s, mean_f = mean_weights(table, p, log_binomial, draws)
            slope = mean_s - mean_f
            if slope != 0.0:
                w_s /= slope
                w_f /= slope
        if direct:
            _table_step(arms, rewards, b, c, mu, theta, x, dyn.lr_table, w_s, w_f, ahead)
            continue
        if not fresh:
            policy(theta, x, head, dyn.use_head, bilinear, token, hidden, pi, b, ahead)
        if dyn.count:
            _mean_counts(dyn.correction, dyn.clip, batch.hit, batch.miss, b, mu, pi, w_s, w_f, row, coef, n)
        else:
            _coefficients(dyn.correction, dyn.clip, arms, rewards, b, mu, pi, w_s, w_f, draws, coef, n)
        if bilinear:
            add_outer(grad, coef, n, token, world.hidden, x, batch.work)
        if n < b:
            chosen[n] = x
            _move(rows, b, n)
        n += 1
    if dyn.use_head:
        linear_gradient(coef, grad, rows, n)
        if dyn.adam:
            _adam(dyn.lr, state.running, grad, 1.0 / B, state.moment1, state.moment2, head)
        else:
            for i in range(grad.shape[0]):
                add_scaled(head, i, dyn.lr / B, grad, i, i)
    if dyn.lr_table != 0.0 and not direct:
        for b in range(n):
            add_scaled(theta, chosen[b], dyn.lr_table, coef, b, chosen[min(b + distance, n - 1)])


@kernel
def _adam(lr, running, grad, scale, moment1, moment2, head):
    """Adam's ascent on the head; nothing where moment1 is None (SGD)."""
    if moment1 is not None:
        running[at.UPDATES] += 1.0
        t = running[at.UPDATES]
        fix1 = 1.0 - at.ADAM_BETA1**t
        fix2 = 1.0 - at.ADAM_BETA2**t
        for i in range(grad.shape[0]):
            for j in range(grad.shape[1]):
                g = grad[i, j] * scale
                m = at.ADAM_BETA1 * moment1[i, j] + (1.0 - at.ADAM_BETA1) * g
                v = at.ADAM_BETA2 * moment2[i, j] + (1.0 - at.ADAM_BETA2) * g * g
                moment1[i, j] = m
                moment2[i, j] = v
                head[i, j] += lr * (m / fix1) / (math.sqrt(v / fix2) + at.ADAM_EPS)


@entry
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


@entry
def gather(table, rewards, out):
    """Advantages of groups of one size: out[p, g] = the table's weight of a reward in group p.

    table: (G+1, 2) of `weight_table`; rewards: (P, G), 1 or 0, any type; out: (P, G) floats. Nothing is
    checked (what is not 1 counts as 0): `advantages` does, and takes about five times as long.
    """
    P, G = rewards.shape
    for p in range(P):
        c = 0
        for g in range(G):
            c += rewards[p, g] == 1
        success, failure = table[c, 0], table[c, 1]
        for g in range(G):
            out[p, g] = success if rewards[p, g] == 1 else failure
