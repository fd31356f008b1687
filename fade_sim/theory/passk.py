"""pass@k of a solve rate: its value, its slope, the two mass forms that climb it, and mixes over k.

p is the solve rate of a prompt in [0, 1], q = 1 - p, k >= 1 (also real). Everything broadcasts.
pass@k as a target of policy gradients: arXiv 2505.15201 (PKPO), 2503.19595; Power(alpha) of
arXiv 2607.01490 is pass@alpha over alpha; MaxRL: arXiv 2602.02710.
The estimator from counts of a recorded sample is `fade_sim.diagnostics.pass_at_k`.
"""

import numpy as np

from fade_sim.errors import InputError


def exact_pass_at_k(p, k):
    """1 - q^k: chance that k independent rollouts hold a success, in [0, 1]; accurate for small p.

    >>> float(exact_pass_at_k(0.5, 2))
    0.75
    """
    p, k = _checked(p, k)
    with np.errstate(divide="ignore"):
        return -np.expm1(k * np.log1p(-p))


def pass_at_k_slope(p, k):
    """d pass@k / dp = k q^(k-1): the slope m_S/p + m_F/q of any rule whose objective is pass@k."""
    p, k = _checked(p, k)
    return k * (1.0 - p) ** (k - 1.0)


def success_only_mass(p, k):
    """m_S = k p q^(k-1) with m_F = 0: pass@k ascent on successes alone. Its peak is at p = 1/k."""
    p, k = _checked(p, k)
    return p * pass_at_k_slope(p, k)


def balanced_mass(p, k):
    """m_S = m_F = k p q^k: the same expected gradient with a group baseline. Its peak is at p = 1/(k+1).

    k times the mass p q^alpha of Power(alpha) at alpha = k.
    """
    p, k = _checked(p, k)
    return p * (1.0 - p) * pass_at_k_slope(p, k)


def success_only_peak(k):
    """Solve rate at which `success_only_mass` is largest: 1/k."""
    return 1.0 / _checked(0.0, k)[1]


def balanced_peak(k):
    """Solve rate at which `balanced_mass` is largest: 1/(k+1). Same gradient, another peak."""
    return 1.0 / (_checked(0.0, k)[1] + 1.0)


def harmonic_mix(p, order: int):
    """sum_{k=1..order} (1/k) pass@k(p): the objective of MaxRL with `order` rollouts, up to a constant.

    Since log p = -sum_k q^k / k, it equals log p + 1 + 1/2 + ... + 1/order + O(q^(order+1)): as the
    order grows its gradient becomes that of the log-likelihood of being solved.
    """
    k = np.arange(1, _order(order) + 1)
    return (exact_pass_at_k(np.asarray(p)[..., None], k) / k).sum(axis=-1)


def harmonic_slope(p, order=np.inf):
    """d harmonic_mix / dp = sum_{k=1..order} q^(k-1) = (1 - q^order)/p; 1/p for order = inf.

    The rule `maxrl` (A = r/rbar) has exactly this slope at order G, and the centred public code
    (`maxrl_coded`) at order G - 1. At p = 0 it is the order itself.
    """
    p, _ = _checked(p, 1)
    if not np.isinf(order):
        order = _order(order)
    safe = np.where(p == 0.0, 1.0, p)
    return np.where(p == 0.0, order, exact_pass_at_k(safe, order) / safe)[()]


def _order(order) -> int:
    if order != int(order) or order < 1:
        raise InputError(f"order is {order!r}, expected an integer of at least 1")
    return int(order)


def _checked(p, k):
    p, k = np.asarray(p, dtype=np.float64), np.asarray(k, dtype=np.float64)
    if not ((p >= 0.0) & (p <= 1.0)).all():
        raise InputError("a solve rate p lies outside [0, 1]")
    if not (k >= 1.0).all():
        raise InputError("k of pass@k must be at least 1")
    return p, k
