"""The policy-gradient loss of a step, in float32, summed over micro-batches and ranks before it is divided.

Shapes: M answer tokens, N rollouts; `row` (M,) is the rollout of a token. Signs: positive advantage
raises the probability of a token. Loss = -objective.
"""

import math
from typing import NamedTuple

import torch

from fade_sim.settings import Train
from llm.settings import Loss


class Totals(NamedTuple):
    """What the sums of a whole step, over all micro-batches and ranks, are divided by."""

    tokens: int  # answer tokens that carry a gradient
    sequences: int  # rollouts with such tokens
    rollouts: int  # all rollouts


class TokenLoss(NamedTuple):
    """Of each answer token, (M,)."""

    loss: torch.Tensor  # differentiable
    ratio: torch.Tensor  # importance ratio after the cap
    cut: torch.Tensor  # True where the clip or the cap acted
    kl: torch.Tensor  # value of the chosen estimator, 0 without one


def token_weights(length, totals: Totals, denominator: str, constant_length: int) -> torch.Tensor:
    """(N,) float32 factor on each token of a rollout, so that the loss of the step is sum(weight * token loss).

    length: (N,) tokens of each rollout that carry a gradient. token_mean: 1/tokens; sequence_mean:
    1/(sequences * own length); constant: 1/(rollouts * constant_length), the same for every rollout
    whatever its length, masked ones counted. An empty step gives 0, never NaN.
    """
    length = length.float()
    if denominator == "token_mean":
        return torch.full_like(length, 1.0 / max(totals.tokens, 1))
    if denominator == "sequence_mean":
        return 1.0 / (max(totals.sequences, 1) * length.clamp(min=1.0))
    return torch.full_like(length, 1.0 / (max(totals.rollouts, 1) * constant_length))


def token_loss(logprob, old, advantage, row, train: Train, loss: Loss, *, reference=None, entropy=None) -> TokenLoss:
    """Loss of each token: -surrogate + kl_coef * KL - entropy_coef * entropy.

    logprob: (M,) under the policy, differentiable; old: (M,) under the policy that sampled, None where
    that is the same policy (the ratio is then exactly 1). advantage: (N,). train.correction: none
    (A grad log pi whatever the age of the rollouts), ratio (importance weight), clip (PPO: the smaller
    of the two surrogates; with A < 0 it acts below 1 - clip).
    """
    logprob = logprob.float()
    weight = advantage.to(logprob)[row]
    on_policy = logprob - logprob.detach()  # 0 with the gradient of logprob
    if old is None or train.correction == "none":
        log_ratio = torch.zeros_like(on_policy)
    else:
        log_ratio = (logprob - old.float()).detach()
        if loss.ratio == "sequence":
            log_ratio = torch.zeros_like(advantage, dtype=torch.float32).index_add(0, row, log_ratio)[row]
    cut = torch.zeros_like(logprob, dtype=torch.bool)
    if loss.ratio_cap is not None:  # in logs: the exponential of a long sum overflows
        limit = math.log(loss.ratio_cap)
        cut, log_ratio = log_ratio > limit, log_ratio.clamp(max=limit)
    log_ratio = log_ratio + on_policy
    ratio = torch.exp(log_ratio)
    surrogate = ratio * weight
    if train.correction == "clip":
        high = train.clip if loss.clip_high is None else loss.clip_high
        clipped = ratio.clamp(1.0 - train.clip, 1.0 + high) * weight
        cut = cut | (clipped < surrogate).detach()
        surrogate = torch.minimum(surrogate, clipped)
    out = -surrogate
    kl = torch.zeros_like(logprob)
    if loss.kl != "none":
        term = kl_term(logprob, reference.float(), loss.kl)
        kl = term.detach()
        out = out + loss.kl_coef * ratio.detach() * term
    if loss.entropy_coef:
        out = out - loss.entropy_coef * entropy
    return TokenLoss(out, ratio.detach(), cut, kl)


def kl_term(logprob, reference, kind: str) -> torch.Tensor:
    """(M,) estimate of KL(policy || reference) of each token: value k1, k2 or k3, gradient always unbiased.

    With d = log pi - log ref at a sampled token: k1 = d, k2 = d^2/2, k3 = e^-d - 1 + d. The gradient of
    E_pi[d] is E_pi[d grad log pi]; differentiating k1 itself gives 0 on average, and k3 itself the
    gradient of KL(ref || pi). Token by token: what a token does to later states is left out.
    """
    d = (logprob - reference).detach()
    value = {"k1": d, "k2": 0.5 * d**2, "k3": torch.expm1(-d) + d}[kind]
    return value + d * (logprob - logprob.detach())
