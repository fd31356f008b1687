"""JAX: jit around lax.scan over the steps, float32, on one thread.

Which sampler is fastest depends on the shape, so several are offered and the benchmark keeps the best.
"""

import os
from functools import partial

import numpy as np

from benchmarks.problem import ALPHA_MAX, DELTA_MIN, LR, RATE, Problem


def load() -> None:
    """Import JAX with one thread: its pools take their size from the cores the process may use at that time."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["JAX_PLATFORMS"] = "cpu"
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        if cores:
            os.sched_setaffinity(0, {min(cores)})
        import jax

        jax.devices()
    finally:
        if cores:
            os.sched_setaffinity(0, cores)


def _cumsum(jnp, e):
    return jnp.cumsum(e, axis=1)


def _triangle(jnp, e):
    """Sums as a product with a triangular matrix, in blocks of 16: XLA's cumsum on a CPU is slow."""
    P, K = e.shape
    block = 16 if K % 16 == 0 else K
    blocks = e.reshape(P, K // block, block) @ jnp.triu(jnp.ones((block, block), e.dtype))
    before = jnp.cumsum(blocks[:, :, -1], axis=1) - blocks[:, :, -1]
    return (blocks + before[:, :, None]).reshape(P, K)


def _count(jnp, cdf, u):
    return (u[:, :, None] >= cdf[:, None, :]).sum(axis=2, dtype=jnp.int32)


def _bisect(jnp, cdf, u):
    arms, n = jnp.zeros(u.shape, jnp.int32), cdf.shape[1]
    while n > 1:
        half = n // 2
        arms = arms + half * (jnp.take_along_axis(cdf, arms + (half - 1), axis=1) <= u)
        n -= half
    return arms


def _searchsorted(jnp, cdf, u):
    import jax

    return jax.vmap(partial(jnp.searchsorted, side="right", method="scan_unrolled"))(cdf, u)


CDFS = {"cumsum": _cumsum, "triangle": _triangle}
SEARCHES = {"count": _count, "bisect": _bisect, "searchsorted": _searchsorted}
VARIANTS = (*(f"{cdf}+{search}" for cdf in CDFS for search in SEARCHES), "gumbel")


def start(problem: Problem, variant: str):
    """advance(n) -> logits (P, K) after the first n steps."""
    import jax
    import jax.numpy as jnp

    (P, K), G = problem.bias.shape, problem.group_size
    success = jnp.asarray(problem.success)
    bias = jnp.asarray(problem.bias, jnp.float32)
    rows = jnp.arange(P)[:, None]

    def draw(key, z, e):
        if variant == "gumbel":
            return jax.random.categorical(key, z[:, None, :], shape=(P, G))
        cdf, search = variant.split("+")
        cdf = CDFS[cdf](jnp, e)
        u = jax.random.uniform(key, (P, G)) * cdf[:, -1:]
        return jnp.minimum(SEARCHES[search](jnp, cdf, u), K - 1)

    def step(carry, _):
        z, phat, hhat, h0, key = carry
        key, sub = jax.random.split(key)
        x = z - z.max(axis=1, keepdims=True)
        e = jnp.exp(x)
        total = e.sum(axis=1, keepdims=True)
        entropy = (jnp.log(total[:, 0]) - (e * x).sum(axis=1) / total[:, 0]).mean()
        arms = draw(sub, z, e)
        r = success[rows, arms]
        p = r.mean(axis=1, keepdims=True)
        h0 = jnp.where(h0 < 0, entropy, h0)
        hhat = jnp.where(hhat < 0, entropy, hhat)
        phat = phat + RATE * (p.mean() - phat)
        hhat = hhat + RATE * (entropy - hhat)
        alpha = jnp.clip(1.5 * (1 - phat) / phat, 1.0, ALPHA_MAX)
        delta = jnp.clip(1.0 + hhat - 0.5 * h0, DELTA_MIN, 1.0)
        d = r - p
        advantage = (1 - p) ** (alpha - 1) * jnp.where(d > 0, d, d / delta) / G
        dense = advantage.sum(axis=1, keepdims=True) / total
        z = (z - LR * dense * e).at[rows, arms].add(LR * advantage)
        return (z, phat, hhat, h0, key), (p.mean(), entropy)

    @partial(jax.jit, static_argnums=1)
    def scan(z, steps):
        first = (z, jnp.float32(0.5), jnp.float32(-1), jnp.float32(-1), jax.random.key(problem.seed))
        last, recorded = jax.lax.scan(step, first, length=steps)
        return last[0], recorded

    def advance(steps: int) -> np.ndarray:
        return np.asarray(jax.block_until_ready(scan(bias, steps))[0])

    return advance
