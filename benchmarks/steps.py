"""Cost of a training step: the compiled kernel against the plain NumPy reference, same world, same draws.

    python benchmarks/steps.py [--rounds 5]

Prints CPU time per step, the ratio of medians over interleaved rounds, and the load. Absolute times
mean nothing on a shared machine; the ratio does.
"""

import argparse
import os
import platform
import time

import numpy as np

from fade_sim import config
from fade_sim.advantage import controller, make
from fade_sim.config import Contender
from fade_sim.sim import make_world, reference
from fade_sim.sim.run import _Replica


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default 5)")
    rounds = parser.parse_args().rounds
    rows = []
    for title, overrides in (("on-policy", {"train.staleness": 0}), ("stale by 30", {"train.staleness": 30}),
                             ("stale, Adam", {"train.staleness": 30, "train.optimizer": "adam", "train.lr": 0.02})):
        regime = config.load("fade", overrides).regimes[0]
        world = make_world(regime.world, 0)
        fast, slow = (_Replica(regime.train, Contender("fade", make("fade"), controller.init()), world, 0)
                      for _ in range(2))
        fast.advance(10, lambda n: None)  # compile
        ctrl, step, times = controller.init(), 0, {"kernel": [], "reference": []}
        for _ in range(rounds):
            began = time.process_time()
            fast.advance(fast.step + 2000, lambda n: None)
            times["kernel"].append((time.process_time() - began) / 2000)
            began = time.process_time()
            for _ in range(40):
                ctrl = reference.train_step(world, slow.dyn, slow.method, ctrl, 1.0, slow.state, step)
                step += 1
            times["reference"].append((time.process_time() - began) / 40)
        kernel, plain = np.median(times["kernel"]), np.median(times["reference"])
        rows.append((title, 1e6 * kernel, 1e6 * plain, plain / kernel))
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, numpy {np.__version__}")
    print("default world (B 16, K 32, d = V = 16, G 16), FADE, f64; CPU microseconds per step")
    for title, kernel, plain, ratio in rows:
        print(f"{title:14s} kernel {kernel:8.1f}   reference {plain:9.1f}   ratio {ratio:6.1f}")


if __name__ == "__main__":
    main()
