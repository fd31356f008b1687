"""Rules compared at equal solve rate: what a run measures where its train pass@1 first crosses a level.

Runs are never compared at equal steps: a rule may only be faster. A run that does not cross the level has
no value there: it is NaN, never the nearest one, and it is counted. Intervals are 95%, Student t, over the
seeds that have a value; contenders share worlds and uniforms, so differences are taken seed by seed.
"""

from typing import NamedTuple

import numpy as np

from fade_sim.errors import InputError
from fade_sim.experiments.claim import Number
from fade_sim.report import interval

LOG_RATIO_BOUND = float(np.log(1000.0))  # of a rule that weighs only one of the two sides: its ratio is 0 or inf


def at_level(trace, metric: str, level: float, by: str = "train_pass@1") -> np.ndarray:
    """(contenders, seeds): `metric` where `by` first crosses `level` from below.

    Linear between the two records around the crossing. NaN for a run that never reaches the level, that
    starts at or above it, or whose metric is NaN at one of the two records.
    """
    return _where(_values(trace, by), level, _values(trace, metric))


def steps_to(trace, level: float, by: str = "train_pass@1") -> np.ndarray:
    """(contenders, seeds): steps to the first crossing, interpolated; NaN as in `at_level`."""
    x = _values(trace, by)
    return _where(x, level, np.broadcast_to(trace.steps.astype(float), x.shape))


def _where(x, level: float, y) -> np.ndarray:
    reached = x >= level
    at = np.maximum(reached.argmax(axis=-1), 1)[..., None]
    x0, x1, y0, y1 = (np.take_along_axis(v, at - shift, axis=-1)[..., 0] for v in (x, y) for shift in (1, 0))
    crossed = reached.any(axis=-1) & ~reached[..., 0]
    share = np.divide(level - x0, x1 - x0, out=np.full_like(x0, np.nan), where=crossed)
    return y0 + share * (y1 - y0)


def number(name: str, values, **fields) -> Number:
    """Mean with its 95% interval over the seeds that have a value; how many have none is in the note.

    values: (seeds,), NaN where there is none. fields: predicted, prototype, note. Fewer than two seeds with a
    value give no interval, none gives NaN.
    """
    values = np.asarray(values, dtype=np.float64)
    there = values[np.isfinite(values)]
    mean, half = (float(x) for x in interval(there)) if len(there) else (float("nan"),) * 2
    if len(there) < len(values):
        lacking = f"{len(values) - len(there)} of {len(values)} seeds have no value"
        fields["note"] = "; ".join(part for part in (fields.get("note", ""), lacking) if part)
    return Number(name, mean, mean - half, mean + half, seeds=len(there), **fields)


def paired(name: str, values, others, **fields) -> Number:
    """Mean of values - others over the seeds in which both have one, with its interval. Each (seeds,)."""
    return number(name, np.asarray(values, dtype=np.float64) - np.asarray(others, dtype=np.float64), **fields)


class Slope(NamedTuple):
    """A straight line through the contenders of each seed."""

    per_seed: np.ndarray  # (seeds,): change of the value per unit of log(m_S/m_F); NaN where a contender has none
    r2: float  # of the contenders' means over the seeds that are complete; NaN where there is nothing to explain


def slope(log_ratio, values) -> Slope:
    """Least squares of values (contenders, seeds) on log_ratio (contenders,).

    A seed in which a contender is missing gives no slope: a line through the others would compare other rules.
    """
    x, y = np.asarray(log_ratio, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if len(x) < 2 or not np.ptp(x) > 0 or not np.isfinite(x).all():
        raise InputError(f"log_ratio is {x.tolist()}, expected two or more finite numbers that differ")
    centred = x - x.mean()
    per_seed = centred @ y / (centred @ centred)
    complete = np.isfinite(y).all(axis=0)
    if not complete.any():
        return Slope(per_seed, float("nan"))
    mean = y[:, complete].mean(axis=1)
    around = mean - mean.mean()
    total, rest = float(around @ around), around - centred * float(per_seed[complete].mean())
    # spread that is only rounding has nothing in it to explain
    r2 = 1.0 - float(rest @ rest) / total if total > len(y) * (1e-13 * max(abs(mean).max(), 1e-300)) ** 2 else np.nan
    return Slope(per_seed, float(r2))


def slope_number(name: str, log_ratio, values, **fields) -> Number:
    """The slope as a Number, R2 of the contenders' means in its note."""
    line = slope(log_ratio, values)
    fields["note"] = "; ".join(part for part in (fields.get("note", ""), f"R2 {line.r2:.2f}") if part)
    return number(name, line.per_seed, **fields)


def log_sign_ratio(trace, record: int = 0) -> np.ndarray:
    """(contenders,): log(m_S/m_F) of the exact masses at one record (default: the start), means over seeds.

    Within +-log 1000: a rule that weighs only successes, or only failures, has no finite ratio.
    """
    m_S, m_F = (trace.values[name][:, :, record].mean(axis=1) for name in ("m_S", "m_F"))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.clip(np.log(m_S) - np.log(m_F), -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def _values(trace, name: str) -> np.ndarray:
    if name not in trace.values:
        raise InputError(f"{name!r} is not recorded, expected one of {', '.join(trace.values)}")
    return trace.values[name]
