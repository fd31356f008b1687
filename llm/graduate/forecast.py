"""What a finished run of the simulator says about the schedule of a rule: solve rate, alpha, delta over the run."""

import tomllib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fade_sim.errors import InputError, nearest

FIELDS = ("phat", "Hhat", "alpha", "delta", "m_S", "m_F")  # of arrays.npz, per rule, seed and record


class Forecast(NamedTuple):
    """Means over seeds; NaN where a rule has no such number."""

    folder: str
    rule: str
    regime: str
    solve_rates: str  # recorded rollouts that the run started from; "": a made-up world
    group_size: int
    seeds: int
    steps: np.ndarray  # (records,)
    values: dict[str, np.ndarray]  # FIELDS -> (records,)


def read(folder: str, label: str, name: str, stale: bool) -> Forecast:
    """The rule `label`, or else the only one called `name`, in the regime whose rollouts are as stale or fresh.

    folder: of `fade-sim run`, complete. Raises InputError where it is none, or holds no such rule.
    """
    root = Path(folder)
    try:
        raw = tomllib.loads((root / "config.toml").read_text(encoding="utf-8"))
        with np.load(root / "arrays.npz") as file:
            arrays = {key: file[key] for key in file.files}
        regimes = {row["name"]: row for row in raw["regime"]}
        rows = {row["label"]: row["name"] for row in raw["compare"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"--forecast {folder}: is no run folder of fade-sim run ({type(error).__name__})") from None
    kin = [one for one, called in rows.items() if one == label] or [k for k, called in rows.items() if called == name]
    if len(kin) != 1:
        raise InputError(f"--forecast {folder}: has {len(kin) or 'no'} rules like {label!r}{nearest(label, rows)}")
    fits = [r for r, row in regimes.items() if (row["train"]["staleness"] > 0) == stale]
    regime = (fits or list(regimes))[0]
    try:
        at = arrays[f"{regime}/labels"].tolist().index(kin[0])
        values = {field: arrays[f"{regime}/{field}"][at].mean(axis=0) for field in FIELDS}
        steps, seeds = arrays[f"{regime}/steps"], len(arrays[f"{regime}/seeds"])
    except (KeyError, ValueError) as error:
        raise InputError(f"--forecast {folder}: arrays.npz is not of this run ({error})") from None
    train, world = regimes[regime]["train"], regimes[regime]["world"]
    return Forecast(folder, kin[0], regime, world.get("solve_rates", ""), train["group_size"], seeds, steps, values)
