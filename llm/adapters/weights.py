"""A rule inside somebody else's trainer: rewards of a whole batch in; advantages, controller and metrics out.

NumPy in and out, no engine. What is whole here must be whole there: every rollout of the batch, from all
processes and before any filter, else phat is not the solve rate and processes disagree.
"""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fade_sim import config
from fade_sim.advantage import RULES, BatchStats, Method, controller, parse, step_table
from fade_sim.diagnostics import pass_at_k
from fade_sim.errors import InputError
from fade_sim.store import to_json, write_atomic
from llm import probes
from llm.weigh import weigh

_MOVING = ("phat", "hhat", "h0", "step", "scale")  # what a run changes of a controller; the rest are its settings


class Weighed(NamedTuple):
    """One batch, weighed."""

    advantages: np.ndarray  # (N,) float64 in the order of the rewards; 0 where a rollout was not judged
    table: np.ndarray  # (G+1, 2) signed weights of a success and of a failure, by successes of a complete group
    metrics: dict[str, float]  # flat; what does not exist in this batch is absent


class Weights:
    """A rule with its controller. One object a run, the same on every process; `step` once for each batch.

    method: the name of a rule (its shipped settings) or of any config with one rule, the path of one, a label
    such as "power_asym(alpha=2, delta=.5)", a Method, or a table {"name": ..., parameters, "controller": {...}}.
    Raises InputError on anything unknown, and where the rule is not defined at this group size.
    """

    def __init__(self, method: str | Path | dict | Method, group_size: int):
        if isinstance(group_size, bool) or not isinstance(group_size, int) or group_size < 1:
            raise InputError(f"group size is {group_size!r}, expected an integer of at least 1")
        self.group_size = group_size
        self.label, self.method, self.controller = _contender(method, group_size)

    @property
    def adaptive(self) -> bool:
        """True where the controller decides the weights."""
        return self.method.rule.adaptive

    @property
    def reads_entropy(self) -> bool:
        """True where `step` needs the entropy of the batch; its solve rate is always there."""
        if not self.adaptive:
            return False
        try:
            controller.gains(replace(self.controller, h0=None, hhat=None))
        except InputError:
            return True
        return False

    @property
    def balanced(self) -> bool:
        """True where successes and failures of every group weigh the same in sum: no sign axis to lose."""
        c = np.arange(self.group_size + 1)
        state = controller.update(replace(self.controller, rate=1.0, ema_literal=False), 0.5, 0.0)
        state = replace(state, h0=2.0, hhat=0.0, step=state.horizon)  # entropy all gone: the smallest delta
        table, _ = step_table(self.method, state, self.group_size, BatchStats(c, np.full(len(c), self.group_size)))
        return bool(np.allclose(c * table[:, 0], (c - self.group_size) * table[:, 1], rtol=1e-9, atol=1e-12))

    def step(self, rewards, groups, entropy=None, tokens=None) -> Weighed:
        """Move the controller by one batch, then weigh that batch with it.

        rewards (N,): 0 or 1, NaN for a rollout that could not be judged: it leaves its group. groups (N,):
        integer ids in any order, at most `group_size` rollouts each. entropy: mean over response tokens of the
        full-vocabulary entropy at the sampling temperature, in nats; (N,) per rollout, with their numbers of
        `tokens` (N,) (None: equal), or one number for the batch. None: not measured, for rules that do not
        read it. Raises InputError on anything else, and on a batch without a single judged rollout.
        """
        reward, group = _rewards(rewards), np.asarray(groups)
        if group.shape != reward.shape or group.dtype.kind not in "iu":
            raise InputError(f"{group.size} group ids of type {group.dtype} for {reward.size} rewards, expected one "
                             "integer per rollout")
        counted = ~np.isnan(reward)
        if not counted.any():
            raise InputError("no rollout of this batch could be judged: nothing can be learned from it")
        ids, at, drawn = np.unique(group, return_inverse=True, return_counts=True)
        if drawn.max() > self.group_size:
            raise InputError(f"group {ids[drawn.argmax()]} has {drawn.max()} rollouts, expected at most "
                             f"{self.group_size}: are the ids those of one batch?")
        success = np.bincount(at, weights=np.nan_to_num(reward)).astype(np.int64)
        size = np.bincount(at, weights=counted).astype(np.int64)
        stats = BatchStats(success[size > 0], size[size > 0])
        mean, entropies = self._entropy(entropy, tokens, reward)
        before = self.controller
        state = controller.update(before, float(success.sum() / size.sum()), 0.0 if mean is None else mean)
        if mean is None:  # not measured: neither is its average
            state = replace(state, h0=before.h0, hhat=before.hhat)
        advantage, table, self.controller = weigh(self.method, state, self.group_size, stats, reward, group, counted)
        row = self._row(stats, table) | entropies
        row |= {"unscored": int((~counted).sum()), "advantage_abs": float(np.abs(advantage[counted]).mean())}
        return Weighed(advantage, table, flat(row))

    def _entropy(self, entropy, tokens, reward) -> tuple[float | None, dict]:
        """(mean over tokens or None, the metrics of it)."""
        if entropy is None:
            if self.reads_entropy:
                raise InputError(f"{self.label} reads the entropy of the batch: pass entropy=")
            return None, {}
        value = np.asarray(entropy, dtype=np.float64)
        if value.ndim == 0:
            return float(value), {"entropy": float(value)}
        count = np.ones(len(reward)) if tokens is None else np.asarray(tokens, dtype=np.float64)
        if value.shape != reward.shape or count.shape != reward.shape:
            raise InputError(f"entropy and tokens have shapes {value.shape} and {count.shape}, expected "
                             f"{reward.shape}, one per rollout")
        value = np.where(count > 0, value, 0.0)  # a rollout without a token has no entropy
        means: dict = {}
        for name, rows in (("", slice(None)), ("_success", reward == 1), ("_failure", reward == 0)):
            total = count[rows].sum()
            means[f"entropy{name}"] = float((value * count)[rows].sum() / total) if total else None
        if means["entropy"] is None:
            raise InputError("no rollout of this batch has a token: it has no entropy")
        return means["entropy"], means

    def _row(self, stats: BatchStats, table) -> dict:
        ctrl = self.controller
        alpha, delta = controller.gains(ctrl) if self.adaptive else (None, None)
        return {
            **probes.solve_row(stats.successes / stats.sizes),
            "phat": ctrl.phat, "Hhat": ctrl.hhat, "H0": ctrl.h0, "alpha": alpha, "delta": delta,
            **probes.mass_row(table, stats.successes[stats.sizes == self.group_size]),
            **pass_row(stats.successes, stats.sizes, self.group_size),
        }

    # --- a run that goes on ------------------------------------------------------------------------------

    def state_dict(self) -> dict:
        """All that the next batch depends on, as plain values."""
        return {"method": self.label, "group_size": self.group_size, "controller": controller.to_dict(self.controller)}

    def load_state_dict(self, values: dict, where: str = "state") -> None:
        """Go on from `state_dict`. Raises InputError where it belongs to another rule or other settings."""
        try:
            label, size = values["method"], values["group_size"]
            state = controller.from_dict(dict(values["controller"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: is no state of these weights ({error})") from None
        if (label, size) != (self.label, self.group_size):
            raise InputError(f"{where}: belongs to {label} at group size {size}, this run weighs by {self.label} at "
                             f"{self.group_size}; alpha and delta would jump")
        for name, now in controller.to_dict(self.controller).items():
            if name not in _MOVING and getattr(state, name) != now:
                raise InputError(f"{where}: controller.{name} was {getattr(state, name)!r}, this run has {now!r}")
        self.controller = state

    def save(self, path: Path) -> None:
        """`state_dict` as JSON, whole or not at all."""
        write_atomic(Path(path), (to_json(self.state_dict(), indent=1) + "\n").encode())

    def load(self, path: Path) -> None:
        """Go on from what `save` wrote."""
        try:
            values = json.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: the controller's state cannot be read ({error}); without it phat and Hhat would "
                             "start anew, and alpha and delta jump") from None
        self.load_state_dict(values, str(path))


def pass_row(successes, sizes, largest: int) -> dict:
    """Unbiased pass@k at k = 1, 2, 4, .. up to `largest`, over the groups with at least k judged rollouts.

    successes, sizes: integers (P,). None where no group has k.
    """
    row, k = {}, 1
    while k <= largest:
        enough = sizes >= k
        row[f"pass@{k}"] = float(pass_at_k(sizes[enough], successes[enough], k).mean()) if enough.any() else None
        k *= 2
    return row


def flat(row: dict) -> dict[str, float]:
    """Numbers by name; tables inside become name/key; what is None is left out."""
    out = {}
    for key, value in row.items():
        if isinstance(value, dict):
            out |= {f"{key}/{name}": number for name, number in flat(value).items()}
        elif value is not None:
            out[key] = float(value)
    return out


def _contender(method, group_size: int) -> tuple[str, Method, controller.State]:
    size = {"train.group_size": group_size}
    if isinstance(method, Method):
        method.rule.check_size(method.params, group_size)
        return method.label, method, controller.init()
    if isinstance(method, dict):
        table = dict(method)
        raw = {"method": table, "controller": table.pop("controller", {})}
        if "name" not in table:
            raise InputError("method: name is missing, expected a table such as {\"name\": ...}")
        if table["name"] in RULES and RULES[table["name"]].mixed_only:
            raw["train"] = {"dynamic_sampling": True}  # that groups are resampled is for the engine to see to
        found = config.resolve(raw, size, "method")
    elif isinstance(method, str) and "(" in method:
        return _contender(parse(method), group_size)
    else:
        raw, where = config.read_toml(method)
        if idle := [f"[{key}]" for key in raw if key not in ("name", "method", "controller", "compare")]:
            warnings.warn(f"{where}: {', '.join(idle)} not read here: the engine has its own settings", stacklevel=4)
        found = config.resolve(raw, size, where)
    if len(found.contenders) != 1:
        labels = ", ".join(c.label for c in found.contenders)
        raise InputError(f"{method}: holds {len(found.contenders)} rules ({labels}), expected one")
    one = found.contenders[0]
    return one.label, one.method, one.controller


def _rewards(rewards) -> np.ndarray:
    reward = np.asarray(rewards)
    if reward.dtype.kind not in "fiub" or reward.ndim != 1 or not reward.size:
        raise InputError(f"rewards have shape {reward.shape} and type {reward.dtype}, expected numbers (N,)")
    reward = reward.astype(np.float64)
    bad = np.flatnonzero(~np.isin(reward, (0, 1)) & ~np.isnan(reward))
    if bad.size:
        value = float(reward[bad[0]])
        raise InputError(f"reward {bad[0]} is {value!r}, expected 0, 1 or NaN ({bad.size} such rewards)")
    return reward
