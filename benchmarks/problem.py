"""The task that the kernel and every contender solve, and the kernel's side of it.

P prompts, K arms, G rollouts, one logit per prompt and arm. A step: softmax, G draws per prompt with
replacement, binary rewards, success counts, FADE's weights (two moving averages couple the batch), an
update of every logit, entropy, solve rate. The kernel draws its P prompts with replacement, as `fade-sim
run` does, and follows indices; the contenders take each prompt once, in order, which favours them.
A contender is `start(problem, ...) -> advance`; advance(n) takes the first n steps and returns the logits.

Every timed call starts from the same untrained logits and takes the same number of steps: as prompts are
solved more weights become 0, and nobody should be timed on an easier stretch than the others.
"""

from typing import NamedTuple

import numpy as np

from fade_sim import config
from fade_sim.sim import make_world
from fade_sim.sim.run import _Replica

RATE, ALPHA_MAX, DELTA_MIN = 0.02, 3.0, 0.3  # FADE's defaults
LR = 0.25  # of the table: slow enough that the timed steps stay in the unsolved part


class Shape(NamedTuple):
    """A size of the task, and how many steps from the start are timed."""

    prompts: int
    arms: int
    group_size: int
    steps: int

    def __str__(self) -> str:
        return f"{self.prompts} x {self.arms}, G {self.group_size}"


SHAPES = {"small": Shape(32, 16, 8, 160), "medium": Shape(256, 64, 16, 100), "large": Shape(4096, 256, 64, 4)}


class Problem(NamedTuple):
    """What a contender is given."""

    bias: np.ndarray  # (P, K) logits at the start, float64
    success: np.ndarray  # (P, K) bool
    group_size: int
    seed: int


class Gains:
    """FADE's controller in plain floats (arXiv 2607.01490), for contenders that call it once a step."""

    def __init__(self):
        self.phat, self.hhat, self.h0 = 0.5, None, None

    def update(self, solve_rate: float, entropy: float) -> tuple[float, float]:
        """(alpha, delta) for this batch."""
        if self.h0 is None:
            self.h0 = self.hhat = entropy
        self.phat += RATE * (solve_rate - self.phat)
        self.hhat += RATE * (entropy - self.hhat)
        alpha = min(max(1.5 * (1 - self.phat) / max(self.phat, 1e-9), 1.0), ALPHA_MAX)
        delta = min(max(1.0 + self.hhat - 0.5 * self.h0, DELTA_MIN), 1.0)
        return alpha, delta


def regime_of(shape: Shape, **train):
    """(regime, contender) of FADE on the per-prompt table policy at this shape."""
    raw = {
        "method": {"name": "fade"},
        "train": {"prompts": shape.prompts, "group_size": shape.group_size, "lr": 0.0, "lr_table": LR, **train},
        "world": {"train_prompts": shape.prompts, "test_prompts": 1, "arms": shape.arms, "hidden": 2, "token": 2},
    }
    return fade(raw)


def fade(raw: dict):
    """(regime, contender) of a config with one rule and one regime."""
    cfg = config.resolve(raw, {}, "benchmark")
    return cfg.regimes[0], cfg.contenders[0]


class Restarted:
    """A replica of `fade-sim run` that can be put back to its first step."""

    def __init__(self, regime, contender, world, seed: int = 0):
        self.replica = _Replica(regime.train, contender, world, seed)
        self._start = [None if array is None else array.copy() for array in self.replica.state]
        self._theta = self.replica.state.theta.copy()

    def advance(self, steps: int) -> None:
        """The first `steps` steps from the start."""
        for array, start in zip(self.replica.state, self._start, strict=True):
            if array is not None:
                array[...] = start
        self.replica.step = 0
        self.replica.advance(steps, lambda n: None)

    def learned(self) -> np.ndarray:
        """(N, K) what training has added to the logits of each training prompt's own."""
        return self.replica.state.theta - self._theta


def table_policy(shape: Shape, seed: int = 0) -> tuple[Restarted, Problem]:
    """The kernel on a world, and the same world as a contender sees it."""
    regime, contender = regime_of(shape)
    world = make_world(regime.world, seed)
    problem = Problem(world.bias[: shape.prompts].copy(), world.success[: shape.prompts].copy(), shape.group_size, seed)
    return Restarted(regime, contender, world, seed), problem


def solve_rate(logits: np.ndarray, success: np.ndarray) -> float:
    """Exact mean over prompts of the policy's mass on success arms."""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return float(((e * success).sum(axis=1) / e.sum(axis=1)).mean())
