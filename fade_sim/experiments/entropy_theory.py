"""One step of entropy, predicted by `fade_sim.theory.entropy` and measured in the simulator, from the initial policy.

Two comparisons. Shared head in exact expectation: the first order against the change that a step really makes.
A table per prompt, sampled groups: the first order is the same for every slope-free rule, whatever its sign
ratio, so what differs between such rules must come from the second order, the noise of the groups.
"""

import numpy as np

from fade_sim.advantage import parse, weight_table
from fade_sim.experiments.numbers import raw


def expected_head(label: str, group_size: int, lr: float, world: dict, seeds: int) -> np.ndarray:
    """(seeds,) first-order dH of one exact step of the shared head, mean over the training prompts. Formula 3."""
    from fade_sim.experiments.rank_theory import start
    from fade_sim.theory import entropy as theory  # both heavy: not before something runs

    table = weight_table(parse(label), group_size)
    out = []
    for seed in range(seeds):
        at = start(world, seed)
        n = np.arange(len(at.p))
        token, hidden, hit = at.world.token[n], at.world.hidden[n], at.world.success[n]
        coef = theory.group_moments(at.policy, hit, table).mean
        dhead = lr * np.einsum("nk,nkv,nkd->vd", coef, token, hidden) / len(n)
        out.append(theory.bilinear_step(at.policy, token, hidden, dhead).mean())
    return np.array(out)


def expected_table(label: str, group_size: int, lr: float, world: dict, seeds: int) -> dict[str, np.ndarray]:
    """Predicted dH of one sampled step of the table, each (seeds,): "first", "second" order, and "second" of H_S, H_F.

    Every training prompt gets a Poisson-like number n of groups: as many are drawn as there are prompts, with
    replacement, so E n = 1 and Var n = 1 - 1/N. With m, C the moments of one group's update,
    E dz = lr m and Cov dz = lr^2 (C + Var(n) m m^T). "first" is H(z + E dz) - H(z), to all orders in the mean.
    """
    from fade_sim.experiments.rank_theory import start
    from fade_sim.theory import entropy as theory  # both heavy: not before something runs

    table = weight_table(parse(label), group_size)
    names = ("first", "second", "second_S", "second_F")
    rows = []
    for seed in range(seeds):
        at = start(world, seed)
        hit = at.world.success[: len(at.p)]
        mean, covariance = theory.group_moments(at.policy, hit, table)
        drawn_again = (1 - 1 / len(at.p)) * mean[:, :, None] * mean[:, None, :]
        moved = at.policy * np.exp(lr * mean)
        first = theory.entropy(moved / moved.sum(axis=-1, keepdims=True)) - theory.entropy(at.policy)
        second = theory.second_order_split(at.policy, hit, lr**2 * (covariance + drawn_again))
        rows.append([first.mean(), *(change.mean() for change in second)])
    return dict(zip(names, np.array(rows).T, strict=True))


def one_step_config(what: str, labels, train: dict, world: dict) -> dict:
    """The raw config of a single step, recorded before and after."""
    rows = [{"name": method.name, **method.params} for method in map(parse, labels)]
    return raw(what, rows, {**train, "steps": 1, "record": 1}, world)


def one_step(what: str, labels, train: dict, world: dict, cells) -> dict[str, np.ndarray]:
    """{label: (seeds,)} change of the training prompts' entropy over one step of the simulator."""
    trace = cells.trace(one_step_config(what, labels, train, world), what)
    change = trace.values["train_entropy"][:, :, 1] - trace.values["train_entropy"][:, :, 0]
    return dict(zip(labels, change, strict=True))
