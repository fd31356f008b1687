"""Whole runs: what recording adds to bare steps, cold compilation, and the share of a warm run outside kernels."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.problem import Restarted
from benchmarks.timing import Row, interleave, ratios, said
from fade_sim import config

ROOT = Path(__file__).resolve().parent.parent
RECORDED_STEPS = 10_000  # the fixed cost of a simulation is no recording
IMPORTS = "import numpy, numba, scipy.linalg, msgspec, rich.progress, matplotlib.figure"


def recording_cells(steps: int = RECORDED_STEPS) -> dict:
    """A whole simulation of one replica that records at the default interval, and its bare steps."""
    from fade_sim.sim import make_world, simulate
    from fade_sim.sim import run as run_module

    cfg = config.load("fade", {"train.steps": steps, "train.seeds": 1})
    regime, contenders = cfg.regimes[0], cfg.contenders
    world = make_world(regime.world, 0)
    bare = Restarted(regime, contenders[0], world)

    def recorded():
        made, run_module.make_world = run_module.make_world, lambda *args: world  # drawing it is no recording
        try:
            simulate(regime, contenders, threads=1)
        finally:
            run_module.make_world = made

    return {"recorded": recorded, "bare": lambda: bare.advance(steps)}


def recording(options) -> list[Row]:
    """Metrics, heads and their spectra every 25 steps against the same steps without them."""
    timings = interleave(recording_cells(), options.rounds, options.seconds)
    every = config.Train().record
    return [Row("recording", f"simulate, recording every {every} steps / bare steps (default world, FADE)",
                ratios(timings["recorded"], timings["bare"]), 1.3, 1.3,
                note=f"{said(timings['bare'], RECORDED_STEPS)} a bare step")]


def child(command: list[str], **environment: str) -> tuple[float, str]:
    """(CPU seconds, stdout) of a Python process."""
    import resource

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    done = subprocess.run([sys.executable, *command], cwd=ROOT, env={**os.environ, **environment},
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return used() - before, done.stdout


def compilation(options) -> list[Row]:
    """The first run on a machine: CPU time of the default run cut to one record, cache empty, then full."""
    cold, warm, imports = [], [], []
    for _ in range(1 if options.quick else 3):
        with tempfile.TemporaryDirectory() as folder:
            short = ["--train.steps", "1", "--train.seeds", "1", "--threads", "1"]
            for times in (cold, warm):
                name = f"{folder}/{len(times)}-{times is cold}"
                times.append(child(["-m", "fade_sim.cli", "run", *short, "--out", name], NUMBA_CACHE_DIR=folder)[0])
        imports.append(child(["-c", IMPORTS])[0])
    compiled = [c - w for c, w in zip(cold, warm, strict=True)]
    return [
        Row("compile", "cold compilation of the default run: cold - warm, one step of it", compiled, 6, 6, unit=" s",
            note=f"CPU: cold {median(cold):.1f} s, warm {median(warm):.1f} s"),
        Row("compile", "the same / importing what it imports", [c / i for c, i in zip(compiled, imports, strict=True)],
            note=f"{IMPORTS}: {median(imports):.2f} s CPU"),
    ]


def warm(options) -> list[Row]:
    """Share of the CPU time of `fade-sim run` that is not spent in kernels.train and measure."""
    extra = ["--quick"] if options.quick else []
    found = []
    for _ in range(2 if options.quick else 4):
        found.append(json.loads(child(["-m", "benchmarks.warm_run", *extra])[1].splitlines()[-1]))
    found = found[1:]  # the first may have compiled
    last = found[-1]
    return [Row(
        "warm", f"warm fade-sim run{' --quick' if options.quick else ''}: CPU time outside kernels.train and measure",
        [100 * (1 - one["kernels"] / one["total"]) for one in found], 25, 25, unit=" %", judged=not options.quick,
        note=f"of {last['total']:.1f} s CPU from the start of the process, imports and loading of compiled code "
             f"({last['loading']:.2f} s) included")]
