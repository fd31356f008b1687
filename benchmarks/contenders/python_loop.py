"""Advantages by a Python loop over groups, ids in any order: in plain floats, and on torch tensors."""

from collections import defaultdict


def plain(rewards: list[float], ids: list[int], alpha: float, delta: float) -> list[float]:
    """FADE's weights (arXiv 2607.01490) of each rollout, group by group."""
    members = defaultdict(list)
    for i, group in enumerate(ids):
        members[group].append(i)
    out = [0.0] * len(rewards)
    for group in members.values():
        p = sum(rewards[i] for i in group) / len(group)
        focus = (1 - p) ** (alpha - 1)
        for i in group:
            d = rewards[i] - p
            out[i] = focus * (d if d > 0 else d / delta)
    return out


def torch_loop(rewards, ids, alpha: float, delta: float):
    """The same as trainers write it: scalars of a tensor collected by group, one small tensor per group."""
    import torch

    out, scores, focus, mean = rewards.clone(), defaultdict(list), {}, {}
    for i in range(len(rewards)):
        scores[ids[i]].append(rewards[i])
    for group, members in scores.items():
        mean[group] = torch.stack(members).mean()
        focus[group] = (1 - mean[group]) ** (alpha - 1)
    for i in range(len(rewards)):
        d = rewards[i] - mean[ids[i]]
        out[i] = focus[ids[i]] * torch.where(d > 0, d, d / delta)
    return out
