"""How cost grows: prompts, rollouts per group, threads. Draws results/scaling.png."""

import math
import resource
import time
from statistics import median

import numpy as np

from benchmarks.problem import Shape, fade, regime_of
from benchmarks.timing import QUIET, Row, Timing, busy, cores, interleave, said
from fade_sim.sim import make_world, simulate
from fade_sim.sim.run import _Replica

ARMS, GROUP = 16, 8
PROMPTS = (10**3, 10**4, 10**5, 10**6)
GROUPS = (8, 16, 32, 64, 128, 256, 512, 1024)
GROUP_PROMPTS, GROUP_ARMS = 256, 64


def replica(shape: Shape) -> _Replica:
    """The table policy; its world is linear, whose features are small and never read at lr 0."""
    regime, contender = regime_of(shape)
    world = {"policy": "linear", "skills": 4, "arms_per_skill": 2, "train_prompts": shape.prompts, "test_prompts": 1,
             "arms": shape.arms, "hidden": 4}
    train = {key: getattr(regime.train, key) for key in ("prompts", "group_size", "lr", "lr_table")}
    regime = fade({"method": {"name": "fade"}, "world": world, "train": train})[0]
    return _Replica(regime.train, contender, make_world(regime.world, 0), 0)


def size(run: _Replica) -> int:
    """Bytes of the arrays that training holds."""
    return sum(a.nbytes for record in (run.world, run.state, run.batch) for a in record if isinstance(a, np.ndarray))


def per_step(shapes: list[Shape], options) -> tuple[list[Timing], list[_Replica]]:
    """Seconds of a step at each shape, all of them interleaved."""
    runs = [replica(shape) for shape in shapes]
    cells = {i: (lambda run=run, n=shape.steps: run.advance(run.step + n, lambda done: None))
             for i, (run, shape) in enumerate(zip(runs, shapes, strict=True))}
    timings = interleave(cells, options.rounds, options.seconds)
    return [Timing(*([t / shape.steps for t in column] for column in timings[i]))
            for i, shape in enumerate(shapes)], runs


def slopes(timings: list[Timing], sizes: list[int], first: int) -> list[float]:
    """Slope of log time over log size from sizes[first] to the last, one per round: 1 is linear."""
    return [math.log(last / start) / math.log(sizes[-1] / sizes[first])
            for start, last in zip(timings[first].cpu, timings[-1].cpu, strict=True)]


def by_threads(options) -> tuple[list[int], list[list[float]], float]:
    """(threads, speed-up of each in each round, cores that others kept busy meanwhile)."""
    counts = sorted({n for n in (1, 2, 4, 8, 16, 32, 64, cores()) if n <= cores()})
    steps = 4000 if options.quick else 20_000  # long beside the drawing of the worlds, which is serial
    raw = {"method": {"name": "fade"}, "train": {"steps": steps, "record": steps, "seeds": 4 * cores()}}
    regime, contender = fade(raw)
    speed_ups = [[] for _ in counts]
    simulate(regime, (contender,), threads=1)
    others = busy()
    for _ in range(options.rounds):
        walls = []
        for n in counts:
            began = time.perf_counter()
            simulate(regime, (contender,), threads=n)
            walls.append(time.perf_counter() - began)
        for i, wall in enumerate(walls):
            speed_ups[i].append(walls[0] / wall)
    return counts, speed_ups, others()


def section(options) -> list[Row]:
    """Slopes in prompts and rollouts, memory, speed-up in threads; the plot beside the report."""
    prompts = PROMPTS[:-1] if options.quick else PROMPTS
    steps, runs = per_step([Shape(n, ARMS, GROUP, max(1, 10**5 // n)) for n in prompts], options)
    held = size(runs[-1])
    del runs
    groups, _ = per_step([Shape(GROUP_PROMPTS, GROUP_ARMS, n, 4) for n in GROUPS], options)
    threads, speed_ups, others = by_threads(options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    rows = [
        Row("scale", f"prompts 1e4 to {prompts[-1]:.0e} (K {ARMS}, G {GROUP}): slope of log time, 1 is linear"
            .replace("e+0", "e"), slopes(steps, prompts, 1), 1.1, 1.2, judged=not options.quick,
            note=f"{said(steps[-1], prompts[-1])} a prompt; {held / prompts[-1]:.0f} bytes a prompt, "
                 f"{held / 2**30:.2f} GiB in all, {peak:.1f} GiB at the peak of the process"),
        Row("scale", f"rollouts {GROUPS[0]} to {GROUPS[-1]} (P {GROUP_PROMPTS}, K {GROUP_ARMS}): slope of log time",
            slopes(groups, GROUPS, 0), 1.0, 1.1,
            note=f"{said(groups[-1], GROUP_PROMPTS * GROUPS[-1])} a rollout at G {GROUPS[-1]}"),
    ]
    if len(threads) > 1:
        goal = 0.9 * threads[-1]
        rows.append(Row("scale", f"{threads[-1]} threads / 1 thread, {4 * cores()} replicas of the default world: wall",
                        speed_ups[-1], goal, goal, more_is_better=True, judged=others < QUIET,
                        note=f"others kept {others:.2f} cores busy (judged below {QUIET})"))
    if options.figure:
        draw(options.figure, (prompts, steps), (GROUPS, groups), (threads, speed_ups))
        options.say(f"scaling: {options.figure.name}")
    return rows


def draw(path, prompts, groups, threads) -> None:
    """Three panels: time of a step over prompts, over rollouts, speed-up over threads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    axes = figure.subplots(1, 3)
    panels = ((prompts, "prompts", f"K {ARMS}, G {GROUP}"),
              (groups, "rollouts per prompt", f"{GROUP_PROMPTS} prompts, K {GROUP_ARMS}"))
    for ax, ((sizes, timings), label, title) in zip(axes, panels, strict=False):
        times = [1e6 * median(t.cpu) for t in timings]
        ax.loglog(sizes, times, "o-", color="C0", ms=4)
        ax.loglog(sizes, [times[-1] * n / sizes[-1] for n in sizes], ":", color="0.5", label="linear")
        ax.set(xlabel=label, ylabel="CPU time of a step (µs)", title=title)
        ax.legend(frameon=False)
    counts, speed_ups = threads
    axes[2].plot(counts, counts, ":", color="0.5", label="ideal")
    axes[2].plot(counts, [median(s) for s in speed_ups], "o-", color="C0", ms=4)
    axes[2].set(xlabel="threads", ylabel="speed-up (wall)", title="replicas", xticks=counts)
    axes[2].legend(frameon=False)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.title.set_size(10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
