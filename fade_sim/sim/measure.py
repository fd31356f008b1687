"""What a run records, exactly (no sampling), compiled.

Averages over prompts of: pass@k = 1 - (1-p)^k, the entropy H and its parts H_S, H_F (nats;
H = h(p) + p H_S + q H_F), the number of distinct success modes expected in MODE_ROLLOUTS
rollouts; for the training prompts and for the held-out ones. Masses m_S, m_F are exact at the
group size, under the current policy and the current weights (on rewards, where the verifier errs).
phat_kept is phat as a filter of uniform groups would see it, groups_drawn the groups drawn so far
per group used.
"""

import math

import numpy as np

from fade_sim.sim.compile import entry, part
from fade_sim.sim.kernels import mean_weights, rewarded
from fade_sim.sim.layout import ALPHA, DELTA, DRAWN, HHAT, PHAT, PHAT_KEPT, STEP
from fade_sim.sim.simd import add_bilinear, add_scaled, prefetch, set_scaled, softmax_row

MODE_ROLLOUTS = 16
PER_SPLIT = ("pass@1", "pass@10", "pass@100", "entropy", "entropy_success", "entropy_failure", "modes")
METRICS = (
    *(f"train_{name}" for name in PER_SPLIT), *(f"test_{name}" for name in PER_SPLIT),
    "m_S", "m_F", "alpha", "delta", "phat", "Hhat", "phat_kept", "groups_drawn",
)
_N = len(PER_SPLIT)


@part
def _odds(gap):
    """(log p, log q, p, q) from log p - log q, without overflow: e = smaller / larger."""
    e = math.exp(-abs(gap))
    log_large = -math.log1p(e)
    large = 1.0 / (1.0 + e)
    if gap >= 0.0:
        return log_large, log_large - gap, large, e * large
    return log_large + gap, log_large, e * large, large


@entry
def measure(world, state, log_binomial, prompts, batch, out):
    """Fill out (len(METRICS),) for the current head and table. prompts: groups per step; batch: scratch."""
    P, K = world.bias.shape
    z, part, modes, row = batch.row, batch.parts, batch.modes, batch.draws
    for i in range(len(out)):
        out[i] = 0.0
    for x in range(P):
        trained = x < world.n_train
        set_scaled(z, 0, 1.0, state.theta if trained else world.bias, x)
        if world.linear:
            for j in range(state.head.shape[0]):
                add_scaled(z, 0, world.hidden[x, 0, j], state.head, j, 0)
        else:
            prefetch(world.token_t, min(x + 1, P - 1))
            prefetch(world.hidden_t, min(x + 1, P - 1))
            add_bilinear(z, 0, state.head, world.token_t, world.hidden_t, x)
        for a in range(K):
            part[0, a] = z[0, a] if world.success[x, a] else -np.inf
            part[1, a] = -np.inf if world.success[x, a] else z[0, a]
        Z_s, moment_s, top_s = softmax_row(part, 0, part, 0, 0)
        Z_f, moment_f, top_f = softmax_row(part, 1, part, 1, 1)
        log_Z_s = math.log(Z_s)
        log_Z_f = math.log(Z_f)
        h_s = log_Z_s - moment_s / Z_s
        h_f = log_Z_f - moment_f / Z_f
        gap = (top_s - top_f) + (log_Z_s - log_Z_f)  # log p - log q
        log_p, log_q, p, q = _odds(gap)
        for m in range(len(modes)):
            modes[m] = 0.0
        for a in range(K):  # no branch on the pattern of successes: failures add 0 to four slots after the last
            mode = world.mode[x, a]
            modes[mode if mode >= 0 else world.n_modes + a % 4] += part[0, a]
        distinct = 0.0
        for m in range(world.n_modes):
            missed = 1.0 - min(modes[m] * (p / Z_s), 1.0)
            for _ in range(4):  # to the power MODE_ROLLOUTS = 2^4
                missed *= missed
            distinct += 1.0 - missed
        at = 0 if trained else _N
        share = 1.0 / world.n_train if trained else 1.0 / (P - world.n_train)
        out[at] += p * share
        out[at + 1] -= math.expm1(10.0 * log_q) * share
        out[at + 2] -= math.expm1(100.0 * log_q) * share
        out[at + 3] += (-p * log_p - q * log_q + p * h_s + q * h_f) * share
        out[at + 4] += h_s * share
        out[at + 5] += h_f * share
        out[at + 6] += distinct * share
        if trained:
            r = rewarded(world.noise, p)
            mean_s, mean_f = mean_weights(state.table, r, log_binomial, row)
            out[2 * _N] += r * mean_s * share
            out[2 * _N + 1] -= (1.0 - r) * mean_f * share
    out[2 * _N + 2] = state.running[ALPHA]
    out[2 * _N + 3] = state.running[DELTA]
    out[2 * _N + 4] = state.running[PHAT]
    out[2 * _N + 5] = state.running[HHAT]
    out[2 * _N + 6] = state.running[PHAT_KEPT]
    used = state.running[STEP] * prompts
    out[2 * _N + 7] = state.running[DRAWN] / used if used > 0.0 else 1.0
