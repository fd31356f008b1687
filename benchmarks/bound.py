"""Distance of the training step from its bound, per-prompt table policy, FADE, one thread, f64.

    python benchmarks/bound.py [--rounds 5]

Bound of a step with P prompts, K arms, G rollouts: P K exp + P G uniforms + 16 P K bytes copied, with
the unit costs measured in the same run. The kernel is the one that `fade-sim run` calls.
"""

import argparse
import os
import platform
import time

import numba
import numpy as np

from fade_sim import config
from fade_sim.sim import make_world, primitives
from fade_sim.sim.run import _Replica

SHAPES = (("small", 32, 16, 8, 4000), ("medium", 256, 64, 16, 400), ("large", 4096, 256, 64, 6))
exp_negative, uniform = primitives.exp_negative, primitives.uniform


@numba.njit
def _exps(x, out, n):
    for _ in range(n):
        for i in range(x.shape[0]):
            out[i] = exp_negative(x[i])


@numba.njit
def _uniforms(out, n):
    for r in range(n):
        for i in range(out.shape[0]):
            out[i] = uniform(np.uint64(r), i)


def cpu(function, *args, rounds: int) -> float:
    """Median CPU seconds of a call."""
    times = []
    for _ in range(rounds):
        began = time.process_time()
        function(*args)
        times.append(time.process_time() - began)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds per figure (default 5)")
    rounds = parser.parse_args().rounds
    x, out = -np.random.default_rng(0).random(2048), np.zeros(2048)
    big, copy = np.random.default_rng(0).random((2, 1 << 22))
    _exps(x, out, 1)
    _uniforms(out, 1)
    exp = cpu(_exps, x, out, 500, rounds=rounds) / 500 / 2048
    draw = cpu(_uniforms, out, 500, rounds=rounds) / 500 / 2048
    byte = cpu(np.copyto, copy, big, rounds=rounds) / (2 * big.nbytes)
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, numba {numba.__version__}")
    print(f"unit costs: exp {1e9 * exp:.2f} ns, uniform {1e9 * draw:.2f} ns, copy {1e-9 / byte:.1f} GB/s")
    for name, P, K, G, steps in SHAPES:
        raw = {"method": {"name": "fade"},
               "train": {"prompts": P, "group_size": G, "lr": 0, "lr_table": 1.0, "steps": 10**6},
               "world": {"train_prompts": P, "test_prompts": 1, "arms": K, "hidden": 2, "token": 2}}
        cfg = config.resolve(raw, {}, name)
        run = _Replica(cfg.regimes[0].train, cfg.contenders[0], make_world(cfg.regimes[0].world, 0), 0)
        run.advance(3, lambda n: None)
        step = cpu(lambda run=run, steps=steps: run.advance(run.step + steps, lambda n: None), rounds=rounds) / steps
        bound = P * K * exp + P * G * draw + 16 * P * K * byte
        print(f"{name:7s} {P:5d} x {K:3d}, G {G:2d}: {1e6 * step:9.1f} us a step, {step / bound:5.1f} x the bound")


if __name__ == "__main__":
    main()
