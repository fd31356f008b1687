"""Masses of every rule, taken apart and put together again: exactly, by enumeration, and as runs measure them."""

import itertools
import math

import numpy as np

from fade_sim import config
from fade_sim.advantage import RULES, BatchStats, advantages, controller, make, weight_table
from fade_sim.advantage.more_inputs import delightful, ds_grpo, opo, remax
from fade_sim.experiments.numbers import raw
from fade_sim.sim import kernels, layout
from fade_sim.sim.run import dynamics, log_binomial, new_batch, new_state, weights
from fade_sim.sim.world import make_world
from fade_sim.theory import masses


def static_rules(group_size: int):
    """Every rule of the registry that has a table of its own, with its default parameters."""
    rules = (make(name) for name, rule in RULES.items() if not rule.adaptive and name != "table")
    return tuple(method for method in rules if defined(method, group_size))


def defined(method, group_size: int) -> bool:
    """Does the rule exist at this group size (some need k < G)?"""
    at_most = method.rule.at_most
    return at_most is None or method.params[at_most[0]] <= group_size - at_most[1]


def uniform_batch(group_size: int) -> BatchStats:
    """The mean batch of prompts with uniform solve rates: every number of successes is equally likely."""
    return BatchStats(np.arange(group_size + 1), np.full(group_size + 1, group_size))


# --- axes -------------------------------------------------------------------------------------------------


def axes_of(m_S, m_F):
    """(sign, difficulty, scale) of masses on a grid: the angle atan2(m_S, m_F), the mass |m_S| + |m_F| over its
    mean, that mean. The angle also tells a zero or negative mass, which a ratio does not."""
    size = abs(m_S) + abs(m_F)
    return np.arctan2(m_S, m_F), size / size.mean(), float(size.mean())


def masses_from(sign, difficulty, scale: float):
    """(m_S, m_F) of the three axes: the inverse of `axes_of`."""
    up, down = np.sin(sign), np.cos(sign)
    size = scale * difficulty / (abs(up) + abs(down))
    return size * up, size * down


def table_error(method, group_size: int) -> float:
    """Largest error of the table rebuilt from the three axes alone, over its largest weight.

    m_S(p) = sum_c C(G,c) p^c q^(G-c) (c/G) w_S(c) is a polynomial of degree G, so its values at G + 1
    solve rates fix every weight; likewise m_F. Rules that drop uniform groups have none there.
    """
    G = group_size
    p = 0.5 - 0.5 * np.cos(np.pi * (np.arange(G + 1) + 0.5) / (G + 1))
    m_S, m_F = masses_from(*axes_of(*masses(method, G, p, batch=uniform_batch(G))))
    if method.rule.mixed_only:
        m_S, m_F = ((1 - p**G - (1 - p) ** G) * m for m in (m_S, m_F))
    c = np.arange(G + 1)
    chance = np.array([math.comb(G, i) for i in c]) * p[:, None] ** c * (1 - p[:, None]) ** (G - c)
    share_S, share_F = np.linalg.solve(chance, np.stack([m_S, -m_F], axis=1)).T
    table = weight_table(method, G, batch=uniform_batch(G))
    off = np.concatenate([share_S[1:] * G / c[1:] - table[1:, 0], share_F[:-1] * G / (G - c[:-1]) - table[:-1, 1]])
    return float(abs(off).max() / abs(table).max())


# --- enumeration ------------------------------------------------------------------------------------------

POLICY = np.array([0.35, 0.1, 0.4, 0.15])  # four arms; the first two are successes
LENGTHS = np.array([3.0, 9.0, 20.0, 6.0])  # tokens of a rollout, by arm
VALUES = np.array([1.0, 0.6, 0.3, 0.0])  # rewards of the same arms where they are not 0 or 1


def enumerated(advantage, group_size: int, policy=POLICY, rewards=None):
    """(m_S, m_F, residual) over all groups of arms. advantage(arms (groups, G)) -> weights of the same shape.

    residual: |E[update] - (m_S g_S - m_F g_F)| / |E[update]|, g_S and g_F the mean scores over successes and
    failures: 0 where the masses say all there is to say. rewards: of each arm, at least 1/2 is a success.
    """
    hit = (VALUES if rewards is None else rewards) >= 0.5
    arms = np.array(list(itertools.product(range(len(policy)), repeat=group_size)))
    chance = policy[arms].prod(axis=1)
    weight = np.asarray(advantage(arms))
    up = hit[arms]
    m_S = float(chance @ (weight * up).mean(axis=1))
    m_F = float(-chance @ (weight * ~up).mean(axis=1))
    score = np.eye(len(policy)) - policy  # of each arm, along the logits
    update = np.einsum("n,ng,ngk->k", chance, weight, score[arms]) / group_size
    g_S, g_F = (policy[side] @ score[side] / policy[side].sum() for side in (hit, ~hit))
    return m_S, m_F, float(np.linalg.norm(update - (m_S * g_S - m_F * g_F)) / max(np.linalg.norm(update), 1e-300))


def enumeration_errors(method, group_size: int) -> tuple[float, float]:
    """(error of `theory.masses`, residual of the update), both relative, over all groups of four arms."""
    batch, p = uniform_batch(group_size), float(POLICY[:2].sum())

    def weigh(arms):
        return advantages((arms < 2).astype(float), None, method, batch=batch)

    m_S, m_F, residual = enumerated(weigh, group_size)
    exact = masses(method, group_size, p, batch=batch)
    if method.rule.mixed_only:
        exact = tuple((1 - p**group_size - (1 - p) ** group_size) * m for m in exact)
    return max(abs(m_S - exact[0]), abs(m_F - exact[1])) / (abs(m_S) + abs(m_F)), residual


def more_inputs(group_size: int) -> dict[str, float]:
    """Residual of rules that read more than the rewards of 0 and 1, by enumeration."""
    def flat(function):
        def weigh(arms):
            groups = np.repeat(np.arange(len(arms)), group_size)
            return function(arms.ravel(), (arms < 2).astype(float).ravel(), groups).reshape(arms.shape)
        return enumerated(weigh, group_size)[2]

    logp = np.log(POLICY)
    centred = make("dr_grpo")
    found = {
        "opo (lengths)": flat(lambda a, r, g: opo(r, LENGTHS[a], g)),
        "delightful (log-probabilities)": flat(lambda a, r, g: delightful(advantages(r, g, centred), logp[a])),
        "ds_grpo (log-probabilities)": flat(lambda a, r, g: ds_grpo(r, logp[a], g)),
        "remax (greedy rollout)": flat(lambda a, r, g: remax(r, np.zeros_like(r))),
    }
    for method in (centred, make("grpo"), make("power")):
        found[f"{method.name}, continuous rewards"] = enumerated(
            lambda arms, method=method: advantages(VALUES[arms], None, method, continuous=True), group_size)[2]
    return found


def batch_dependence(method, group_size: int, p: float = 0.5) -> float:
    """Mass at one solve rate in a batch of hard prompts over that in a mixed one: 1 for a rule of the group alone."""
    c, hard = np.arange(group_size + 1), np.arange(group_size // 2 + 1)
    high, low = (sum(abs(m) for m in masses(method, group_size, p, batch=BatchStats(x, np.full(len(x), group_size))))
                 for x in (hard, c))
    return high / low


# --- what runs measure ------------------------------------------------------------------------------------


def drawn_groups(train: dict, seeds: int, world: dict | None = None):
    """(successes, solve rates), each (seeds, steps, B): the groups that dr_grpo draws while it trains.

    Solve rates are those of the policy that drew the group, exact.
    """
    cfg = config.resolve(raw("draws", ({"name": "dr_grpo"},), train, world), {}, "draws")
    regime, method = cfg.regimes[0], cfg.contenders[0].method
    table = weight_table(method, regime.train.group_size)
    steps, G = regime.train.steps, regime.train.group_size
    c = np.empty((seeds, steps, regime.train.prompts), dtype=np.int64)
    p = np.empty(c.shape)
    for seed in range(seeds):
        arrays, dyn = make_world(regime.world, seed), dynamics(regime.train, seed)
        state, batch = new_state(arrays, dyn), new_batch(arrays, dyn)
        state.table[:] = table
        args = arrays, dyn, weights(method, controller.init(), table, 1.0, regime.train), state
        for step in range(steps):
            kernels.train(*args, log_binomial(G - 1), step, step + 1, batch, layout.DRAW)
            c[seed, step] = batch.successes
            p[seed, step] = np.clip((batch.mu * arrays.success[batch.chosen]).sum(axis=1), 0.0, 1.0)
            kernels.train(*args, log_binomial(G - 1), step, step + 1, batch, layout.LEARN)
    return c, p


def measured_masses(method, group_size: int, c, p):
    """(measured - exact, exact), each (2, seeds): masses m_S, m_F of a rule on drawn groups, means over them.

    Exact: `theory.masses` at the solve rate of each group. Rules of the batch read the batch that was drawn, and
    their exact masses hold its statistics fixed; only batches with a mean solve rate (of the policy, not of the
    draw) from .1 to .9 count for them, since the spread of a batch without failures is 0 and its inverse is not.
    """
    G = group_size
    share = c / G
    kept = (c > 0) & (c < G) if method.rule.mixed_only else np.ones(c.shape, dtype=bool)
    if method.rule.reads_batch:
        batches = [[BatchStats(row, np.full(len(row), G)) for row in seed] for seed in c]
        tables = np.array([[weight_table(method, G, batch=b) for b in seed] for seed in batches])
        at = np.arange(c.shape[0])[:, None, None], np.arange(c.shape[1])[None, :, None]
        w_S, w_F = tables[(*at, c, 0)], tables[(*at, c, 1)]
        exact = np.array([[masses(method, G, rate, batch=b) for rate, b in zip(*pair, strict=True)]
                          for pair in zip(p, batches, strict=True)])  # (seeds, steps, 2, B)
        exact = np.moveaxis(exact, 2, 0)
        kept = kept & (abs(p.mean(axis=2, keepdims=True) - 0.5) <= 0.4)
    else:
        table = weight_table(method, G)
        w_S, w_F = table[c, 0], table[c, 1]
        exact = np.array(masses(method, G, p))
    found = np.array([share * w_S, -(1 - share) * w_F])
    count = kept.sum(axis=(1, 2))
    off, level = (np.where(kept, x, 0.0).sum(axis=(2, 3)) / count for x in (found - exact, exact))
    return off, level


