"""Comparison at matched solve rate: rules that learn at different speeds are read where they are equally good."""

from typing import NamedTuple

import numpy as np


def crossing(solve_rate, level: float) -> np.ndarray:
    """Record at which a curve first rises through the level, fractional between two records; NaN where it never does.

    solve_rate: (..., records); the result has the leading shape. A curve that starts at or above the level never
    rises through it: there is no moment at which it has just this solve rate.
    """
    curve = np.asarray(solve_rate, dtype=np.float64)
    above = curve >= level
    after = above.argmax(axis=-1)  # first record at or above the level; 0 where there is none
    before = np.maximum(after - 1, 0)
    low, high = (np.take_along_axis(curve, at[..., None], axis=-1)[..., 0] for at in (before, after))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(after > 0, before + (level - low) / (high - low), np.nan)


def read_at(values, position) -> np.ndarray:
    """values (..., records) at fractional records (...,), linearly between records; NaN at a NaN position."""
    values, position = np.asarray(values, dtype=np.float64), np.asarray(position, dtype=np.float64)
    before = np.nan_to_num(np.floor(position)).astype(int)
    after = np.minimum(before + 1, values.shape[-1] - 1)
    low, high = (np.take_along_axis(values, at[..., None], axis=-1)[..., 0] for at in (before, after))
    share = position - before
    return np.where(share == 0, low, low + share * (high - low))  # a record itself needs no neighbour


def at_solve_rate(trace, metric: str, level: float, by: str = "train_pass@1") -> np.ndarray:
    """(rules, seeds) a metric at the moment at which each run first reaches a train pass@1; NaN where it never does."""
    return read_at(trace.values[metric], crossing(trace.values[by], level))


def steps_to(trace, level: float, by: str = "train_pass@1") -> np.ndarray:
    """(rules, seeds) steps until a run first reaches a train pass@1, between records; NaN where it never does."""
    return read_at(np.broadcast_to(trace.steps, trace.values[by].shape), crossing(trace.values[by], level))


class Fit(NamedTuple):
    """Straight lines through the rules, one per seed. A seed in which any rule has no value has no line."""

    slopes: np.ndarray  # (complete seeds,)
    r2: float  # of the line through the means of the complete seeds; NaN if there are none, or no spread
    means: np.ndarray  # (rules,) over the complete seeds
    missing: np.ndarray  # (rules,) seeds without a value


def fit(x, values) -> Fit:
    """Least-squares line of values (rules, seeds) on x (rules,), per seed, and R^2 of the means.

    ValueError unless x is finite and has two different entries.
    """
    x, values = np.asarray(x, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if not np.isfinite(x).all() or np.ptp(x) == 0:
        raise ValueError(f"a line needs two different finite x, got {x.tolist()}")
    centred = x - x.mean()
    good = np.isfinite(values)
    complete = values[:, good.all(axis=0)]
    slopes = centred @ complete / (centred @ centred)
    means = complete.mean(axis=1) if complete.size else np.full(len(x), np.nan)
    return Fit(slopes, _r2(centred, means), means, (~good).sum(axis=1))


def _r2(centred: np.ndarray, means: np.ndarray) -> float:
    """1 - residual / total sum of squares of the least-squares line."""
    spread = means - means.mean()
    total = spread @ spread
    if not total > 1e-24 * (means @ means):  # all alike, to rounding
        return float("nan")
    return float((centred @ spread) ** 2 / (centred @ centred) / total)


def log_sign_ratio(labels, group_size: int, p: float = 0.5) -> np.ndarray:
    """log(m_S / m_F) of rules at one solve rate, exact at the group size; +-inf where one mass is 0.

    At another p the sign ratio of a constant baseline moves by the same factor for all of them, that of
    asym_delta not at all, and that of asym_pure_loo a little.
    """
    from fade_sim.advantage import parse
    from fade_sim.theory import sign_ratio

    with np.errstate(divide="ignore"):
        return np.log([sign_ratio(parse(label), p, group_size) for label in labels])
