"""What a rule does in exact expectation, in closed form or by exact sums: no sampling, no simulator.

>>> from fade_sim.advantage import make
>>> from fade_sim.theory import masses
>>> m_S, m_F = masses(make("dr_grpo"), 4, 0.5)
>>> m_S, m_F  # (1 - 1/G) p q = 3/4 * 1/4
(0.1875, 0.1875)
"""

from fade_sim.theory.entropy import entropy_change
from fade_sim.theory.masses import closed_masses, masses, population_masses, scale, sign_ratio
from fade_sim.theory.objective import Peak, objective, peak, slope
from fade_sim.theory.stability import growth_factor, safe_delta, stability_number

__all__ = [
    "Peak", "closed_masses", "entropy_change", "growth_factor", "masses", "objective", "peak", "population_masses",
    "safe_delta", "scale", "sign_ratio", "slope", "stability_number",
]
