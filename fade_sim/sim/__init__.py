"""The simulator. Importing it compiles nothing; the first run does (cached afterwards)."""

from fade_sim.sim.run import Trace, require_memory, simulate
from fade_sim.sim.world import WorldArrays, make_world

__all__ = ["Trace", "WorldArrays", "make_world", "require_memory", "simulate"]
