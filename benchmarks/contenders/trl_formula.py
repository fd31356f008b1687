"""(r - mean) / (std + 1e-4) of each group of G consecutive rollouts, the operations that TRL runs, on torch."""


def advantages(rewards, group_size: int):
    """rewards (P G,) -> advantages (P G,)."""
    groups = rewards.view(-1, group_size)
    mean = groups.mean(dim=1).repeat_interleave(group_size, dim=0)
    std = groups.std(dim=1).repeat_interleave(group_size, dim=0)
    return (rewards - mean) / (std + 1e-4)
