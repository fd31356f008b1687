"""Where a step of the table policy spends its time: each part alone, over the prompts of the shape.

A part here runs on the step's own arrays, one prompt after the other, so large shapes meet cold rows as
the step does; what the parts do not explain is the loop around them and their overlap. A part is called
from Python once for all prompts: at the small shape that is about a fifth of it, and the rest is negative.
"""

import numba
import numpy as np

from benchmarks.problem import SHAPES, table_policy
from benchmarks.timing import Row, Timing, interleave, ratios, said
from fade_sim.sim import draws, kernels, simd

_jit = numba.njit(nogil=True, fastmath={"contract"}, _nrt=False)


@_jit
def softmax(theta, chosen, mu):
    total = 0.0
    for b in range(chosen.shape[0]):
        ahead = chosen[min(b + kernels.look_ahead(theta), chosen.shape[0] - 1)]
        Z, moment, _ = simd.softmax_row(theta, chosen[b], mu, b, ahead)
        simd.set_scaled(mu, b, 1.0 / Z, mu, b)
        total += np.log(Z) - moment / Z
    return total


@_jit
def cumulate(mu, row):
    for b in range(mu.shape[0]):
        draws.cumulate(row, 0, mu, b)


@_jit
def search(row, arms, prompts):
    for b in range(prompts):
        draws.search(row, np.uint64(b), 0, arms, b)


@_jit
def reward(success, chosen, arms, rewards):
    solved = 0
    for b in range(chosen.shape[0]):
        for g in range(rewards.shape[1]):
            rewards[b, g] = success[chosen[b], arms[b, g]]
            solved += rewards[b, g]
    return solved


@_jit
def table_step(arms, rewards, mu, theta, chosen):
    for b in range(chosen.shape[0]):
        ahead = chosen[min(b + kernels.look_ahead(theta), chosen.shape[0] - 1)]
        kernels._table_step(arms, rewards, b, 1, mu, theta, chosen[b], 1e-12, 0.5, -0.5, ahead)


def cells(shape) -> dict:
    """The step and its parts on one problem."""
    run, _ = table_policy(shape)
    replica, steps, B = run.replica, shape.steps, shape.prompts
    batch, success = replica.batch, replica.world.success
    run.advance(steps)
    theta, mu, row = replica.state.theta.copy(), np.empty_like(batch.mu), batch.row.copy()
    chosen = batch.chosen.copy()
    chosen[:] = np.random.default_rng(0).integers(0, shape.prompts, B)
    softmax(theta, chosen, mu)
    cumulate(mu, row)
    return {
        "step": lambda: run.advance(steps),
        "softmax, normalised, with its entropy": lambda: softmax(theta, chosen, mu),
        "running sums for the draws": lambda: cumulate(mu, row),
        "uniforms and search": lambda: search(row, batch.arms, B),
        "rewards of what was found": lambda: reward(success, chosen, batch.arms, batch.rewards),
        "update of the table": lambda: table_step(batch.arms, batch.rewards, mu, theta, chosen),
    }


def section(options) -> list[Row]:
    """Share of the step of each part, by shape."""
    rows = []
    for name, shape in SHAPES.items():
        timings = interleave(cells(shape), options.rounds, options.seconds)
        step = timings.pop("step")
        one_step = Timing([t / shape.steps for t in step.cpu], [t / shape.steps for t in step.wall])
        shares = {part: ratios(timing, one_step) for part, timing in timings.items()}
        for part, timing in timings.items():
            rows.append(Row("parts", f"{name}: {part} / step", shares[part],
                            note=f"{1e9 * np.median(timing.cpu) / shape.prompts:.0f} ns a prompt"))
        left = [1 - sum(of_round) for of_round in zip(*shares.values(), strict=True)]
        rows.append(Row("parts", f"{name}: the rest (loop, weights, cold rows) / step", left,
                        note=f"{said(step, shape.steps)} a step"))
    return rows
