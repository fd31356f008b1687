"""Files that train a run with TRL: settings, a script around FadeGRPOTrainer, accelerate's config, a launch script."""

import pprint

from fade_sim.errors import InputError
from llm.graduate.budget import Budget
from llm.graduate.page import title

PACKED, CHUNK = False, 10**9  # padded passes; the logits of a whole pass at one time
_LOSS = {"constant": "dr_grpo", "token_mean": "dapo", "sequence_mean": "grpo"}  # denominator -> TRL's loss_type

_SCRIPT = '''"""{title}, with TRL. Written by fade-llm graduate; start it with ./launch.sh.

Never run on a GPU. Evaluation is apart: fade-llm eval CHECKPOINT --config paper/livecodebench
"""

from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig

from llm import config
from llm.adapters.trl import FadeGRPOTrainer
from llm.data import problems
from llm.reward import check_answers, judge, make_verifier

HERE = Path(__file__).resolve().parent
SETTINGS = {settings}


def main() -> None:
    settings = config.load(HERE / "config.toml")
    train = problems(settings.data).train
    verifier = make_verifier(settings.reward)
    check_answers(verifier, [problem.answer for problem in train])

    def verified(completions, completion_ids, answer, **rest):
        """0, 1 or None where it could not be judged; an answer that fills the limit was cut off: 0."""
        finished = [len(ids) < SETTINGS["max_completion_length"] for ids in completion_ids]
        return judge(verifier, completions, answer, finished)

    rows = [{{"prompt": problem.prompt, "answer": problem.answer}} for problem in train]
    checkpoints = HERE / "checkpoints"
    trainer = FadeGRPOTrainer(settings.model.path, [verified], GRPOConfig(str(checkpoints), **SETTINGS),
                              train_dataset=Dataset.from_list(rows), method=HERE / "rule.toml")
    trainer.train(resume_from_checkpoint=any(checkpoints.glob("checkpoint-*")))
    trainer.save_model(str(HERE / "model"))


if __name__ == "__main__":
    main()
'''

_ACCELERATE = """# {title}: FSDP over {gpus} GPUs, for accelerate launch
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: {precision}
num_machines: {nodes}
machine_rank: 0
num_processes: {gpus}
main_training_function: main
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: true
  fsdp_offload_params: {offload}
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_cpu_ram_efficient_loading: true
"""

_LAUNCH = """#!/bin/bash
# {title}. From the folder in which the data and the model lie: DIR/launch.sh; on {nodes} node(s), on each of them
#   MASTER=first-node RANK=0..{last} DIR/launch.sh
# Needs: pip install 'fade-rlvr[llm,tasks,trl]' 'trl[vllm]~=1.16.0'
set -euo pipefail
here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
exec accelerate launch --config_file "$here/accelerate.yaml" --machine_rank "${{RANK:-0}}" \\
    --main_process_ip "${{MASTER:-127.0.0.1}}" --main_process_port "${{PORT:-29500}}" "$here/train.py"
"""


def settings_of(s, b: Budget) -> dict:
    """Keyword arguments of GRPOConfig. Raises InputError on what TRL cannot do as the config says it."""
    at, per = b.layout, s.parallel.micro_batch
    _check(s, b)
    accumulate = b.rollouts // (at.trainer_gpus * per)
    out = {
        "num_generations": s.train.group_size, "per_device_train_batch_size": per,
        "gradient_accumulation_steps": accumulate, "steps_per_generation": accumulate * s.cluster.sync_updates,
        "max_completion_length": s.rollout.max_tokens, "temperature": s.rollout.temperature, "top_p": 1.0, "top_k": 0,
        "max_steps": s.train.steps, "num_iterations": s.train.epochs, "seed": s.train.seed,
        "learning_rate": s.model.lr, "lr_scheduler_type": "constant", "weight_decay": s.model.weight_decay,
        "max_grad_norm": s.model.max_grad_norm, "bf16": s.model.dtype == "bfloat16",
        "model_init_kwargs": {"dtype": "float32"},  # bfloat16 arithmetic on float32 weights
        "gradient_checkpointing": s.parallel.activation_checkpointing,
        "loss_type": _LOSS[s.loss.denominator], "scale_rewards": "none", "epsilon": s.train.clip,
        "importance_sampling_level": s.loss.ratio, "mask_truncated_completions": s.loss.mask_truncated,
        "beta": s.loss.kl_coef, "entropy_coef": s.loss.entropy_coef,
        "logging_steps": 1, "save_steps": s.parallel.save_every, "save_total_limit": s.parallel.keep,
        "report_to": "none",
    }
    if s.loss.clip_high is not None:
        out["epsilon_high"] = s.loss.clip_high
    if not s.parallel.save_every:
        out["save_strategy"] = "no"
        del out["save_steps"]
    out["use_vllm"] = s.rollout.sampler == "vllm"
    if out["use_vllm"]:
        out |= {"vllm_mode": "colocate", "vllm_enable_sleep_mode": True,
                "vllm_tensor_parallel_size": s.cluster.tensor_parallel,
                "vllm_gpu_memory_utilization": round(b.sampler_share, 2),
                "vllm_importance_sampling_correction": s.train.correction == "ratio"}
        if s.train.correction == "ratio":
            out |= {"vllm_importance_sampling_mode": f"{s.loss.ratio}_truncate",
                    "vllm_importance_sampling_clip_max": s.loss.ratio_cap}
    return out


def _check(s, b: Budget) -> None:
    at, per = b.layout, s.parallel.micro_batch
    if at.apart:
        raise InputError("trl: training and sampling take turns on the same GPUs there; give --nodes 1, or "
                         "--cluster.trainer_nodes 0 --train.staleness 0")
    if s.cluster.sequence_parallel > 1:
        raise InputError(f"trl: cluster.sequence_parallel is {s.cluster.sequence_parallel}, its GRPO trainer does not "
                         "split a sequence over GPUs; give --cluster.sequence_parallel 1, or --engine verl")
    if b.rollouts % (at.trainer_gpus * per):
        raise InputError(f"trl: an update has {b.rollouts} rollouts, expected a multiple of {at.trainer_gpus} GPUs x "
                         f"parallel.micro_batch = {at.trainer_gpus * per}")
    if s.train.dynamic_sampling:
        raise InputError("trl: train.dynamic_sampling: it does not resample uniform groups")
    if s.loss.kl in ("k1", "k2"):
        raise InputError(f"trl: loss.kl is {s.loss.kl!r}, its estimator is k3")
    if s.loss.denominator == "constant" and s.loss.constant_length not in (0, s.rollout.max_tokens):
        raise InputError(f"trl: loss.constant_length is {s.loss.constant_length}, it divides by rollout.max_tokens, "
                         f"{s.rollout.max_tokens}")
    if s.train.correction == "ratio" and s.loss.ratio_cap is None:
        raise InputError("trl: train.correction = ratio: its ratio to the sampler is truncated; give --loss.ratio_cap")
    if s.rollout.stop:
        raise InputError("trl: rollout.stop is not handed over: answers end at the end token")


def files(s, b: Budget) -> dict[str, str]:
    """Name -> text."""
    import tomli_w

    options = settings_of(s, b)
    at = b.layout
    values = {"title": title(s), "nodes": at.nodes, "gpus": at.trainer_gpus, "last": at.nodes - 1,
              "precision": "bf16" if options["bf16"] else "no", "offload": str(s.cluster.offload).lower()}
    rule = {"name": s.name, "compare": s.raw["compare"]}  # what FadeGRPOTrainer reads
    return {"train.py": _SCRIPT.format(title=title(s), settings=pprint.pformat(options, width=110, sort_dicts=False)),
            "rule.toml": tomli_w.dumps(rule),
            "accelerate.yaml": _ACCELERATE.format(**values), "launch.sh": _LAUNCH.format(**values)}
