"""Rewards of a step's rollouts -> advantages, groups that lost a rollout to their verifier included."""

import numpy as np

from fade_sim.advantage import BatchStats, Method, advantages, controller, make, step_table
from fade_sim.errors import InputError


def weigh(method: Method, state: controller.State, group_size: int, stats: BatchStats, reward, group,
          counted) -> tuple[np.ndarray, np.ndarray, controller.State]:
    """(advantage of each rollout (N,) float64, table of complete groups (G+1, 2), new controller state).

    state: already updated with this batch. stats: the groups of the whole batch, which rules of the batch
    and the scale controls read. reward (N,), group (N,) integer ids: any part of the batch that holds whole
    groups. counted (N,) bool: False leaves its group and gets 0.
    """
    table, after = step_table(method, state, group_size, stats)
    advantage = np.zeros(len(reward))
    _, at = np.unique(group, return_inverse=True)
    size = np.bincount(at, weights=counted)[at].astype(int)
    for n in np.unique(size[counted]).tolist():
        rows = counted & (size == n)
        try:  # a group that lost a rollout to its verifier has the weights of a smaller group
            weights = table if n == group_size else step_table(method, state, n, stats)[0]
        except InputError:  # of a size at which the rule is not defined: nothing is learned from it
            continue
        advantage[rows] = advantages(reward, group, make("table", weights=weights), valid=rows)[rows]
    return advantage, table, after
