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

from fade_sim.sim.compile import kernel
from fade_sim.sim.kernels import mean_weights, rewarded
from fade_sim.sim.layout import ALPHA, DELTA, DRAWN, HHAT, PHAT, PHAT_KEPT, STEP
from fade_sim.sim.primitives import logits

MODE_ROLLOUTS = 16
PER_SPLIT = ("pass@1", "pass@10", "pass@100", "entropy", "entropy_success", "entropy_failure", "modes")
METRICS = (
    *(f"train_{name}" for name in PER_SPLIT), *(f"test_{name}" for name in PER_SPLIT),
    "m_S", "m_F", "alpha", "delta", "phat", "Hhat", "phat_kept", "groups_drawn",
)
_N = len(PER_SPLIT)


@kernel
def _conditional(z, success, wanted):
    """(log-sum-exp, entropy) of the softmax restricted to the arms with success == wanted."""
    top = -np.inf
    for a in range(z.shape[0]):
        if success[a] == wanted:
            top = max(top, z[a])
    Z = 0.0
    zsum = 0.0
    for a in range(z.shape[0]):
        if success[a] == wanted:
            x = z[a] - top
            e = math.exp(x)
            Z += e
            zsum += e * x
    return top + math.log(Z), math.log(Z) - zsum / Z


@kernel
def _log1pexp(x):
    """log(1 + e^x) without overflow."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@kernel
def measure(world, state, log_binomial, prompts, out):
    """Fill out (len(METRICS),) for the current head and table; prompts: groups per step."""
    P, K = world.bias.shape
    z = np.empty(K)
    work = np.empty((world.token.shape[2], K))
    modes = np.empty(world.n_modes)
    no_theta = np.zeros(K)
    out[:] = 0.0
    for x in range(P):
        trained = x < world.n_train
        theta = state.theta[x] if trained else no_theta
        logits(world, x, state.head, True, theta, z, work)
        lse_s, h_s = _conditional(z, world.success[x], True)
        lse_f, h_f = _conditional(z, world.success[x], False)
        log_p = -_log1pexp(lse_f - lse_s)
        log_q = -_log1pexp(lse_s - lse_f)
        p = math.exp(log_p)
        q = math.exp(log_q)
        modes[:] = 0.0
        for a in range(K):
            if world.success[x, a]:
                modes[world.mode[x, a]] += math.exp(z[a] - lse_s + log_p)
        distinct = 0.0
        for m in range(world.n_modes):
            distinct -= math.expm1(MODE_ROLLOUTS * math.log1p(-min(modes[m], 1.0 - 1e-16)))
        at = 0 if trained else _N
        n = world.n_train if trained else P - world.n_train
        out[at] += p / n
        out[at + 1] -= math.expm1(10.0 * log_q) / n
        out[at + 2] -= math.expm1(100.0 * log_q) / n
        out[at + 3] += (-p * log_p - q * log_q + p * h_s + q * h_f) / n
        out[at + 4] += h_s / n
        out[at + 5] += h_f / n
        out[at + 6] += distinct / n
        if trained:
            r = rewarded(world, p)
            mean_s, mean_f = mean_weights(state.table, r, log_binomial)
            out[2 * _N] += r * mean_s / n
            out[2 * _N + 1] -= (1.0 - r) * mean_f / n
    out[2 * _N + 2] = state.running[ALPHA]
    out[2 * _N + 3] = state.running[DELTA]
    out[2 * _N + 4] = state.running[PHAT]
    out[2 * _N + 5] = state.running[HHAT]
    out[2 * _N + 6] = state.running[PHAT_KEPT]
    used = state.running[STEP] * prompts
    out[2 * _N + 7] = state.running[DRAWN] / used if used > 0.0 else 1.0
