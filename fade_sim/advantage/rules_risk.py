"""Risk-sensitive and likelihood-like rules. Conventions, Group and notation: see rules.py."""

import math

from fade_sim.advantage.rules import _nonzero, grpo


def log_mean_exp(r, g, beta):
    """A = (1/b)(e^(b r)/mean e^(b r) - 1). m_S = m_F = (kap/b) p q/(1 + kap p), kap = e^b - 1.

    Objective (1/b) log(1 + kap p); peak 1/(1 + e^(b/2)); b -> 0 is dr_grpo. Source: arXiv 2509.24261.
    """
    kap = math.expm1(beta)
    return kap / beta * (r - g.mean) / (1 + kap * g.mean)


def entropic_loo(r, g, beta):
    """e^(b r)/mean over the others of e^(b r) - 1. m_S, m_F near kap p q/(1 + kap p) each.

    For a fixed b. The published rule solves b from KL(tilt; uniform) = ln 2, which no b reaches once
    rbar >= 1/2. Source: public copies of an entropic objective.
    """
    kap = math.expm1(beta)
    others = (g.mean - r * g.inv_size) / _nonzero(1 - g.inv_size)
    return kap * (r - others) / (1 + kap * others)


def maxrl(r, g):
    """A = r/rbar. m_S = 1 - q^G (limit 1), m_F = 0; slope (1 - q^G)/p: log p up to order G.

    Source: arXiv 2602.02710, the paper's estimator.
    """
    return r / _nonzero(g.mean)


def maxrl_coded(r, g):
    """A = (r - rbar)/rbar, all-fail groups 0. m_S = m_F = q - q^G; slope (1 - q^(G-1))/p: order G-1.

    Source: public code of arXiv 2602.02710.
    """
    return (r - g.mean) / _nonzero(g.mean)


def maxrl_std(r, g, eps):
    """A = (r - rbar)/((std + eps)(rbar + eps)), ddof 0. m_S = m_F = sqrt(q/p) in the limit.

    Not the maxrl estimator: the difficulty profile is divided by the std once more. Source: the
    `misc` branch of the public code of arXiv 2602.02710.
    """
    return grpo(r, g, 0, eps) / _nonzero(g.mean + eps)


def linear_r(r, g):
    """A = r/rbar - 1, all-fail groups -1 each. m_S = q - q^G, m_F = q; order G exactly.

    Source: arXiv 2602.11128 (maxrl with its control variate kept).
    """
    return r / _nonzero(g.mean) - 1


def sqrt_r(r, g):
    """A = (r/rbar - 1)/sqrt(1 - rbar). m_S = m_F = sqrt q in the limit; slope 1/(p sqrt q).

    The formula as it stands gives all-fail groups -1 each; the paper's rule for them is not verified.
    Source: arXiv 2602.11128.
    """
    return (r / _nonzero(g.mean) - 1) / _nonzero((1 - g.mean) ** 0.5)


def tsallis(r, g, kappa, centred):
    """A = r rbar^-kap (centred: (r - rbar) rbar^-kap), all-fail groups 0. m_S = p^(1-kap) (times q).

    Objective log_kap p: kap = 0 is plain RL, 1 the log-likelihood. Source: arXiv 2604.25907.
    """
    baseline = g.mean if centred == "on" else 0.0
    return (r - baseline) / _nonzero(g.mean) ** kappa * (g.mean > 0)
