"""The settings of a run: the dynamics, the world, the named worlds. Types and ranges, no reading of files."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=1, le=10**9)]
Whole = Annotated[int, Meta(ge=0, le=10**9)]
Positive = Annotated[float, Meta(gt=0)]
NonNegative = Annotated[float, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Train(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dynamics, the same for every rule that a run compares."""

    # count: the number of successes is drawn, the update is its mean over arms (another estimator, with
    # less variance); expected: exact mean over groups, all prompts
    mode: Literal["sampled", "count", "expected"] = "sampled"
    steps: Count = 1500
    prompts: Count = 16  # prompts per step (B), drawn with replacement
    group_size: Annotated[int, Meta(ge=1, le=65536)] = 16  # rollouts per prompt (G)
    lr: NonNegative = 10.0  # step of the shared head; 0 freezes it
    lr_table: NonNegative = 1.0  # step of the per-prompt table; 0 removes it
    optimizer: Literal["sgd", "adam"] = "sgd"  # of the head; the table is always plain SGD
    staleness: Whole = 0  # rollouts come from the head of this many steps ago
    correction: Literal["none", "ratio", "clip"] = "none"  # importance ratio, or the PPO clip of it
    clip: Annotated[float, Meta(gt=0, lt=1)] = 0.2  # half-width of the PPO clip
    epochs: Count = 1  # passes over each batch
    dynamic_sampling: bool = False  # replace uniform groups by groups of other prompts
    max_rounds: Count = 10  # ... until this many times the batch has been drawn
    match: Literal["none", "mass", "grad", "slope"] = "none"  # what is made equal across rules
    seed: Whole = 0  # first seed
    seeds: Count = 10  # seeds seed .. seed+seeds-1; each draws its world and its samples
    record: Count = 50  # steps between records: at this interval they cost about a quarter of the run
    precision: Literal["float64", "float32"] = "float64"  # of policy and features; float32: large worlds, twice as fast


class World(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The synthetic world: prompts with clustered successes and decorrelated failures."""

    name: Literal["default", "hard", "rare", "split_rare"] = "default"
    policy: Literal["bilinear", "linear"] = "bilinear"  # z = v^T W h, or z = W h with arms shared by prompts
    solve_rates: str = ""  # file of recorded rollouts that sets the initial solve rates
    train_prompts: Count = 128
    test_prompts: Count = 64  # held out; they share skills with the training prompts
    arms: Annotated[int, Meta(ge=2)] = 32  # possible rollouts per prompt (K)
    hidden: Annotated[int, Meta(ge=2)] = 16  # dimension of the hidden states (d)
    token: Annotated[int, Meta(ge=2)] = 16  # dimension of the token vectors (V)
    skills: Count = 10  # shared success modes (M)
    skills_per_prompt: Count = 4  # a prompt has 1 .. this many of them
    arms_per_skill: Count = 2  # a skill gives a prompt 1 .. this many success arms
    common: Share = 0.7  # share of the common direction u1 in a hidden state (c)
    cluster: Share = 0.7  # share of the skill in a success's residual (rho_S)
    skill_token: Share = 0.6  # share of the skill in a success's token (kappa)
    common_token: Share = 0.3  # share of the common direction in a skill's token (tau)
    decoy: Share = 0.1  # chance that a failure carries a skill's token
    decoy_hard: Share = 0.0  # added to it in proportion to 1 - p0
    bias_sd: NonNegative = 1.0  # spread of the initial logits
    solve_mean: float = -1.2  # mean of logit p0
    solve_sd: NonNegative = 2.0  # spread of logit p0
    solve_min: Annotated[float, Meta(gt=0, lt=0.5)] = 2e-3  # smallest p0
    test_solve_mean: float | None = None  # mean of logit p0 of held-out prompts; default: solve_mean
    false_negative: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # chance that the verifier gives a success 0
    false_positive: Annotated[float, Meta(ge=0, lt=1)] = 0.0  # chance that it gives a failure 1
    split_skills: bool = False  # prompts with p0 > 1/4 use the first half of the skills, others the second


WORLDS: dict[str, dict[str, Any]] = {
    "default": {},
    "hard": {"solve_mean": -2.5, "test_solve_mean": -3.5, "decoy": 0.05, "decoy_hard": 0.6},
    "rare": {"solve_mean": -5.0, "solve_sd": 2.5, "test_solve_mean": -5.0, "solve_min": 1e-4, "decoy_hard": 0.6},
    "split_rare": {"solve_mean": -2.5, "solve_sd": 3.0, "test_solve_mean": -5.0, "solve_min": 1e-4,
                   "decoy": 0.05, "decoy_hard": 0.4, "split_skills": True},
}


def describe_dynamics(train: Train) -> str:
    """One line on what sets a regime apart."""
    stale = f"rollouts {train.staleness} updates old" if train.staleness else "on-policy"
    correction = {"none": ", no correction" if train.staleness else "", "ratio": ", importance ratio",
                  "clip": f", PPO clip {train.clip:g}"}[train.correction]
    optimizer = {"sgd": "SGD", "adam": "Adam"}[train.optimizer]
    mode = {"sampled": "", "count": ", counts drawn", "expected": ", exact expectation"}[train.mode]
    match = f", match {train.match}" if train.match != "none" else ""
    return f"{optimizer} lr {train.lr:g}, {stale}{correction}{mode}{match}"
