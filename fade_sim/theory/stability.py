"""When do stale rollouts make a policy-gradient update unstable? Closed forms.

Rollouts L updates old and no importance ratio: the head's increments D_t = W_{t+1} - W_t obey, to
first order in L eta,

    D_t = eta g_{t-L} + eta A (D_{t-1} + ... + D_{t-L}),   A = E_x[(m_F - m_S)(x) F_x],

F_x the Fisher matrix of prompt x: where failures outweigh successes (m_F > m_S) the policy is pushed
away from the one that made the data. Along an eigenvalue lambda of A, k = eta lambda, an increment
grows by z per step with k (z^-1 + ... + z^-L) = 1. It grows without bound if and only if

    Lambda = eta L lambda_max(A) > 1,

or if a single step overshoots, eta |lambda| > 1 with lambda < 0 (alternating signs, at every L).
The claim that this explains (a rank-1 funnel) is of arXiv 2607.01490; the derivation is this project's.
"""

import numpy as np

from fade_sim.errors import InputError


def stability_number(eta, lag, eigenvalue):
    """Lambda = eta L lambda, dimensionless: the update is unstable above 1.

    eta: learning rate; lag: age of the rollouts in updates; eigenvalue: lambda_max of
    E_x[(m_F - m_S)(x) F_x]. Broadcasts.
    """
    return np.asarray(eta) * lag * eigenvalue


def growth_factor(k, lag):
    """Growth per step, |z|, of the dominant root of k (z^-1 + ... + z^-lag) = 1; broadcasts.

    k = eta lambda, a number or array of any sign; lag: integers of at least 0. Above 1: unstable.
    For k > 0 the dominant root is real and positive: above 1 exactly when k lag > 1, there
    ln z ~ 2 (Lambda - 1)/(Lambda (lag + 1)) with Lambda = k lag, and z -> 1 + k far above. For
    k < 0 it is complex or negative (the size alternates or turns): |z| > 1 exactly when k < -1.
    k = 0 or lag = 0: 0, a perturbation does not persist. Accurate to 1e-12; cost lag^3 for k < 0.

    >>> round(float(np.log(growth_factor(1.25 / 20, 20))), 5)
    0.02202
    """
    k, lag = np.broadcast_arrays(np.asarray(k, dtype=np.float64), np.asarray(lag))
    if not np.isfinite(k).all():
        raise InputError("growth_factor needs finite k")
    if (lag < 0).any() or (lag != np.floor(lag)).any():
        raise InputError(f"lag is {lag.tolist()}, expected integers of at least 0")
    out = np.zeros(k.shape)
    for L in np.unique(lag[lag > 0]).astype(int):
        up, down = (lag == L) & (k > 0), (lag == L) & (k < 0)
        out[up] = np.exp(_log_positive_root(k[up], L))
        out[down] = [_dominant_modulus(x, L) for x in k[down]]
    return out[()]


def _log_positive_root(k, L):
    """y = ln z with log k + log sum_j e^(-j y) = 0, j = 1..L.

    The left side is convex and falls with y, so Newton from a point left of the root climbs to it
    without overshooting. Such points: log k (one term of the sum), log(k)/L (another), and
    2 log(k L)/(L+1) (Jensen); the last is the root to leading order near k L = 1.
    """
    j = np.arange(1, L + 1)
    log_k = np.log(k)
    y = np.maximum(np.maximum(log_k, log_k / L), 2.0 * np.log(k * L) / (L + 1))
    for _ in range(100):
        exponent = -j * y[..., None]
        top = exponent.max(axis=-1, keepdims=True)
        term = np.exp(exponent - top)
        total = term.sum(axis=-1)
        step = (log_k + top[..., 0] + np.log(total)) * total / (term @ j)
        y = y + step
        if (abs(step) <= 1e-15 * (1.0 + abs(y))).all():
            break
    return y


def _dominant_modulus(k, L):
    """Largest |z| among the roots of z^L = k (z^(L-1) + ... + 1), from the companion matrix."""
    companion = np.eye(L, k=-1)
    companion[0] = k
    return abs(np.linalg.eigvals(companion)).max()


def safe_delta(eta, lag, lambda_S):
    """Smallest stable delta of an asymmetric rule, in [0, 1): 1/(1 + 1/(eta L lambda_S)); broadcasts.

    Such a rule divides failures by delta, so m_F = m_S/delta in every group and
    Lambda = eta L (1/delta - 1) lambda_S, lambda_S = lambda_max(E_x[m_S F_x]) >= 0 with m_S the exact
    finite-group mass at the current alpha and scale. Lambda = 1 at the value returned; on-policy
    (lag 0) every delta is safe: 0.

    >>> float(safe_delta(10.0, 20, 0.005))  # eta L lambda_S = 1
    0.5
    """
    x = stability_number(eta, lag, np.asarray(lambda_S, dtype=np.float64))
    if (x < 0).any():
        raise InputError("safe_delta needs eta, lag and lambda_S of at least 0: m_S F_x has no negative eigenvalue")
    return x / (1.0 + x)


def amplification(Lambda):
    """Steady increment under a constant gradient, over the on-policy one: 1/(1 - Lambda); broadcasts.

    Below 1 for Lambda < 0 (success bias damps), infinite from Lambda = 1 on (no steady state). To
    first order only: measured runs are within 6% up to Lambda = .2 and 10 to 20% lower at .4. For a
    test use growth_factor.
    """
    Lambda = np.asarray(Lambda, dtype=np.float64)
    stable = Lambda < 1.0
    return np.where(stable, 1.0 / np.where(stable, 1.0 - Lambda, 1.0), np.inf)[()]
