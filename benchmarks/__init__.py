"""Speed of the simulator and of the advantage core, as ratios of CPU time from one run: `python -m benchmarks`."""
