"""One module per claim; see `claim.py` for the five names that each of them has."""

import importlib

NAMES = ("decomposition", "identity", "entropy", "rank", "difficulty", "fade", "generalisation")


def load(name: str):
    """The module of a claim (heavy: it may import the simulator)."""
    return importlib.import_module(f"fade_sim.experiments.{name}")
