"""Rules that read more than rewards: lengths, log-probabilities, a greedy rollout's reward.

Not functions of (c, G), so they have no table; their masses come from data: m_S is the mean over
rollouts of A on successes (0 on failures), m_F that of -A on failures. Arrays in, float64 array out;
rewards are 0 or 1; `groups` are integer ids, one per rollout.
"""

import numpy as np

from fade_sim.advantage.methods import make
from fade_sim.advantage.table import advantages
from fade_sim.errors import InputError


def opo(rewards, lengths, groups) -> np.ndarray:
    """A = r - sum(l r)/sum(l) over the group: the baseline weighs rollouts by their length, in tokens.

    m_S/m_F = L_F/L_S: longer failures are a success bias. Equal lengths: dr_grpo. A singleton gets 0
    (verl: its raw reward). Source: arXiv 2505.23585.
    """
    r, length = _same(rewards, "rewards", lengths, "lengths")
    _check_rewards(r)
    if not (np.isfinite(length).all() and (length > 0).all()):
        raise InputError("opo: lengths must be positive")
    ids = _ids(groups, r)
    baseline = np.bincount(ids, length * r) / np.bincount(ids, length)
    return r - baseline[ids]


def remax(rewards, greedy_rewards) -> np.ndarray:
    """A = r - reward of the greedy rollout of the same prompt, given per rollout. Source: arXiv 2310.10505.

    Per prompt it is nsr (greedy 1) or reinforce (greedy 0): sign ratio 0 or inf.
    """
    r, b = _same(rewards, "rewards", greedy_rewards, "greedy_rewards")
    _check_rewards(r)
    _check_rewards(b)
    return r - b


def delightful(advantage, logprobs, eta: float = 1.0) -> np.ndarray:
    """A sigma(A l/eta), l = -log-probability of the rollout: surprising successes count more, surprising
    failures less. The gate is 1/2 where A l is 0. Source: arXiv 2603.14608 and third-party code."""
    a, logp = _same(advantage, "advantage", logprobs, "logprobs")
    if not np.isfinite(a).all() or not np.isfinite(logp).all() or (logp > 0).any():
        raise InputError("delightful: advantages must be finite and log-probabilities finite and at most 0")
    if not eta > 0:
        raise InputError(f"delightful: eta is {eta!r}, expected a number above 0")
    x = np.clip(-a * logp / eta, -700.0, 700.0)
    return a / (1.0 + np.exp(-x))


def ds_grpo(rewards, mean_logprobs, groups, coefficient: float = 0.05) -> np.ndarray:
    """grpo (ddof 0, eps 1e-6) minus (successes) or plus (failures) coefficient times the mean token logprob.

    Uniform groups still update through the bonus. Source: differential smoothing, as coded in the
    public repository of arXiv 2602.02710.
    """
    r, logp = _same(rewards, "rewards", mean_logprobs, "mean_logprobs")
    if not np.isfinite(logp).all() or (logp > 0).any():
        raise InputError("ds_grpo: log-probabilities must be finite and at most 0")
    base = advantages(r, np.asarray(groups), make("grpo", ddof=0, eps=1e-6))
    return base - coefficient * logp * np.where(r == 1, 1.0, -1.0)


def empirical_masses(rewards, advantage) -> tuple[float, float]:
    """(m_S, m_F) of given advantages: mean over rollouts of A r, and of -A (1 - r)."""
    r, a = _same(rewards, "rewards", advantage, "advantage")
    _check_rewards(r)
    return float((a * r).mean()), float(-(a * (1 - r)).mean())


def _same(x, name_x: str, y, name_y: str) -> tuple[np.ndarray, np.ndarray]:
    x, y = (np.asarray(v, dtype=np.float64) for v in (x, y))
    if x.ndim != 1 or x.shape != y.shape or not x.size:
        raise InputError(f"{name_y} has shape {y.shape}, expected one per rollout like {name_x} {x.shape}")
    return x, y


def _check_rewards(r: np.ndarray) -> None:
    bad = np.flatnonzero((r != 0) & (r != 1))
    if bad.size:
        raise InputError(f"reward {bad[0]} is {r[bad[0]]:g}, expected 0 or 1")


def _ids(groups, r: np.ndarray) -> np.ndarray:
    ids = np.asarray(groups)
    if ids.shape != r.shape or ids.dtype.kind not in "iu":
        raise InputError(f"groups has shape {ids.shape}, expected one integer id per rollout {r.shape}")
    return np.unique(ids, return_inverse=True)[1].reshape(-1)
