"""Files that train a run with verl 0.9.1: Hydra overrides, the reward, the data in its form, launch scripts.

Overrides and not a config of our own: Hydra refuses one that names a key that verl does not have. They can be checked
without a GPU (`checked`). Facts of verl are those of the source of 0.9.1.
"""

import os
import re
from importlib.util import find_spec
from unittest.mock import patch

from fade_sim.errors import InputError
from llm.adapters.hazards_verl import ESTIMATOR, SECTION
from llm.adapters.weights import Weights
from llm.graduate.budget import Budget, warmup
from llm.graduate.page import title

VERSION = "0.9.1"
PACKED, CHUNK = True, 512  # passes without padding; its fused kernels make the logits of 512 tokens at a time
REWARD_WORKERS = 8  # processes of verl that judge answers
_LOSS = {"constant": "seq-mean-token-sum-norm", "token_mean": "token-mean", "sequence_mean": "seq-mean-token-mean"}
_PLAIN = re.compile(r"(\$\{oc\.env:RUN_FOLDER\})?[\w./+-]*[A-Za-z_/][\w./+-]*", re.ASCII)  # needs no quotes
_KL = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}

_REWARD = f'''"""Reward for verl: the verifier of config.toml. Written by fade-llm graduate."""

import os
from pathlib import Path

import msgspec

from llm import config
from llm.reward import judge, make_verifier

_SETTINGS = config.load(Path(__file__).resolve().with_name("config.toml")).reward
_SLOTS = _SETTINGS.slots or max((os.cpu_count() or 1) // {REWARD_WORKERS}, 1)  # {REWARD_WORKERS} processes share it
VERIFIER = make_verifier(msgspec.structs.replace(_SETTINGS, slots=_SLOTS))


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **rest):
    """0 or 1; NaN where it could not be judged: the rollout leaves its group."""
    reward = judge(VERIFIER, [solution_str], [ground_truth], [True])[0]
    return float("nan") if reward is None else reward
'''

_PREPARE = '''"""Writes the problems of config.toml in verl's form: train.jsonl and test.jsonl beside this file.

Run it once, from the folder in which the data lies. A prompt becomes one message of a user, and verl applies the
tokenizer's chat template to it.
"""

import json
from pathlib import Path

from llm import config
from llm.data import problems
from llm.reward import check_answers, make_verifier

HERE = Path(__file__).resolve().parent
settings = config.load(HERE / "config.toml")
split = problems(settings.data)
verifier = make_verifier(settings.reward)
for name, rows in (("train", split.train), ("test", split.evaluation["held_out"])):
    check_answers(verifier, [row.answer for row in rows])
    with (HERE / f"{name}.jsonl").open("w", encoding="utf-8") as lines:
        for i, row in enumerate(rows):
            print(json.dumps({
                "data_source": row.skill or "verifiable", "prompt": [{"role": "user", "content": row.prompt}],
                "reward_model": {"style": "rule", "ground_truth": row.answer}, "extra_info": {"index": i},
            }), file=lines)
    print(f"{len(rows)} problems: {HERE / name}.jsonl")
'''

_LAUNCH = """#!/bin/bash
# {title}. On the head of a Ray cluster of {nodes} nodes with {per} GPUs each (cluster.slurm makes one), from the
# folder in which the model lies, after `python DIR/prepare.py`.
# Needs: pip install 'fade-rlvr[llm,tasks,verl]' 'verl[vllm]=={version}'
set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
# verl {version} logs a line with an argument that Python refuses, at level INFO, where samplers have GPUs of their own
export VERL_LOGGING_LEVEL="${{VERL_LOGGING_LEVEL:-WARNING}}"
export RUN_FOLDER="$here"
mapfile -t overrides < <(grep -v '^#' "$here/overrides.txt")
exec python -m verl.trainer.main_ppo "${{overrides[@]}}" "$@"
"""

_SLURM = """#!/bin/bash
# {title}. sbatch DIR/cluster.slurm from the folder in which the model lies. Never run: adapt account and partition.
#SBATCH --job-name=fade
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={per}
#SBATCH --exclusive
#SBATCH --time=72:00:00
set -euo pipefail
here="${{RUN_FOLDER:?sbatch --export=ALL,RUN_FOLDER=DIR DIR/cluster.slurm}}"
export VERL_LOGGING_LEVEL="${{VERL_LOGGING_LEVEL:-WARNING}}" RUN_FOLDER="$here"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head="${{hosts[0]}}" port=6379
srun --nodes=1 --ntasks=1 -w "$head" ray start --head --port="$port" --num-gpus={per} --block &
sleep 20
for host in "${{hosts[@]:1}}"; do
    srun --nodes=1 --ntasks=1 -w "$host" ray start --address="$head:$port" --num-gpus={per} --block &
done
sleep 20
export RAY_ADDRESS="$head:$port"
srun --overlap --nodes=1 --ntasks=1 -w "$head" "$here/launch.sh"
"""


def tree(s, b: Budget) -> dict:
    """verl's config as nested tables, without what it takes from its own defaults.

    Raises InputError on what verl cannot do as the config says it.
    """
    _check(s)
    at, c, k = b.layout, s.cluster, s.cluster.sync_updates
    here = "${oc.env:RUN_FOLDER}"
    every = max(s.parallel.save_every // k, 1) if s.parallel.save_every else -1
    actor = {
        "strategy": "fsdp2", "ppo_mini_batch_size": s.train.prompts, "ppo_epochs": s.train.epochs,
        "use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": b.tokens,
        "ulysses_sequence_parallel_size": c.sequence_parallel,
        "loss_agg_mode": _LOSS[s.loss.denominator],
        "clip_ratio": s.train.clip, "clip_ratio_low": s.train.clip,
        "clip_ratio_high": s.train.clip if s.loss.clip_high is None else s.loss.clip_high,
        "clip_ratio_c": 1e6,  # no second clip of failures: it would cap them at 3 |A|, whatever delta asks for
        "entropy_coeff": s.loss.entropy_coef, "use_kl_loss": s.loss.kl != "none",
        "optim": {"lr": s.model.lr, "weight_decay": s.model.weight_decay, "lr_scheduler_type": "constant",
                  "clip_grad": s.model.max_grad_norm or 1e9},  # actor.grad_clip is not read
        "fsdp_config": {"offload_policy": c.offload},
    }
    if s.loss.denominator == "constant":
        actor["loss_scale_factor"] = s.loss.constant_length or s.rollout.max_tokens
    if s.loss.kl != "none":
        actor |= {"kl_loss_type": _KL[s.loss.kl], "kl_loss_coef": s.loss.kl_coef}
    rollout = {
        "name": "vllm", "n": s.train.group_size, "temperature": s.rollout.temperature, "top_p": 1.0, "top_k": -1,
        "calculate_log_probs": True, "tensor_model_parallel_size": c.tensor_parallel,
        "gpu_memory_utilization": round(b.sampler_share, 2), "max_model_len": c.prompt_tokens + s.rollout.max_tokens,
        "max_num_seqs": max(b.room, 1), "n_gpus_per_node": c.gpus_per_node,
        "val_kwargs": {"temperature": s.rollout.temperature, "top_p": 1.0, "do_sample": True,
                       "n": s.data.eval_rollouts},
    }
    if at.apart:
        rollout |= {"nnodes": at.sampler_nodes, "checkpoint_engine": {"backend": "nccl"}}
    v1 = {"trainer_mode": f"{ESTIMATOR}{'separate_async' if at.apart else 'sync'}"}
    if at.apart:
        v1 |= {"separate_async": {"num_warmup_batches": warmup(s), "parameter_sync_step": k},
               "sampler": {"max_off_policy_threshold": 2 * warmup(s) + 1, "max_off_policy_strategy": "wait"}}
    return {
        "hydra": {"run": {"dir": f"{here}/hydra"}},
        "data": {
            "train_files": f"{here}/train.jsonl", "val_files": f"{here}/test.jsonl",
            "train_batch_size": s.train.prompts * k, "max_prompt_length": c.prompt_tokens,
            "max_response_length": s.rollout.max_tokens, "filter_overlong_prompts": True, "seed": s.train.seed,
        },
        "algorithm": {"adv_estimator": f"{ESTIMATOR}{s.contender.method.name}", f"+{SECTION}": _rule(s),
                      "norm_adv_by_std_in_grpo": False, "use_kl_in_reward": False,
                      "rollout_correction": _correction(s)},
        "actor_rollout_ref": {
            "hybrid_engine": not at.apart,
            "model": {"path": s.model.path, "use_remove_padding": True, "use_fused_kernels": True,
                      "enable_gradient_checkpointing": s.parallel.activation_checkpointing,
                      "fused_kernel_options": {"impl_backend": "torch"}},
            "actor": actor, "rollout": rollout,
        },
        "reward": {"num_workers": REWARD_WORKERS,
                   "custom_reward_function": {"path": f"{here}/reward.py", "name": "compute_score"}},
        "trainer": {
            "nnodes": at.trainer_nodes, "n_gpus_per_node": c.gpus_per_node, "use_v1": True, "v1": v1,
            "total_training_steps": -(-s.train.steps // k), "total_epochs": 1000000, "save_freq": every,
            "test_freq": every, "val_before_train": True, "max_actor_ckpt_to_keep": s.parallel.keep,
            "default_local_dir": f"{here}/checkpoints", "rollout_data_dir": f"{here}/rollouts",
            "project_name": "fade-rlvr", "experiment_name": s.name, "logger": ["console", "tensorboard"],
        },
    }

def _correction(s) -> dict:
    """[train] correction in verl's words.

    none: the ratio is taken to the weights at the update itself, so it is 1. ratio: to the sampler, truncated. clip:
    verl's PPO clip against the sampler's own log-probabilities.
    """
    if s.train.correction == "ratio":
        return {"bypass_mode": False, "rollout_is": s.loss.ratio, "rollout_is_threshold": s.loss.ratio_cap}
    return {"bypass_mode": s.train.correction == "clip", "rollout_is": None}


def _check(s) -> None:
    weights = Weights({"name": s.contender.method.name, **_rule(s)}, s.train.group_size)
    if s.train.correction == "clip" and weights.reads_entropy:
        raise InputError("verl: train.correction = clip takes the sampler's log-probabilities and makes no pass that "
                         f"would measure the entropy, which {s.contender.label} reads; give --train.correction ratio")
    if s.train.correction == "clip" and s.loss.ratio != "token":
        raise InputError(f"verl: loss.ratio is {s.loss.ratio!r}, its clip is per token")
    if s.train.correction == "ratio" and s.loss.ratio_cap is None:
        raise InputError("verl: train.correction = ratio: its ratio to the sampler is truncated; give --loss.ratio_cap")
    if s.train.correction != "clip" and (s.train.epochs > 1 or s.cluster.sync_updates > 1):
        raise InputError(f"verl: with train.epochs {s.train.epochs} and cluster.sync_updates {s.cluster.sync_updates} "
                         f"its PPO clip acts between updates, which train.correction = {s.train.correction!r} does not "
                         "say; give 1 and 1, or --train.correction clip")
    if s.train.dynamic_sampling:
        raise InputError("verl: train.dynamic_sampling: its filter drops uniform groups before the rule sees them, and "
                         "phat drifts to 1/2")
    if s.loss.mask_truncated:
        raise InputError("verl: loss.mask_truncated is not handed over")
    if s.rollout.stop:
        raise InputError("verl: rollout.stop is not handed over: answers end at the end token")


def _rule(s) -> dict:
    """Parameters and controller of the rule, as `llm.adapters.hazards_verl.weights_of` reads them."""
    row = {key: value for key, value in s.raw["compare"][0].items() if key not in ("label", "name")}
    return {key: value for key, value in row.items() if value is not None}


def overrides(table: dict, prefix: str = "") -> list[str]:
    """A line per value of nested tables; a key that verl does not have carries a + in front of its whole name."""
    out = []
    for key, value in table.items():
        plus = "+" if key.startswith("+") or prefix.startswith("+") else ""
        name = f"{prefix.lstrip('+')}{key.lstrip('+')}"
        out += overrides(value, f"{plus}{name}.") if isinstance(value, dict) else [f"{plus}{name}={_value(value)}"]
    return out


def _value(value) -> str:
    """In the grammar of Hydra's overrides."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value, value)) + "]"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return str(value)


def checked(lines: list[str], folder: str) -> str:
    """What verl itself says of these overrides, where it is installed: a line for a person.

    Composes them with verl's config, runs its own validation and looks for settings that would undo the rule. Raises
    InputError where it refuses.
    """
    if find_spec("verl") is None:
        return f"not checked by verl, which is not installed here: pip install 'fade-rlvr[verl]' (verl {VERSION})"
    try:
        from llm.adapters.verl import composed
    except ImportError as error:  # another version, or a package that its metadata does not name
        return f"not checked by verl: {error}"
    with patch.dict(os.environ, RUN_FOLDER=folder):
        _, _, said = composed([line for line in lines if not line.startswith("hydra.")])
    return "\n".join([f"checked by verl {VERSION}: composed and validated, nothing of it undoes the rule", *said])


def files(s, b: Budget) -> dict[str, str]:
    """Name -> text."""
    at = b.layout
    values = {"title": title(s), "nodes": at.nodes, "per": s.cluster.gpus_per_node,
              "version": VERSION}
    head = f"# {values['title']}, verl {VERSION}, Hydra overrides. Written by fade-llm graduate; never run on a GPU.\n"
    return {"overrides.txt": head + "\n".join(overrides(tree(s, b))) + "\n", "reward.py": _REWARD,
            "prepare.py": _PREPARE, "launch.sh": _LAUNCH.format(**values), "cluster.slurm": _SLURM.format(**values)}
