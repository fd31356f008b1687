"""Rules that rescale a group baseline: by the group's std, by difficulty, or by the whole batch.

Conventions, Group and notation: see rules.py. Rules of the batch take a third argument, Batch.
"""

import math
from typing import Any, NamedTuple

from fade_sim.advantage.rules import _nonzero, grpo


class Batch(NamedTuple):
    """Statistics of the whole batch that some rules read; every group counts by its size."""

    mean: Any  # mean reward
    std: Any  # sample std (ddof 1) of the raw rewards
    std_population: Any  # the same with ddof 0
    std_centred: Any  # sample std of r - rbar of its group
    group_mean: Any  # mean of the groups' solve rates, every group equal
    group_variance: Any  # population variance of the groups' solve rates
    mixed: Any  # share of rollouts in groups that are neither all-fail nor all-pass


def w_reinforce(r, g, lam):
    """A = lam for a success, -1 for a failure. m_S = lam p, m_F = q; slope 1 + lam. Source: arXiv 2506.01347."""
    return lam * r - (1 - r)


def asym_re(r, g, dv):
    """A = r - (rbar + dV). m_S = p q - p dV, m_F = p q + q dV: m_S - m_F = -dV. Source: arXiv 2506.20520.

    On-policy dV is inert; with stale data it is a KL term. Uniform groups update by -dV.
    """
    return r - g.mean - dv


def wapo(r, g):
    """A = max(r - rbar, 0). m_S = p q, m_F = 0; slope q. Source: arXiv 2606.16154."""
    return (r - g.mean + abs(r - g.mean)) / 2


def grpo_loo(r, g, eps):
    """Leave-one-out mean and leave-one-out sample std, divided only where that std is > 0.

    Not sign balanced: the only success of a group has others of std 0 and stays unnormalised.
    Source: NeMo RL's default.
    """
    n = _nonzero(1 - g.inv_size)
    others = (g.mean - r * g.inv_size) / n
    spread = others * (1 - others) * n / _nonzero(1 - 2 * g.inv_size)  # ddof 1 among G-1
    spread = spread * (spread > 1e-12)  # rounding of 0
    return (r - others) / ((spread**0.5 + eps) * (spread > 0) + (spread == 0))


def f_grpo(r, g, gamma, ddof, eps):
    """(1-rbar)^gamma times grpo. m_S = m_F = p^.5 q^(gamma+.5); p* = 1/(2+2 gamma). Source: arXiv 2602.06717."""
    return (1 - g.mean) ** gamma * grpo(r, g, ddof, eps)


def qae(r, g, k):
    """Baseline = the K-quantile: hard groups (rbar <= 1-K) A = r/sd, easy ones (r-1)/sd; uniform 0.

    m_S = sqrt(p/q), 0 on hard prompts; 0, m_F = sqrt(q/p) on easy ones; slope that of grpo.
    Source: arXiv 2509.22611 (public code interpolates the quantile and can differ at one c).
    """
    easy = (g.mean > 1 - k + 1e-9) * 1.0  # torch has no subtraction of booleans
    return (r - easy) / _nonzero(g.variance**0.5) * (g.variance > 0)


def grpo_lead(r, g):
    """grpo (ddof 1, eps 1e-6), successes times W(rbar), failures times W(1-rbar).

    W(x) = .4 + 1.1/(1 + e^(10 (x - .75))); sign ratio W(p)/W(q). Source: arXiv 2504.09696.
    """
    a = grpo(r, g, 1, 1e-6)
    success, failure = (0.4 + 1.1 / (1 + math.e ** (10 * (x - 0.75))) for x in (g.mean, 1 - g.mean))
    return (a + abs(a)) / 2 * success + (a - abs(a)) / 2 * failure


def asym_power_gu(r, g, b_pos, b_neg):
    """A = (q/p)^b_pos for a success, -(p/q)^b_neg for a failure, at rbar; uniform groups 0.

    m_S = p^(1-b_pos) q^b_pos, m_F = p^b_neg q^(1-b_neg); b = .5 is grpo. "AsymGRPO" of arXiv 2604.04894,
    not FADE's asym_delta.
    """
    p, q = _nonzero(g.mean), _nonzero(1 - g.mean)
    return (r * (q / p) ** b_pos - (1 - r) * (p / q) ** b_neg) * (g.variance > 0)


def reinforce_pp(r, g, batch, eps):
    """A = (r - batch mean)/sqrt(batch variance + eps), ddof 1. Uniform groups update. arXiv 2501.03262 (verl)."""
    return (r - batch.mean) / _nonzero((batch.std**2 + eps) ** 0.5)


def reinforce_pp_baseline(r, g, batch, eps):
    """A = (r - rbar)/sqrt(batch variance of r - rbar + eps). arXiv 2501.03262 (group baseline variant)."""
    return (r - g.mean) / _nonzero((batch.std_centred**2 + eps) ** 0.5)


def lite_ppo(r, g, batch, eps):
    """A = (r - rbar)/(batch std of the raw rewards + eps). arXiv 2508.08221; TRL scale_rewards="batch"."""
    return (r - g.mean) / _nonzero(batch.std + eps)


def gpg(r, g, batch, variant):
    """A = a (r - rbar). paper: a = B/(B - M), M rollouts in uniform groups; verl: a = 1/mean reward.

    Source: arXiv 2504.02546.
    """
    share = batch.mixed if variant == "paper" else batch.mean
    return (r - g.mean) / _nonzero(share)


def bnpo(r, g, batch):
    """A = (r - rbar)/Beta(rbar; al, be), al = max(1, 1 + a/3), be = max(1, 1 + b/3), 1/Beta at most 1e6.

    (a, b): Beta distribution with the mean and variance of the batch's solve rates. al = be = 1 is
    dr_grpo, al = be = 3/2 is proportional to grpo. Identical solve rates fit no Beta: al = be = 1.
    Source: arXiv 2506.02864.
    """
    spread = batch.group_mean * (1 - batch.group_mean)
    common = spread / batch.group_variance - 1 if batch.group_variance > 0 else 0.0
    al = max(1.0, 1 + batch.group_mean * common / 3)
    be = max(1.0, 1 + (1 - batch.group_mean) * common / 3)
    log_norm = math.lgamma(al) + math.lgamma(be) - math.lgamma(al + be)
    p, q = _nonzero(g.mean), _nonzero(1 - g.mean)  # uniform groups: r - rbar is 0
    log_weight = log_norm + (1 - al) * _log(p) + (1 - be) * _log(q)
    log_weight = (log_weight + 13.815510557964274 - abs(log_weight - 13.815510557964274)) / 2  # min(., ln 1e6)
    return (r - g.mean) * math.e**log_weight


def _log(x):
    """Natural logarithm by the library that x belongs to."""
    if hasattr(x, "log"):  # torch
        return x.log()
    import numpy as np

    return np.log(x)


def a_grae(r, g, batch, threshold, eps):
    """grpo (ddof 1) times (1-P)/(2 (1 - sqrt rbar)) + P/(2 sqrt rbar), successes times min(1, P/threshold).

    P: batch mean of the groups' solve rates. Focus moves from easy to hard as P rises: FADE's opposite.
    Source: arXiv 2602.05548, as coded (1 - sqrt rbar, eps 1e-6 in every denominator).
    """
    P = batch.group_mean
    root = g.mean**0.5
    a = grpo(r, g, 1, eps) * ((1 - P) / (2 * (1 - root + eps)) + P / (2 * (root + eps)))
    return (a + abs(a)) / 2 * min(1.0, P / threshold) + (a - abs(a)) / 2
