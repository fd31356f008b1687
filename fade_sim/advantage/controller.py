"""FADE's controller: a value that each batch turns into a new value, and the gains read from it.

alpha = clip(3 (1-phat) / (2 phat), 1, alpha_max)     delta = clip(1 + Hhat - H*, delta_min, 1)

phat is the moving average of the batch solve rate (start .5), Hhat that of the mean token entropy
in nats (start H0, the entropy of the first batch unless given), H* the target entropy (H0/2 unless
given). Source: arXiv 2607.01490. Conventions where the paper is open are in the docstrings.
"""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import get_args

from fade_sim.errors import InputError, nearest

ABLATIONS = ("none", "no_alpha", "no_delta", "entropy_only", "log_schedule")
SCALE_RATE = 0.05  # weight of the newest batch in the smoothed scale of the control `scale_ema`


# --- scalar arithmetic, also compiled by the simulator: floats in, floats out -------------------


def ema(old, new, rate):
    """(1-rate) old + rate new: `rate` is the weight of the *new* value (.02: half-life 34)."""
    return (1.0 - rate) * old + rate * new


def alpha_of(phat, alpha_max):
    """clip(1.5 (1-phat)/phat, 1, alpha_max) without a division by zero at phat = 0."""
    if phat <= 3.0 / (3.0 + 2.0 * alpha_max):
        return alpha_max
    if phat >= 0.6:
        return 1.0
    return 1.5 * (1.0 - phat) / phat


def delta_of(entropy, target, delta_min, relative):
    """clip(1 + Hhat - H*, delta_min, 1); relative: the excess is measured in units of H*."""
    excess = entropy - target
    if relative:
        excess = excess / target
    return min(max(1.0 + excess, delta_min), 1.0)


def gains_of(phat, hhat, h0, step, alpha_max, delta_min, h_star, relative, ablation, horizon):
    """(alpha, delta) from the raw state; `ablation` is an index into ABLATIONS.

    h_star is NaN when it is half of h0. entropy_only drives both gains by entropy: alpha falls
    from alpha_max to 1 as Hhat falls from H0 to 0 (our reading of that ablation). log_schedule is
    deterministic: both gains move from their first to their last value with log(step)/log(horizon).
    """
    target = 0.5 * h0 if math.isnan(h_star) else h_star
    alpha = alpha_of(phat, alpha_max)
    delta = delta_of(hhat, target, delta_min, relative)
    if ablation == 1:
        alpha = 1.0
    elif ablation == 2:
        delta = 1.0
    elif ablation == 3:
        share = hhat / h0 if h0 > 0.0 else 0.0
        alpha = 1.0 + (alpha_max - 1.0) * min(max(share, 0.0), 1.0)
    elif ablation == 4:
        done = min(math.log(max(step, 1.0)) / math.log(max(horizon, 2.0)), 1.0)
        alpha = alpha_max - (alpha_max - 1.0) * done
        delta = 1.0 - (1.0 - delta_min) * done
    return alpha, delta


# --- the value -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class State:
    """Settings and running averages. Frozen: `update` returns a new one."""

    rate: float = 0.02  # weight of the newest batch in both averages, (0, 1]
    h_star: float | None = None  # target entropy in nats; None: half of h0
    relative: bool = False  # measure the entropy excess in units of h_star
    delta_min: float = 0.3  # floor of delta, (0, 1]
    alpha_max: float = 3.0  # ceiling of alpha, >= 1
    ablation: str = "none"  # one of ABLATIONS
    ema_literal: bool = False  # the printed form: weight 1 - rate on the new value
    horizon: int = 1000  # steps over which log_schedule moves
    phat: float = 0.5  # moving average of the batch solve rate
    hhat: float | None = None  # moving average of the entropy in nats; None before the first batch
    h0: float | None = None  # entropy that hhat starts from; None: the first batch sets it
    step: int = 0  # batches seen
    scale: float | None = None  # smoothed scale ratio of the control `scale_ema`

    def __post_init__(self):
        for f in fields(self):
            value, kinds = getattr(self, f.name), get_args(f.type) or (f.type,)
            if value is None and type(None) in kinds:
                continue
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number if float in kinds else type(value) in kinds):
                expected = {float: "a number", int: "an integer", bool: "true or false", str: "text"}[kinds[0]]
                raise InputError(f"controller.{f.name} is {value!r}, expected {expected}")
        checks = (
            ("rate", 0.0 < self.rate <= 1.0, "in (0, 1]"),
            ("h_star", self.h_star is None or 0.0 < self.h_star < math.inf, "a positive number of nats"),
            ("delta_min", 0.0 < self.delta_min <= 1.0, "in (0, 1]"),
            ("alpha_max", 1.0 <= self.alpha_max < math.inf, "at least 1"),
            ("horizon", self.horizon >= 1, "at least 1"),
            ("phat", 0.0 <= self.phat <= 1.0, "in [0, 1]"),
            ("hhat", self.hhat is None or 0.0 <= self.hhat < math.inf, "a non-negative number of nats"),
            ("step", self.step >= 0, "at least 0"),
            ("scale", self.scale is None or 0.0 <= self.scale < math.inf, "a non-negative number"),
            ("h0", self.h0 is None or 0.0 <= self.h0 < math.inf, "a non-negative number of nats"),
        )
        for name, ok, expected in checks:
            if not ok:
                raise InputError(f"controller.{name} is {getattr(self, name)!r}, expected {expected}")
        if self.ablation not in ABLATIONS:
            raise InputError(f"unknown controller.ablation {self.ablation!r}{nearest(self.ablation, ABLATIONS)}")


def init(h0: float | None = None, **settings) -> State:
    """A fresh state. h0: starting entropy in nats; None lets the first batch set it."""
    known = [f.name for f in fields(State)]
    for name in settings:
        if name not in known:
            raise InputError(f"unknown controller setting {name!r}{nearest(name, known)}")
    return State(h0=h0, hhat=h0, **settings)


def update(state: State, solve_rate: float, entropy: float) -> State:
    """The state after a batch; read `gains` from it *before* weighing that same batch.

    solve_rate: mean of the prompts' solve rates, every prompt equal, taken before any filter and
    including all-fail and all-pass groups, in [0, 1]. entropy: mean over response tokens of the
    full-vocabulary entropy at the sampling temperature, in nats. Across ranks reduce sums and
    counts first, not means.
    """
    solve_rate, entropy = _number("solve_rate", solve_rate), _number("entropy", entropy)
    if not 0.0 <= solve_rate <= 1.0:
        raise InputError(f"solve_rate is {solve_rate!r}, expected a number in [0, 1]")
    if not 0.0 <= entropy < math.inf:
        raise InputError(f"entropy is {entropy!r}, expected a non-negative number of nats")
    rate = 1.0 - state.rate if state.ema_literal else state.rate
    h0 = entropy if state.h0 is None else state.h0
    hhat = h0 if state.hhat is None else state.hhat
    return replace(
        state,
        h0=h0,
        phat=ema(state.phat, solve_rate, rate),
        hhat=ema(hhat, entropy, rate),
        step=state.step + 1,
    )


def _number(name: str, value) -> float:
    """A plain float, whatever library the number comes from: a float32 would narrow the average."""
    if value is None or isinstance(value, str):
        raise InputError(f"{name} is {value!r}, expected a number")
    return float(value)


def gains(state: State) -> tuple[float, float]:
    """(alpha, delta) with alpha in [1, alpha_max] and delta in [delta_min, 1]."""
    if state.h0 is None or state.hhat is None:
        if state.ablation in ("no_delta", "log_schedule"):
            h0 = hhat = 1.0  # neither reads the entropy
        else:
            raise InputError("the controller has seen no entropy yet: give init an h0 or call update first")
    else:
        h0, hhat = state.h0, state.hhat
    h_star = math.nan if state.h_star is None else state.h_star
    if math.isnan(h_star) and h0 == 0.0 and state.relative:
        raise InputError("controller.relative needs h_star when the starting entropy is 0")
    return gains_of(
        state.phat, hhat, h0, float(state.step), state.alpha_max, state.delta_min, h_star,
        state.relative, ABLATIONS.index(state.ablation), float(state.horizon),
    )


def update_scale(state: State, ratio: float | None) -> State:
    """Fold a batch's scale ratio into the smoothed one; None (no signal in the batch) keeps it.

    The first batch with a signal sets it.
    """
    if ratio is None:
        return state
    return replace(state, scale=ratio if state.scale is None else ema(state.scale, ratio, SCALE_RATE))


def to_dict(state: State) -> dict:
    """Plain values for a checkpoint; `from_dict` restores the state exactly."""
    return asdict(state)


def from_dict(values: dict) -> State:
    """The state that `to_dict` wrote. An unknown key is an error, not a default."""
    known = [f.name for f in fields(State)]
    for name in values:
        if name not in known:
            raise InputError(f"unknown controller state {name!r}{nearest(name, known)}")
    return State(**values)
