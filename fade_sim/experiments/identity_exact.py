"""The identity E[update] = (w_S + w_F) grad p, without sampling: gradients, and heads after many expected steps.

A group is averaged over exactly, so what is left between two rules of equal slope is what the identity
does not cover: old rollouts, a clipped ratio, several passes over one batch.
"""

import numpy as np

from fade_sim import config
from fade_sim.advantage import controller, make, weight_table
from fade_sim.experiments.numbers import raw
from fade_sim.sim import expected, layout
from fade_sim.sim.run import dynamics, new_state
from fade_sim.sim.world import make_world


def gradients(rules, group_size: int, seeds: int) -> dict[str, np.ndarray]:
    """Exact expected gradient of the head at the start, by rule label: (seeds, V d)."""
    regime = config.resolve(raw("gradients", rules, {"group_size": group_size}), {}, "gradients").regimes[0]
    out: dict[str, list] = {}
    for seed in range(seeds):
        world, dyn = make_world(regime.world, seed), dynamics(regime.train, seed)
        for row in rules:
            method = make(**row)
            table = weight_table(method, group_size)
            out.setdefault(method.label, []).append(expected.expected_gradient(world, table, dyn).ravel())
    return {label: np.array(rows) for label, rows in out.items()}


def cosine(x, y) -> np.ndarray:
    """Along the last axis."""
    return (x * y).sum(axis=-1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)


def distances(train: dict, world: dict, rules, steps: int, seeds: int) -> np.ndarray:
    """(rules - 1, seeds): largest distance of a rule's head from the first rule's over the run, over the norm of
    the latter at that step. All in exact expectation."""
    asked = raw("distance", rules, {**train, "mode": "expected", "steps": steps, "seeds": seeds}, world)
    cfg = config.resolve(asked, {}, "distance")
    regime = cfg.regimes[0]
    paths = []
    for seed in range(seeds):
        arrays = make_world(regime.world, seed)
        paths.append([_heads(arrays, dynamics(regime.train, seed), c.method, steps) for c in cfg.contenders])
    heads = np.array(paths).swapaxes(0, 1)  # (rules, seeds, steps, V, d)
    size = np.linalg.norm(heads, axis=(-2, -1))
    apart = np.linalg.norm(heads[1:] - heads[:1], axis=(-2, -1))
    return (apart / size[0]).max(axis=-1)


def _heads(world, dyn: layout.Dynamics, method, steps: int) -> np.ndarray:
    state, ctrl, heads = new_state(world, dyn), controller.init(), []
    for step in range(steps):
        ctrl = expected.train_step(world, dyn, method, ctrl, 1.0, state, step)
        heads.append(state.head.copy())
    return np.array(heads)
