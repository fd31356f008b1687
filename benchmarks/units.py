"""What the parts of a step cost at least on this machine: exp, uniforms, copied bytes, matrix products.

Written apart from the kernels: a bound that moved with them would bound nothing.
"""

from math import factorial

import numba
import numpy as np

from benchmarks.problem import Shape
from benchmarks.timing import Timing

CALLS = 50
_LOG2E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND, _ONE = 6755399441055744.0, np.int64(0x3FF0000000000000)
_C = tuple(1 / factorial(i) for i in range(12))
_GOLDEN, _MIX1, _MIX2 = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_S30, _S27, _S31, _S11 = (np.uint64(x) for x in (30, 27, 31, 11))


@numba.njit(fastmath={"contract"})
def exps(x, out, calls):
    """e^x of x <= 0, a polynomial of degree 11 that vectorises: relative error below 1e-14."""
    for _ in range(calls):
        for i in range(x.shape[0]):
            y = max(x[i], -708.0)
            shifted = y * _LOG2E + _ROUND
            n = shifted - _ROUND
            r = (y - n * _LN2_HIGH) - n * _LN2_LOW
            p = _C[11] * r + _C[10]
            p = (((((p * r + _C[9]) * r + _C[8]) * r + _C[7]) * r + _C[6]) * r + _C[5]) * r + _C[4]
            p = (((p * r + _C[3]) * r + _C[2]) * r + 1.0) * r + 1.0
            power = (np.float64(shifted).view(np.int64) << np.int64(52)) + _ONE
            out[i] = p * np.int64(power).view(np.float64)


@numba.njit
def uniforms(out, calls):
    """A counter hashed by splitmix64, the cheapest generator that passes as one."""
    for call in range(calls):
        for i in range(out.shape[0]):
            x = (np.uint64(call) << np.uint64(32)) + np.uint64(i) * _GOLDEN
            x = (x ^ (x >> _S30)) * _MIX1
            x = (x ^ (x >> _S27)) * _MIX2
            out[i] = np.float64((x ^ (x >> _S31)) >> _S11) * (1.0 / 9007199254740992.0)


@numba.njit
def copies(source, target, calls):
    for call in range(calls):
        for i in range(source.shape[0]):
            target[i] = source[i] + call  # the addition keeps the compiler from copying once only


@numba.njit
def products(pairs, out, calls):
    """Matrix products in BLAS, without the cost of calling it from Python."""
    for _ in range(calls):
        for i in range(len(pairs)):
            np.dot(pairs[i][0], pairs[i][1], out[i])


def cells(shape: Shape) -> dict:
    """Timed beside the kernel of this shape; `bound` reads the result."""
    x, out = -np.random.default_rng(0).random(2048) * 20, np.empty(2048)
    source = np.random.default_rng(0).random(shape.prompts * shape.arms)
    target = np.empty_like(source)  # as large as the logits: the same cache, or none
    return {
        "exp": lambda: exps(x, out, CALLS),
        "uniform": lambda: uniforms(out, CALLS),
        "copy": lambda: copies(source, target, CALLS),
    }


def bound(shape: Shape, timings: dict[str, Timing]) -> Timing:
    """P K exp + P G uniforms + 16 P K bytes, seconds per step and round."""
    P, K, G, _ = shape

    def step(field: str) -> list[float]:
        columns = (getattr(timings[name], field) for name in ("exp", "uniform", "copy"))
        return [(P * K * e / 2048 + P * G * u / 2048 + c) / CALLS for e, u, c in zip(*columns, strict=True)]

    return Timing(step("cpu"), step("wall"))


def costs(shape: Shape, timings: dict[str, Timing]) -> str:
    """The unit costs in words."""
    exp, uniform = (1e9 * float(np.median(timings[name].cpu)) / (2048 * CALLS) for name in ("exp", "uniform"))
    rate = 16 * shape.prompts * shape.arms * CALLS / float(np.median(timings["copy"].cpu)) / 1e9
    return f"exp {exp:.2f} ns, uniform {uniform:.2f} ns, copy {rate:.0f} GB/s"
