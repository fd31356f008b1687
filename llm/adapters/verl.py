"""The rules of this project in verl: every one as an advantage estimator, and trainers that move the controller.

`import verl` finds this file through the entry point group `verl.plugins`. It registers

- `algorithm.adv_estimator=fade_sim/<rule>`, parameters of the rule in `+algorithm.fade.<parameter>`;
- `trainer.v1.trainer_mode=fade_sim/sync` (and `colocate_async`, `separate_async`): verl's own trainer of that mode,
  which also updates the controller, logs, refuses settings that undo a rule, and saves its state.

Registries, subclasses and public config only: nothing of verl is changed. Overrides methods of verl 0.9.1 that have
no promise of stability, and therefore refuses any other version.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout
from contextvars import ContextVar
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
import transfer_queue
from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1 import (
    PPOTrainerColocateAsync,
    PPOTrainerSeparateAsync,
    PPOTrainerSync,
    register_trainer,
)
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.config import validate_config

from fade_sim.advantage import RULES
from fade_sim.diagnostics import pass_at_k_interval
from fade_sim.errors import InputError, nearest
from llm.adapters import hazards
from llm.adapters.hazards_verl import ESTIMATOR, SECTION, check, weights_of
from llm.adapters.weights import Weighed, Weights

SUPPORTED = "0.9.1"
STATE = "weights_state.json"  # beside a checkpoint
PREFIX = "weights/"  # of the metrics, in verl's logs

if version("verl") != SUPPORTED:
    raise ImportError(f"llm.adapters.verl overrides methods of verl {SUPPORTED}, found {version('verl')}; "
                      f"pip install verl=={SUPPORTED}")

# Advantage of each row (N,), from the trainer to the estimator that verl calls for it; None: no such trainer.
_WEIGHED: ContextVar[np.ndarray | None] = ContextVar("weighed", default=None)

# --- estimators ----------------------------------------------------------------------------------------


def _register(rule: str):
    @register_adv_est(f"{ESTIMATOR}{rule}")
    def estimator(token_level_rewards, response_mask, config=None, index=None, **_):
        """(advantages, returns), both (N, T): the weight of a rollout on each of its response tokens.

        token_level_rewards (N, T): their sum over T is the reward of a rollout, 0 or 1 (NaN: not judged).
        response_mask (N, T). index: prompt of each rollout (N,). Raises InputError on other rewards, and for
        rules with a controller outside of the trainers of this file, which alone move it.
        """
        each = _WEIGHED.get()
        if each is None:
            each = _alone(rule, token_level_rewards, response_mask, config, index)
        weight = torch.from_numpy(each).to(token_level_rewards)
        out = weight.unsqueeze(-1) * response_mask
        return out, out

    return estimator


ESTIMATORS = {rule: _register(rule) for rule in RULES}


def _alone(rule: str, token_level_rewards, response_mask, config, index) -> np.ndarray:
    """Advantages (N,) of a static rule under any trainer of verl: the batch is all there is."""
    if RULES[rule].adaptive:
        raise InputError(f"{ESTIMATOR}{rule} has a controller, which verl's own trainers do not move: use "
                         f"trainer.v1.trainer_mode={ESTIMATOR}sync")
    if index is None:
        raise InputError(f"{ESTIMATOR}{rule}: the batch has no uid, so its groups are not known")
    reward = token_level_rewards.sum(dim=-1).double().cpu().numpy()
    silent = ~response_mask.bool().any(dim=-1).cpu().numpy()
    reward[silent & [str(uid).startswith("pad") for uid in index]] = np.nan  # rows that verl adds to fill a batch
    _, group, size = np.unique(np.asarray(index, dtype=str), return_inverse=True, return_counts=True)
    algorithm = {"adv_estimator": f"{ESTIMATOR}{rule}", SECTION: (config or {}).get(SECTION)}
    return _step(weights_of(algorithm, int(size.max())), reward, group).advantages


def _step(weights: Weights, *batch) -> Weighed:
    try:
        return weights.step(*batch)
    except InputError as error:
        raise InputError(f"verl: {error}; compute_score has to return 0 or 1 (what else it measures can be logged), "
                         "nan where it cannot judge") from None


# --- trainers ------------------------------------------------------------------------------------------


class _Weighing:
    """What is added to a trainer of verl. Raises InputError before it starts, on settings that undo the rule.

    The controller moves once for each batch that is learned from, by all its rollouts, before it is weighed. A
    session with several outputs is one rollout; rows that verl adds to fill a batch are none.
    """

    mode = ""  # the trainer of verl that this one is

    def __init__(self, config: DictConfig):
        self.weights, said = _checked(config)
        hazards.warn(said)
        super().__init__(config)

    @property
    def trainer_mode(self) -> str:
        """verl decides by this name what is asynchronous: it has to be the name of its own trainer."""
        return self.mode

    @trainer_mode.setter
    def trainer_mode(self, name: str) -> None:
        pass

    def _compute_advantage(self, batch, metrics: dict):
        weighed, session = self._weigh(batch)
        metrics |= {f"{PREFIX}{name}": value for name, value in weighed.metrics.items()}
        token = _WEIGHED.set(np.append(weighed.advantages, 0.0)[session])
        try:
            return super()._compute_advantage(batch, metrics)
        finally:
            _WEIGHED.reset(token)

    def _weigh(self, batch) -> tuple[Weighed, np.ndarray]:
        """(the batch, weighed; session of each row (N,), -1 where verl added it)."""
        data = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id,
                                           select_fields=["rm_scores", "response_mask", "entropy"])
        session, last = _sessions(batch.keys, [tag.get("is_padding", False) for tag in batch.tags])
        reward = np.array([float(row.double().sum()) for row in data["rm_scores"].unbind()])[last]
        uid = [batch.keys[row].rsplit("_", 2)[0] for row in last]
        group = np.unique(uid, return_inverse=True)[1]
        if "entropy" not in data.keys():  # noqa: SIM118 (a TensorDict iterates over rows)
            return _step(self.weights, reward, group), session
        rows = [value.double()[mask.bool()] for value, mask in  # of tokens that the model wrote
                zip(data["entropy"].unbind(), data["response_mask"].unbind(), strict=True)]
        own = session >= 0
        count, total = np.array([[len(row), float(row.sum())] for row in rows]).T
        tokens, total = (np.bincount(session[own], weights=each[own]) for each in (count, total))
        return _step(self.weights, reward, group, total / np.maximum(tokens, 1), tokens), session

    # --- validation ------------------------------------------------------------------------------------

    def _val_metrics_update(self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns, **kwargs):
        """verl's metrics, and pass@k without bias: verl's best@k draws with replacement, which is low."""
        out = super()._val_metrics_update(data_sources, sample_uids, reward_extra_infos_dict, sample_turns, **kwargs)
        rewards = reward_extra_infos_dict["reward"]
        verdicts = reward_extra_infos_dict.get("acc", rewards)  # where the verifier gives it: without shaping
        score = [r if v is None else v for v, r in zip(verdicts, rewards, strict=True)]
        score, uid, of = np.array(score, dtype=float), np.array(sample_uids, dtype=str), np.array(data_sources)
        for source in dict.fromkeys(of.tolist()):
            found = _pass_rows(source, score[of == source], uid[of == source])
            out |= {f"val-core/{source}/{name}": value for name, value in found.items()}
        return out

    # --- save, resume ----------------------------------------------------------------------------------

    def _save_checkpoint(self):
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        folder.mkdir(parents=True, exist_ok=True)
        self.weights.save(folder / STATE)  # before verl says that this checkpoint is complete
        super()._save_checkpoint()

    def _load_checkpoint(self):
        folder = self._resumed()
        if folder is not None and (self.weights.adaptive or (folder / STATE).exists()):
            self.weights.load(folder / STATE)
        super()._load_checkpoint()

    def _resumed(self) -> Path | None:
        """The checkpoint that verl is about to load, if any."""
        trainer = self.config.trainer
        found = None
        if trainer.resume_mode == "resume_path":
            found = trainer.resume_from_path
        elif trainer.resume_mode == "auto":
            found = find_latest_ckpt_path(os.path.abspath(trainer.default_local_dir))
        return None if found is None else Path(found)


@register_trainer(f"{ESTIMATOR}sync")
class FadeTrainerSync(_Weighing, PPOTrainerSync):
    mode = "sync"


@register_trainer(f"{ESTIMATOR}colocate_async")
class FadeTrainerColocateAsync(_Weighing, PPOTrainerColocateAsync):
    mode = "colocate_async"


@register_trainer(f"{ESTIMATOR}separate_async")
class FadeTrainerSeparateAsync(_Weighing, PPOTrainerSeparateAsync):
    mode = "separate_async"


def _sessions(keys: Sequence[str], padding: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
    """(session of each row (N,), -1 for padding; row of the last output of each session (S,)).

    keys: uid_session_output, as verl names its rows.
    """
    number: dict[str, int] = {}
    session, last, output = np.full(len(keys), -1), [], []
    for row, (key, pad) in enumerate(zip(keys, padding, strict=True)):
        if pad:
            continue
        name, _, position = key.rpartition("_")
        i = session[row] = number.setdefault(name, len(number))
        if i == len(last):
            last.append(row)
            output.append(int(position))
        elif int(position) > output[i]:
            last[i], output[i] = row, int(position)
    return session, np.array(last, dtype=int)


def _pass_rows(source: str, score: np.ndarray, uid: np.ndarray) -> dict[str, float]:
    """Unbiased pass@k at k = 1, 2, 4, .. over the prompts with that many verdicts, with 95% intervals by prompt.

    score (N,): 0 or 1, NaN where there is no verdict. uid (N,): prompts.
    """
    score, uid = score[~np.isnan(score)], uid[~np.isnan(score)]
    if not len(score) or not np.isin(score, (0, 1)).all():
        warnings.warn(f"validation on {source}: no pass@k, scores are not 0 or 1", stacklevel=2)
        return {}
    at = np.unique(uid, return_inverse=True)[1]
    success, size = np.bincount(at, weights=score).astype(int), np.bincount(at)
    out, k = {}, 1
    while k <= size.max():
        enough = size >= k
        mean, low, high = pass_at_k_interval(success[enough], size[enough], k)
        out[f"pass@{k}"] = mean
        if not np.isnan(low):  # one prompt has no interval
            out |= {f"pass@{k}/low": low, f"pass@{k}/high": high}
        k *= 2
    return out


# --- configs -------------------------------------------------------------------------------------------


def composed(overrides: Sequence[str], config_name: str = "ppo_trainer") -> tuple[DictConfig, Weights, list[str]]:
    """(verl's config with these Hydra overrides, the rule that it runs, what is worth saying of its settings).

    Needs no GPU and no model. config_name: ppo_trainer or ppo_megatron_trainer. Raises InputError, one line, on what
    Hydra, verl's own validate_config or this project refuses: an unknown key, a batch that does not divide, a setting
    that undoes the rule.
    """
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose(config_name, overrides=list(overrides))
        weights, said = _checked(config)
        with redirect_stdout(sys.stderr):  # it prints that all is well
            validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    except InputError:
        raise
    except (HydraException, OmegaConfBaseException, ValueError, AssertionError, TypeError) as error:
        raise InputError(f"verl: {' '.join(str(error).split())}") from None
    return config, weights, said


def _checked(config: DictConfig) -> tuple[Weights, list[str]]:
    """`hazards_verl.check`, and no key of `algorithm` that nobody reads: Hydra lets `+algorithm.anything` through."""
    known = [SECTION, *(field.name for field in fields(AlgoConfig))]
    for key in config.algorithm:
        if key not in known:
            raise InputError(f"verl: unknown key algorithm.{key}{nearest(key, known)}")
    return check(OmegaConf.to_container(config, resolve=True))
