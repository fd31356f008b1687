"""The shared advantage core: NumPy and the standard library only.

>>> from fade_sim.advantage import make, weight_table, advantages
>>> advantages([1, 0, 0, 0], [7, 7, 7, 7], make("dr_grpo")).tolist()
[0.75, -0.25, -0.25, -0.25]
"""

from fade_sim.advantage import controller
from fade_sim.advantage.methods import Method, describe, from_function, load_function, make, methods, parse, resolve
from fade_sim.advantage.registry import RULES
from fade_sim.advantage.table import BatchStats, advantages, batch_scale, step_table, weight_table

__all__ = [
    "RULES", "BatchStats", "Method", "advantages", "batch_scale", "controller", "describe", "from_function",
    "load_function", "make", "methods", "parse", "resolve", "step_table", "weight_table",
]
