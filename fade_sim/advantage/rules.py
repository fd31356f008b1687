"""Every advantage rule, each as one expression.

A rule maps a reward r (1 success, 0 failure) and the statistics g of its group to the signed
weight A of that rollout in the update (1/G) sum_i A_i grad log pi(tau_i). Rules use arithmetic
only, so the same function runs on floats, NumPy arrays and torch tensors, and in the limit of an
infinite group (g.inv_size = 0) it gives the population weight.

Masses in the docstrings are the population limit, with p the solve rate and q = 1 - p:
m_S = p A(1), m_F = -q A(0). p* is the solve rate at which a mass peaks, `slope` the derivative
J'(p) = m_S/p + m_F/q of the objective that the expected on-policy update climbs.
"""

from typing import Any, NamedTuple


class Group(NamedTuple):
    """Statistics of a group of G rollouts of one prompt; every field may be an array."""

    mean: Any  # solve rate of the group, rbar = c/G, in [0, 1]
    variance: Any  # population variance of its rewards; rbar (1 - rbar) when they are binary
    inv_size: Any  # 1/G, in (0, 1]; 0 is the limit of an infinite group


NORMALIZE = ("none", "peak", "mean", "half")


def scale_constant(alpha, normalize):
    """Factor C that fixes the size of p q^alpha; `normalize` is an index into NORMALIZE.

    peak: same maximum as p q, (1+a)^(1+a) / (4 a^a).  mean: same mean over uniform p,
    (a+1)(a+2)/6.  half: same value at p = 1/2, 2^(a-1).  Plain scalar arithmetic: also compiled.
    """
    if normalize == 1:
        return (1.0 + alpha) * (1.0 + 1.0 / alpha) ** alpha / 4.0  # no overflow at large alpha
    if normalize == 2:
        return (alpha + 1.0) * (alpha + 2.0) / 6.0
    if normalize == 3:
        return 2.0 ** (alpha - 1.0)
    return 1.0


def _nonzero(x):
    """x with exact zeros replaced by 1: for denominators whose numerator is then 0 too."""
    return x + (x == 0)


def _asymmetric(d, delta):
    """Positive part of d, plus its negative part divided by delta (inf: failures weigh nothing)."""
    return (d + abs(d)) / 2 + (d - abs(d)) / 2 / delta


def reinforce(r, g):
    """A = r. m_S = p, m_F = 0; p* = 1; slope 1. No baseline: all-fail groups do not update.

    Source: the `positive` rule (PSR) of arXiv 2506.01347; also RAFT/RFT.
    """
    return r


def reinforce_pm1(r, g):
    """A = 2r - 1. m_S = p, m_F = q; p* = 1 (S), 0 (F); slope 2. Every group updates.

    Source: arXiv 2506.01347 (rewards of +1 and -1).
    """
    return 2 * r - 1


def nsr(r, g):
    """A = r - 1. m_S = 0, m_F = q; p* = 0 (F); slope 1. Negative samples only.

    Source: the `negative` rule of arXiv 2506.01347.
    """
    return r - 1


def baseline(r, g, b):
    """A = r - b. m_S = p (1-b), m_F = q b; p* = 1 (S), 0 (F); slope exactly 1 at every G.

    The clean probe of the sign axis: all b share one expected update. b = 0 is reinforce, 1 nsr.
    """
    return r - b


def dr_grpo(r, g):
    """A = r - rbar. m_S = m_F = p q; p* = 1/2; slope 1 (finite G: 1 - 1/G).

    Source: Dr. GRPO, arXiv 2503.20783. This is what the FADE paper calls GRPO.
    """
    return r - g.mean


def rloo(r, g):
    """A = (r - rbar) G/(G-1): baseline from the other rollouts. m_S = m_F = p q exactly; slope 1.

    Source: arXiv 2402.14740.
    """
    return (r - g.mean) / _nonzero(1 - g.inv_size)


def grpo(r, g, ddof, eps):
    """A = (r - rbar)/(std + eps). m_S = m_F = sqrt(p q); p* = 1/2; slope 1/sqrt(p q).

    std has ddof degrees of freedom removed; objective 2 arcsin sqrt p. Source: arXiv 2402.03300.
    """
    std = (g.variance / _nonzero(1 - ddof * g.inv_size)) ** 0.5
    return (r - g.mean) / _nonzero(std + eps)


def asym_delta(r, g, delta):
    """A = r - rbar, failures divided by delta. m_S = p q, m_F = p q / delta; slope q + p/delta.

    Sign ratio m_S/m_F = delta in every group; p* = 1/2. Source: AsymGRPO of arXiv 2607.01490.
    """
    return _asymmetric(r - g.mean, delta)


def asym_pure(r, g, delta):
    """A = asym_delta / n(rbar), n(x) = (1-x) + x/delta. Sign ratio delta; slope 1 as G -> inf only.

    m_S = p q/n(p), m_F = (p q/delta)/n(p). At finite G the slope still depends on delta.
    """
    return asym_delta(r, g, delta) / _nonzero((1 - g.mean) + g.mean / delta)


def asym_pure_loo(r, g, delta):
    """asym_pure with x = the solve rate of the *other* rollouts: slope exactly 1 at every G.

    w_S = (1-x)/n(x), w_F = (x/delta)/n(x), n(x) = (1-x) + x/delta; sign ratio near delta. (delta = inf:
    slope 1 - p^(G-1), since n(1) = 0 and the lone failure of a group then gets 0.)
    With baseline(b) the only slope-free probe of the sign axis.
    """
    others = (g.mean - r * g.inv_size) / _nonzero(1 - g.inv_size)
    return _asymmetric(r - others, delta) / _nonzero((1 - others) + others / delta)


def power(r, g, alpha, normalize):
    """A = C (1-rbar)^(alpha-1) (r - rbar). m_S = m_F = C p q^alpha; p* = 1/(1+alpha).

    slope C q^(alpha-1): J = C/alpha times pass@alpha. Source: Power(alpha) of arXiv 2607.01490.
    """
    return power_asym(r, g, alpha, 1.0, normalize)


def power_unbiased(r, g, alpha):
    """w_S = C(G-c, alpha)/C(G-1, alpha), w_F = c/(G-c) w_S. m_S = m_F = p q^alpha at every G.

    Integer alpha <= G-1 only: a mass is a polynomial in p, so no unbiased form exists for real
    alpha. alpha = 1 is rloo. p* = 1/(1+alpha); slope q^(alpha-1).
    """
    w = 1.0
    for j in range(int(alpha)):
        left = 1 - g.mean - j * g.inv_size  # (G - c - j)/G
        # Once j passes the number of failures the product is 0; rounding must not revive it.
        w = w * (left * (left > 1e-9)) / _nonzero(1 - (1 + j) * g.inv_size)
    return w * (r - (1 - r) * g.mean / _nonzero(1 - g.mean))


def power_asym(r, g, alpha, delta, normalize):
    """A = C (1-rbar)^(alpha-1) (r - rbar), failures divided by delta: FADE at frozen gains.

    m_S = C p q^alpha, m_F = m_S/delta; p* = 1/(1+alpha); slope C q^(alpha-1) (q + p/delta).
    Source: arXiv 2607.01490.
    """
    hard_focus = (1 - g.mean) ** (alpha - 1)
    return scale_constant(alpha, normalize) * hard_focus * _asymmetric(r - g.mean, delta)
