"""Rules whose objective is pass@k. Conventions, Group and notation: see rules.py.

rho(n, c, k) = 1 - C(n-c, k)/C(n, k) is the unbiased pass@k of n rollouts with c successes. Weights are
per rollout (papers that write a sum over i are multiplied by G). The expected gradient of pass@k is
k q^(k-1) grad p: success-only k p q^(k-1), peak 1/k, or balanced k p q^k, peak 1/(k+1).
"""

from fade_sim.advantage.rules import _nonzero, dr_grpo, grpo


def _all_fail(failures, size, k, unit):
    """C(failures, k)/C(size, k): chance that k rollouts drawn without replacement all fail.

    failures and size as shares of the group size; unit = 1/G. The limit unit = 0 is failures^k.
    """
    share = 1.0
    for j in range(k):
        left = failures - j * unit
        share = share * (left * (left > 1e-9)) / _nonzero(size - j * unit)  # 0 once j passes the failures
    return share


def pass_at_k_s(r, g, k):
    """PKPO `s`: w_S = k, A(0) = +k rho(G-1, c, k-1): failures are *reinforced*. Slope k q^(k-1), unbiased.

    m_S = k p, m_F = -k q (1 - q^(k-1)). Source: arXiv 2505.15201.
    """
    fail = _all_fail(1 - g.mean - g.inv_size, 1 - g.inv_size, k - 1, g.inv_size)
    return k * r + (1 - r) * k * (1 - fail)


def pass_at_k_loo(r, g, k):
    """PKPO `sloo`: `s` minus a leave-one-out baseline. m_S = m_F = k p q^k in the limit; slope k q^(k-1).

    A(1) = k - k G/(G-1) rho(G-1, c-1, k); A(0) = k rho(G-1, c, k-1) - k G/(G-1) rho(G-1, c, k).
    Needs k <= G-1. Source: arXiv 2505.15201.
    """
    others = 1 - g.inv_size  # (G-1)/G
    failures = 1 - g.mean - (1 - r) * g.inv_size  # among the other rollouts
    baseline = k * (1 - _all_fail(failures, others, k, g.inv_size)) / _nonzero(others)
    return pass_at_k_s(r, g, k) - baseline


def pass_at_k_loo1(r, g, k):
    """PKPO `sloo-1`: A(1) = k C(G-c, k-1)/C(G-1, k-1), A(0) = 0. m_S = k p q^(k-1) exactly; peak 1/k.

    k = 1 is the raw reward. Equals power_asym(k-1, delta=inf) with C = k. Source: arXiv 2505.15201.
    """
    return r * k * _all_fail(1 - g.mean, 1 - g.inv_size, k - 1, g.inv_size)


def pass_at_k_coded(r, g, k):
    """"pkpo" of public MaxRL code: sloo-1 weight without k, then one more leave-one-out baseline.

    A(1) = (G-c) w/(G-1), A(0) = -c w/(G-1), w = C(G-c, k-1)/C(G-1, k-1). m_S = m_F =
    p [(G-k) q^k + (k-1) q^(k-1)]/(G-1): a mix of pass@k and pass@(k-1). Source: arXiv 2602.02710's code.
    """
    w = _all_fail(1 - g.mean, 1 - g.inv_size, k - 1, g.inv_size)
    return w * (r - g.mean) / _nonzero(1 - g.inv_size)


def pass_at_k_tang(r, g):
    """k = G: A(1) = G if it is the only success, else 0 (max_j r_j - max_{j != i} r_j). m_S = G p q^(G-1).

    Unbiased for pass@G; peak 1/G; no limit of an infinite group. Source: arXiv 2503.19595.
    """
    alone = (g.mean > 0.5 * g.inv_size) * (g.mean < 1.5 * g.inv_size)
    return r * alone / _nonzero(g.mean)  # there 1/rbar = G, in the dtype of rbar


def pass_at_k_chen(r, g, k, std):
    """Pass@k Training, analytic: A(1) = (1-rho)/s, A(0) = (1 - rho - C(G-c-1, k-1)/C(G-1, k-1))/s.

    rho = rho(G, c, k), s = sqrt(rho (1-rho)) + 1e-6 (std = on) or 1 (off). On: m_S = m_F =
    p q^(k/2)/sqrt(1 - q^k). Off: (1 - k/G) p q^k exactly; k = G is identically 0. Source: arXiv 2508.10751.
    """
    fail = _all_fail(1 - g.mean, 1.0, k, g.inv_size)  # 1 - rho
    with_me = _all_fail(1 - g.mean - g.inv_size, 1 - g.inv_size, k - 1, g.inv_size)
    advantage = (fail - (1 - r) * with_me) * (g.mean > 0) * (fail > 0)
    if std == "on":
        advantage = advantage / ((fail * (1 - fail)) ** 0.5 + 1e-6)
    return advantage


def mahdavi(r, g, k, base):
    """k (1-rbar)^(k-1) times a base advantage: mean (r - rbar), std (grpo, ddof 0), rft (r).

    m_S = m_F = k p q^k (mean), k p^.5 q^(k-.5) (std); k p q^(k-1), 0 (rft). A plug-in: biased at finite G.
    Source: openreview Dn3gk9auxd; arXiv 2510.23049.
    """
    weight = k * (1 - g.mean) ** (k - 1)
    return weight * {"mean": dr_grpo(r, g), "std": grpo(r, g, 0, 0.0), "rft": r}[base]
