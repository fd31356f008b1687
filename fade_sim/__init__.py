"""Policy-gradient weights in RL with verifiable rewards: the rules, their theory and a simulator.

Importing this package imports nothing else: `fade_sim.advantage` needs NumPy alone,
`fade_sim.sim` adds Numba, `fade_sim.figures` Matplotlib.
"""

__version__ = "0.1.0"
