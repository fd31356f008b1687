"""From values per seed to a `Number` with its 95% interval, and settings to raw configs of one regime."""

import numpy as np

from fade_sim.experiments.claim import Number
from fade_sim.report import interval


def measured(name: str, values, **fields) -> Number:
    """Mean over seeds with its 95% interval (Student t). values: (seeds,); fields: predicted, prototype, note."""
    values = np.asarray(values, dtype=np.float64)
    mean, half = (float(x) for x in interval(values))
    return Number(name, mean, mean - half, mean + half, seeds=len(values), **fields)


def above(number: Number, bound: float = 0.0) -> bool:
    """Is the whole interval above the bound?"""
    return number.low > bound


def below(number: Number, bound: float = 0.0) -> bool:
    """Is the whole interval below the bound?"""
    return number.high < bound


def raw(name: str, compare, train: dict, world: dict | None = None, controller: dict | None = None) -> dict:
    """A raw config of one regime, as `cells.trace` takes it."""
    return {"name": name, "train": dict(train), "world": dict(world or {}), "controller": dict(controller or {}),
            "compare": [dict(row) for row in compare]}


def shown(number: Number, digits: int = 3) -> str:
    """`+0.123 [+0.100, +0.146]`, for sentences."""
    return f"{number.value:+.{digits}f} [{number.low:+.{digits}f}, {number.high:+.{digits}f}]"
