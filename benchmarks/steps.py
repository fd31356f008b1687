"""The training step of the per-prompt table policy against its contenders and its bound."""

import time

import numpy as np

from benchmarks import units
from benchmarks.checks import restarts, same_work
from benchmarks.contenders import jax_step, numpy_first, numpy_tuned, torch_step
from benchmarks.problem import SHAPES, Problem, Restarted, solve_rate, table_policy
from benchmarks.timing import Row, Timing, interleave, ratios, said

GOALS = {  # (goal, floor) at small, medium, large
    "NumPy as first written": ((30, 20), (14, 10), (45, 30)),
    "best JAX": ((3.5, 2.5), (5, 3.5), (10, 7)),
    "bound": ((6, 10), (4, 6), (3, 4.5)),
}


def fastest(make, variants, steps: int):
    """(name, advance) of the fastest variant on this problem; each is compiled, then timed three times."""
    best = None
    for variant in variants:
        advance = make(variant)
        advance(steps)
        times = []
        for _ in range(3):
            began = time.process_time()
            advance(steps)
            times.append(time.process_time() - began)
        if best is None or np.median(times) < best[0]:
            best = np.median(times), variant, advance
    return best[1:]


def contenders(problem: Problem, steps: int, options) -> dict:
    """Name -> advance, of everything that is installed."""
    found = {"NumPy as first written": numpy_first.start(problem), "NumPy, tuned": numpy_tuned.start(problem)}
    large = problem.bias.size * problem.group_size > 10**7
    if options.jax:
        variants = [v for v in jax_step.VARIANTS if not (large and v == "gumbel")]  # 25 x the others at this size
        name, advance = fastest(lambda v: jax_step.start(problem, v), variants, steps)
        found[f"best JAX, f32 ({name})"] = advance
    if options.torch:
        name, advance = fastest(lambda v: torch_step.start(problem, v), torch_step.VARIANTS, steps)
        found[f"torch eager, f32 ({name})"] = advance
        if not options.quick and (compiled := torch_step.compiled(problem, options.say)):
            found["torch.compile, f32"] = compiled
    return found


def bound_cells(run: Restarted, shape) -> dict:
    """The kernel beside its unit costs."""
    return {"kernel": lambda: run.advance(shape.steps), **units.cells(shape)}


def bound_row(name: str, timings: dict[str, Timing]) -> Row:
    """The kernel over its bound, both of one step."""
    shape = SHAPES[name]
    steps = Timing(*([t / shape.steps for t in column] for column in timings["kernel"]))
    goal = GOALS["bound"][list(SHAPES).index(name)]
    return Row("steps", f"{name}: step / bound", ratios(steps, units.bound(shape, timings)), *goal,
               note=units.costs(shape, timings))


def section(options) -> list[Row]:
    """Every shape: checks that all train alike, then all in one interleaved run."""
    rows = []
    for at, (name, shape) in enumerate(SHAPES.items()):
        run, problem = table_policy(shape)
        options.require(restarts(run, shape.steps))
        kernel = solve_rate(problem.bias + run.learned(), problem.success)
        cells = bound_cells(run, shape)
        others = contenders(problem, shape.steps, options)
        for label, advance in others.items():
            options.require(same_work(f"{name}, {label}", advance(shape.steps), problem, kernel))
            cells[label] = lambda advance=advance, steps=shape.steps: advance(steps)
        timings = interleave(cells, options.rounds, options.seconds)
        rows.append(bound_row(name, timings))
        rows[-1].note = f"{said(timings['kernel'], shape.steps)} a step of {shape}; {rows[-1].note}"
        for label in others:
            goals = next((pair for start, pair in GOALS.items() if label.startswith(start)), None)
            rows.append(Row("steps", f"{name}: {label} / kernel", ratios(timings[label], timings["kernel"]),
                            *(goals[at] if goals else (None, None)), more_is_better=True,
                            note=f"{said(timings[label], shape.steps)} a step"))
    return rows
