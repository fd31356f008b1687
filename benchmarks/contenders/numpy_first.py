"""NumPy as first written: vectorised over prompts, nothing reused, float64."""

import numpy as np

from benchmarks.problem import LR, Gains, Problem


def start(problem: Problem):
    """advance(n) -> logits (P, K) after the first n steps."""

    def advance(steps: int) -> np.ndarray:
        rng, gains, z, G = np.random.default_rng(problem.seed), Gains(), problem.bias.copy(), problem.group_size
        rows = np.arange(len(z))[:, None]
        for _ in range(steps):
            e = np.exp(z - z.max(axis=1, keepdims=True))
            pi = e / e.sum(axis=1, keepdims=True)
            cdf = pi.cumsum(axis=1)
            u = rng.random((len(z), G)) * cdf[:, -1:]  # the last sum may miss 1 by a rounding error
            arms = (u[:, :, None] >= cdf[:, None, :]).sum(axis=2)
            r = problem.success[rows, arms].astype(float)
            p = r.mean(axis=1, keepdims=True)
            entropy = -(pi * np.log(pi)).sum(axis=1).mean()
            alpha, delta = gains.update(r.mean(), entropy)
            d = r - p
            advantage = (1 - p) ** (alpha - 1) * np.where(d > 0, d, d / delta)
            weight = np.zeros_like(z)
            np.add.at(weight, (rows, arms), advantage / G)
            z += LR * (weight - weight.sum(axis=1, keepdims=True) * pi)
        return z

    return advance
