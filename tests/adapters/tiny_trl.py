"""A random Qwen2 of 16 hidden units, a tokenizer of 16 words, and TRL's trainers on them: a step takes milliseconds."""

import json
import os
import signal
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "CUDA_VISIBLE_DEVICES": ""}

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from llm.adapters.trl import FadeGRPOTrainer

WORDS = ["<pad>", "<eos>", *"0123456789+-*="]
PROMPTS = [f"{a} + {b} =" for a, b in ("12", "34", "56", "78", "90", "13", "57", "24")]


def tokenizer():
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def model():
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(WORDS), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.4,
        pad_token_id=0, eos_token_id=1, bos_token_id=None))


def even(completion_ids, **kwargs):
    """1 where the sum of the tokens is even: about half of the rollouts of an untrained model."""
    return [float(sum(ids) % 2 == 0) for ids in completion_ids]


def unsure(completion_ids, **kwargs):
    """`even`, but for answers that start with 0, 3 or 6, which cannot be judged."""
    return [None if ids[0] in (2, 5, 8) else float(sum(ids) % 2 == 0) for ids in completion_ids]


def long(completion_ids, **kwargs):
    """Length in units of the longest, no verdict."""
    return [len(ids) / 6 for ids in completion_ids]


REWARDS = {"even": even, "unsure": unsure, "long": long}


def settings(folder, **changes) -> dict:
    """Keywords of GRPOConfig: 4 prompts x 4 rollouts a step, on-policy, no trace outside the folder."""
    return {
        "output_dir": str(folder), "use_cpu": True, "bf16": False, "seed": 3, "max_steps": 2, "num_generations": 4,
        "per_device_train_batch_size": 16, "max_completion_length": 6, "learning_rate": 0.05, "optim": "sgd",
        "lr_scheduler_type": "constant", "loss_type": "dr_grpo", "scale_rewards": "none", "report_to": "none",
        "save_strategy": "no", "logging_steps": 1, "disable_tqdm": True, "dataloader_pin_memory": False,
        "gradient_checkpointing": False, **changes}


def build(folder, method=None, reward="even", kind=None, peft=None, **changes):
    """A trainer; method None: TRL's own. peft: a configuration of adapters."""
    kind = kind or (GRPOTrainer if method is None else FadeGRPOTrainer)
    own = {} if method is None else {"method": method}
    rewards = [REWARDS[name] for name in reward.split("+")]
    return kind(model(), rewards, GRPOConfig(**settings(folder, **changes)), processing_class=tokenizer(),
                train_dataset=Dataset.from_list([{"prompt": p} for p in PROMPTS]),
                eval_dataset=Dataset.from_list([{"prompt": p} for p in PROMPTS[:4]]), peft_config=peft, **own)


def watch(trainer) -> dict:
    """What a trainer generates and learns from, filled while it runs: advantages of this process, by batch."""
    seen: dict = {"advantages": [], "loss": [], "logged": [], "rewards": []}
    generate, loss = trainer._generate_and_score_completions, trainer._compute_loss

    def generated(inputs):
        out = generate(inputs)
        seen["advantages"].append(out["advantages"].tolist())
        seen["logged"].append(list(trainer._logs["advantages"])[-trainer.args.generation_batch_size :])
        seen["rewards"].append([list(v)[-trainer.args.generation_batch_size :]
                                for v in trainer._logs["rewards"].values()])
        return out

    def computed(model, inputs):
        seen["loss"].append(inputs["advantages"].tolist())
        return loss(model, inputs)

    trainer._generate_and_score_completions, trainer._compute_loss = generated, computed
    return seen


def weights(trainer) -> list[float]:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()]).tolist()


class Killed(TrainerCallback):
    """The process ends without a word at the start of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path, name: str, job: dict) -> None:
    """One training run; NAME.RANK.json: what this process saw."""
    job = dict(job)
    kill, resume = job.pop("kill", None), job.pop("resume", False)
    trainer = build(folder / job.pop("folder", name), **job)
    if kill is not None:
        trainer.add_callback(Killed(kill))
    seen = watch(trainer)
    trainer.train(resume_from_checkpoint=resume or None)
    state = trainer.weights.state_dict() if hasattr(trainer, "weights") else None
    rows = [{k: v for k, v in row.items() if "time" not in k and "runtime" not in k and "per_second" not in k}
            for row in trainer.state.log_history]
    (folder / f"{name}.{trainer.accelerator.process_index}.json").write_text(json.dumps(
        {**seen, "parameters": weights(trainer), "state": state, "rows": rows}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, job in json.loads(sys.argv[2]).items():
        run(Path(sys.argv[1]), name, job)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
