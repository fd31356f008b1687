"""The plain records that the compiled loop works on: scalars and arrays, no behaviour.

An array that a run does not need is None: what would read it is then left out of the compiled code.
"""

from typing import NamedTuple

import numpy as np

NONE, RATIO, CLIP = 0, 1, 2  # correction
WHOLE, DRAW, LEARN = 0, 1, 2  # phase of a call to the training loop
STATIC, FULL, BATCH, EMA, UNIT = 0, 1, 2, 3, 4  # how the table of a step is made
PHAT, HHAT, H0, STEP, SCALE, ALPHA, DELTA, UPDATES, DRAWN, PHAT_KEPT = range(10)  # slots of State.running
ADAM_BETA1, ADAM_BETA2, ADAM_EPS = 0.9, 0.99, 1e-8


class Dynamics(NamedTuple):
    """Scalars of `config.Train`, in the types of the kernels."""

    key: int  # uint64 stream of the seed
    prompts: int
    group_size: int
    lr: float
    lr_table: float
    adam: bool
    lag: int
    correction: int
    clip: float
    epochs: int
    slope_match: bool
    count: bool  # draw the number of successes only, take the mean over arms
    dynamic: bool  # replace uniform groups by others
    max_rounds: int
    use_head: bool  # False: lr is 0, the head stays zero and is never read
    in_place: bool  # on-policy, one pass: the update may overwrite the behaviour policy


class Weights(NamedTuple):
    """How a step's table comes about: a fixed one, or the controller's, or a scale control of it."""

    kind: int  # STATIC, FULL, BATCH, EMA, UNIT
    table: np.ndarray  # (G+1, 2) of a static rule; of dr_grpo for the controls
    factor: float  # constant on all weights (match = mass, grad)
    rate: float  # of the moving averages
    scale_rate: float
    alpha_max: float
    delta_min: float
    h_star: float  # NaN: half of the starting entropy
    relative: bool
    ablation: int
    horizon: float
    normalize: int


class State(NamedTuple):
    """Everything that a step changes."""

    head: np.ndarray  # (V, d); linear: (d, K)
    history: np.ndarray  # (lag+1, *head) ring of past heads
    theta: np.ndarray  # (N, K) logits of each training prompt's own: the world's bias plus what was learned
    moment1: np.ndarray | None  # Adam, as the head; None under SGD
    moment2: np.ndarray | None
    running: np.ndarray  # (10,) see the slots above; DRAWN counts groups, PHAT_KEPT averages kept ones only
    table: np.ndarray  # (G+1, 2) weights of the last step


class Batch(NamedTuple):
    """Scratch of a step; B prompts, K arms, G rollouts each."""

    chosen: np.ndarray  # (B,) prompts
    successes: np.ndarray  # (B,) rewards of 1 per group
    mu: np.ndarray  # (B, K) behaviour policy
    arms: np.ndarray | None  # (B, G rounded up to whole vectors) unsigned, arm of each rollout; None in count mode
    rewards: np.ndarray | None  # (B, G) bool, its reward
    hit: np.ndarray | None  # (B, K) count mode only: mean number of rewarded rollouts of an arm
    miss: np.ndarray | None  # (B, K) and of unrewarded ones
    coef: np.ndarray  # (B, K) Am_a - pi_a sum_b Am_b; before that the current policy; may be mu itself
    row: np.ndarray  # (1, K) scratch
    draws: np.ndarray  # (1, G) scratch
    parts: np.ndarray  # (2, K) scratch: logits of successes, of failures; the other arms at -inf
    modes: np.ndarray  # (modes + 4,) scratch
    work: np.ndarray  # (V, K) scratch
    rows: np.ndarray | None  # (B, d) hidden states of the prompts under a linear policy, else None
    grad: np.ndarray  # as the head
