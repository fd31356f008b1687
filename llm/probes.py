"""Diagnostics of a step: what the weights did, what the policy did, and what was predicted.

Every number covers the groups of all processes: sums are reduced, never means. A value that does
not exist (entropy of successes in a batch without one) is None, never 0 or NaN.
"""

from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
import torch

from fade_sim.advantage import controller
from fade_sim.diagnostics import expected_masses, residual_correlation, spectrum
from llm.batch import Rollouts, micro_batches
from llm.parallel import local, whole
from llm.stability import measure_stability

BINS = ("0", "(0, 1/4]", "(1/4, 1/2]", "(1/2, 3/4]", "(3/4, 1)", "1")  # of the solve rate of a group

# --- every step ----------------------------------------------------------------------------------------


@dataclass
class Learned:
    """Sums over the tokens and passes of a step, this process's share."""

    sums: np.ndarray = field(default_factory=lambda: np.zeros(5))  # loss, tokens, ratio, cut, KL
    ratio_max: float = 0.0
    epochs: int = 1
    grad_norm: list[float] = field(default_factory=list)

    def add(self, sums: np.ndarray, ratio_max: float, epoch: int) -> None:
        self.sums += sums
        self.ratio_max = max(self.ratio_max, ratio_max)
        self.epochs = epoch + 1


def token_sums(loss, tokens, share) -> tuple[np.ndarray, float]:
    """(sums of `Learned`, largest ratio) of one micro-batch, over the tokens that carry a gradient."""
    used = share > 0
    ratio = tokens.ratio[used]
    sums = [loss.detach(), used.sum(), ratio.double().sum(), tokens.cut[used].sum(), tokens.kl[used].double().sum()]
    return np.array([float(v) for v in sums]), float(ratio.max()) if len(ratio) else 0.0


def step_row(trainer, batch, table, advantage, learned: Learned) -> dict:
    """The metrics of one step."""
    G, ctrl, ranks = trainer.train.group_size, trainer.controller, trainer.ranks
    scored = batch.drawn[:, 4]
    rate = batch.drawn[scored > 0, 1] / scored[scored > 0]
    adaptive = trainer.settings.contender.method.rule.adaptive
    alpha, delta = controller.gains(ctrl) if adaptive else (None, None)
    stats = batch.stats
    sums = ranks.sum(learned.sums)
    passes = max(sums[1], 1.0)
    return {
        **solve_row(rate), "groups_drawn": len(scored), "groups_used": len(stats.sizes),
        "unscored": int(len(scored) * G - scored.sum()),
        "entropy": float(batch.drawn[:, 2].sum() / batch.drawn[:, 3].sum()),
        "phat": ctrl.phat, "Hhat": ctrl.hhat, "H0": ctrl.h0, "alpha": alpha, "delta": delta,
        **mass_row(table, stats.successes[stats.sizes == G]),
        **rollout_row(batch, advantage, trainer.step, ranks),
        "loss": float(sums[0] / learned.epochs), "grad_norm": learned.grad_norm[0],
        "ratio": float(sums[2] / passes), "ratio_max": ranks.max(learned.ratio_max), "cut": float(sums[3] / passes),
        "kl": float(sums[4] / passes) if trainer.settings.loss.kl != "none" else None,
    }


def solve_row(rate) -> dict:
    """Mean solve rate of groups (P,), and the shares of groups that are uniform and mixed."""
    return {"solve_rate": float(rate.mean()), "all_fail": float((rate == 0).mean()),
            "all_pass": float((rate == 1).mean()), "mixed": float(((rate > 0) & (rate < 1)).mean())}


def mass_row(table, successes) -> dict:
    """Gradient masses of the complete groups of this batch, and their share by solve rate."""
    G = len(table) - 1
    if not len(successes):
        return {"m_S": None, "m_F": None, "sign_ratio": None, "mass_by_solve_rate": None}
    own = np.eye(G + 1)[successes]  # each group as it is
    m_S, m_F = expected_masses(table, own)
    total = float((m_S + m_F).sum())
    at = np.select([successes == 0, successes == G], [0, 5], np.minimum(np.ceil(4 * successes / G), 4).astype(int))
    share = np.bincount(at, weights=m_S + m_F, minlength=6) / total if total else np.zeros(6)
    mean_S, mean_F = float(m_S.mean()), float(m_F.mean())
    return {"m_S": mean_S, "m_F": mean_F, "sign_ratio": mean_S / mean_F if mean_F else None,
            "mass_by_solve_rate": dict(zip(BINS, share.tolist(), strict=True))}


def rollout_row(batch, advantage, step: int, ranks) -> dict:
    """Rewards, advantages, lengths, entropies and ages of the rollouts learned from."""
    own = batch.counted
    r = batch.rollouts.select(own) if own.any() else batch.rollouts.select(slice(0, 0))
    mine = np.stack([r.group, r.reward, advantage[own], r.length, r.finished, r.entropy.double().sum(1), r.born], 1)
    group, reward, weight, length, finished, entropy, born = np.concatenate(ranks.gather(mine)).T
    tokens = [(length * (reward == v)).sum() for v in (1, 0)]
    split = [float((entropy * (reward == v)).sum() / n) if n else None for v, n in zip((1, 0), tokens, strict=True)]
    rate = np.array([reward[group == g].mean() for g in np.unique(group)])
    return {
        "entropy_success": split[0], "entropy_failure": split[1],
        "advantage_abs": float(np.abs(weight).mean()), "reward_std": float(reward.std()),
        "reward_std_within": float(np.sqrt((rate * (1 - rate)).mean())),
        "length": float(length.mean()), "length_min": int(length.min()), "length_max": int(length.max()),
        "truncated": float(1.0 - finished.mean()), "age": float(step - born.mean()),
    }


# --- the sampler against the trainer -------------------------------------------------------------------


def sampler_ratio(policy, rollouts: Rollouts, settings) -> float:
    """Mean of policy probability over sampler probability of fresh tokens: 1 if both mean the same policy."""
    part = rollouts.select(slice(0, settings.parallel.micro_batch)).to(policy.device)
    with torch.no_grad():
        logprob = policy.score(part, settings.rollout.temperature, settings.parallel.chunk).logprob
    return float(torch.exp(logprob - part.logprob[part.answer]).mean())


def with_entropy(policy, rollouts: Rollouts, settings, ranks) -> Rollouts:
    """The same rollouts, their entropies measured by the trainer."""
    entropy = torch.zeros_like(rollouts.logprob)
    for rows, real in micro_batches(len(rollouts), settings.parallel.micro_batch, ranks):
        part = Rollouts(**{k: v[rows] for k, v in rollouts.tensors().items()}).to(policy.device)
        with torch.no_grad():
            values = policy.score(part, settings.rollout.temperature, settings.parallel.chunk).entropy.cpu()
        if real:
            entropy[rows] = entropy[rows].masked_scatter(rollouts.answer[rows], values)
    return replace(rollouts, entropy=entropy)


# --- every train.record steps --------------------------------------------------------------------------


def head_weight(policy) -> torch.Tensor | None:
    """A copy of the head's weight, whole, in float32 on the CPU; None where the head is not trained."""
    weight = getattr(policy.head, "weight", None)
    return whole(weight.detach()).float().cpu().clone() if weight is not None and weight.requires_grad else None


class Probe:
    """Costly diagnostics of one step: built before the update, read after it."""

    def __init__(self, policy, batch, settings, ranks):
        self.policy, self.rollouts, self.settings, self.ranks = policy, batch.rollouts, settings, ranks
        self.counted = batch.counted
        self.slope = settings.probe.entropy_slope
        if self.slope:
            self.before, self.gradient = self._entropy(gradient=True)
            self.weights = {k: local(p.detach()).clone() for k, p in policy.trainable().items()}
        self.hidden = self._hidden_states()

    def row(self, trainer, table) -> dict:
        """Entropy slope, spectrum of the head update, residual correlations, Lambda."""
        out: dict = {}
        if self.slope:
            moved = ((k, local(p.detach()) - self.weights[k]) for k, p in self.policy.trainable().items())
            predicted = sum(float((self.gradient[k].double() * d.double()).sum()) for k, d in moved)
            sharded = any(hasattr(p, "to_local") for p in self.policy.trainable().values())
            out["entropy_slope_predicted"] = float(self.ranks.sum(predicted)) if sharded else predicted
            out["entropy_slope_measured"] = self._entropy(gradient=False)[0] - self.before
        out |= self._head(trainer.first_head)
        out |= self._correlations()
        if self.settings.probe.stability:
            age = float(trainer.step - 1 - self.rollouts.born.double().mean())
            out |= measure_stability(trainer, table, max(age, trainer.train.staleness))  # the first steps are younger
        return out

    def _entropy(self, gradient: bool) -> tuple[float, dict | None]:
        """(mean entropy of this batch's answer tokens under the policy, its gradient by name)."""
        s, rollouts = self.settings, self.rollouts
        tokens = float(self.ranks.sum(int((rollouts.length * self.counted).sum())))
        total = 0.0
        for rows, real in micro_batches(len(rollouts), s.parallel.micro_batch, self.ranks):
            part, share = rollouts.select(rows).to(self.policy.device), self.counted[rows] * real / tokens
            with torch.set_grad_enabled(gradient):
                entropy = self.policy.score(part, s.rollout.temperature, s.parallel.chunk,
                                            entropy_grad=gradient).entropy
                entropy = (entropy * share.to(entropy).repeat_interleave(part.length)).sum()
            total += float(entropy.detach())
            if gradient:
                (entropy * self.ranks.size).backward()
        grads = None
        if gradient:
            grads = {k: local(p.grad).clone() if p.grad is not None else torch.zeros_like(local(p.detach()))
                     for k, p in self.policy.trainable().items()}
            for p in self.policy.trainable().values():
                p.grad = None
        return float(self.ranks.sum(total)), grads

    def _hidden_states(self) -> tuple[np.ndarray, np.ndarray]:
        """(second moment (d, d) of the hidden states of answer tokens, mean hidden state of each rollout (N, d))."""
        rollouts, second, means = self.rollouts, 0.0, []
        for rows, real in micro_batches(len(rollouts), self.settings.parallel.micro_batch, self.ranks):
            part, own = rollouts.select(rows).to(self.policy.device), self.counted[rows].to(self.policy.device) & real
            with torch.no_grad():
                h = self.policy.hidden(part).double()
            row = torch.arange(len(part), device=h.device).repeat_interleave(part.length)
            h = h * own[row, None]
            second = second + h.T @ h
            total = torch.zeros(len(part), h.shape[1], dtype=h.dtype, device=h.device).index_add(0, row, h)
            means += [(total / part.length[:, None])[own].cpu().numpy()]
        return self.ranks.sum(second.cpu().numpy()), np.concatenate(means)

    def _head(self, first) -> dict:
        """Spectrum of the head's cumulative update; its share on the common direction u1 of the hidden states (M1)."""
        now = head_weight(self.policy)
        if now is None or first is None:
            return {}
        update = (now - first).double().numpy()
        if not update.any():
            return {}
        rank1, stable, effective = spectrum(update)
        direction = np.linalg.eigh(self.hidden[0])[1][:, -1]
        M1 = float(((update @ direction) ** 2).sum() / (update**2).sum())
        return {"rank1": float(rank1), "stable_rank": float(stable), "effective_rank": float(effective),
                "M1_share": M1, "M2_share": 1.0 - M1}

    def _correlations(self) -> dict:
        """Residual correlations of the mean hidden states of rollouts, by both definitions."""
        r, own = self.rollouts, self.counted
        text = [tuple(ids[mask].tolist()) for ids, mask in zip(r.ids[own], r.answer[own], strict=True)]
        mine = list(zip(r.group[own].tolist(), text, r.reward[own].tolist(), self.hidden[1], strict=True))
        distinct: dict = {}  # group -> answer -> [hidden state, success, count]
        for group, answer, reward, hidden in sorted(chain(*self.ranks.gather(mine)), key=lambda row: row[:2]):
            distinct.setdefault(group, {}).setdefault(answer, [hidden, reward == 1, 0])[2] += 1
        shape = len(distinct), max(map(len, distinct.values()))
        hidden, weight, success = np.zeros((*shape, len(self.hidden[0]))), np.zeros(shape), np.zeros(shape, dtype=bool)
        for i, answers in enumerate(distinct.values()):
            for j, (state, reward, count) in enumerate(answers.values()):
                hidden[i, j], success[i, j], weight[i, j] = state, reward, count
        first = np.linalg.eigh(self.hidden[0])[1][:, -1]
        rho = residual_correlation(hidden, weight, success, direction=first)
        return {"rho_success": rho.distinct_success, "rho_failure": rho.distinct_failure,
                "rho_success_all": rho.all_success, "rho_failure_all": rho.all_failure}
