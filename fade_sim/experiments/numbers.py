"""From values per seed to a `Number` with its 95% interval, and settings to raw configs of one regime."""

import re

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
    """`+0.123 [+0.100, +0.146]`, for sentences; `no value` where no seed has one."""
    if not np.isfinite(number.value):
        return "no value"
    return f"{number.value:+.{digits}f} [{number.low:+.{digits}f}, {number.high:+.{digits}f}]"


def spearman(x, y) -> float:
    """Rank correlation; no care for ties, which measured numbers do not have."""
    ranks = [np.argsort(np.argsort(v)).astype(float) for v in (x, y)]
    return float(np.corrcoef(*ranks)[0, 1])


_FIGURE = re.compile(r"([+-]?\d*\.?\d+)(?:\+-(\d*\.?\d+))?")  # .473 or -.024+-.001 (standard error)


def errors_apart(row: Number) -> float | None:
    """Distance to the prototype's figure in joint standard errors, beyond its last printed digit. None where the
    prototype has none, or says more than a figure; infinite where both are exact and differ."""
    said = _FIGURE.fullmatch(row.prototype)
    if said is None or not np.isfinite(row.value):
        return None
    rounding = 0.5 * 10.0 ** -len(said[1].partition(".")[2])
    gap = max(abs(row.value - float(said[1])) - rounding, 0.0)
    own = (row.high - row.low) / 4 if np.isfinite(row.high - row.low) else 0.0  # a 95% interval is about 4 of them
    joint = float(np.hypot(own, float(said[2] or 0)))
    return gap / joint if joint > 0 else float("inf") if gap > 0 else 0.0


def beside_prototype(rows, reasons=()) -> tuple[str, ...]:
    """How the numbers stand to those of the prototype: how many agree, and every one that does not with its reason.

    reasons: (start of a number's name, why it differs), the first that fits is used; without one it says so.
    """
    gaps = [(row, gap) for row in rows if (gap := errors_apart(row)) is not None]
    if not gaps:
        return ()
    far = [row for row, gap in gaps if gap > 2]
    told: dict[str, list[str]] = {}
    for row in far:
        why = next((text for start, text in reasons if row.name.startswith(start)), "not explained")
        told.setdefault(why, []).append(f"{row.name} {row.value:.4g} against {row.prototype.replace('+-', '±')}")
    return (f"{len(gaps) - len(far)} of {len(gaps)} numbers that a prototype of these worlds had, on other seeds, are "
            "within two standard errors of it (one in twenty would not be by chance).",
            *(f"{'; '.join(names)}: {why}." for why, names in told.items()))
