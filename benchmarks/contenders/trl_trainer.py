"""GRPOTrainer of TRL on the problems of a job, as its own process in TRL's environment.

`python -m benchmarks.contenders.trl_trainer JOB.json`; the last line of stdout is JSON, as that of
`benchmarks.trainer_run`. On-policy, one thread, no logging, no checkpoints, no dropout, no activation
checkpointing: what the trainer of this project does at the same settings.
"""

import json
import sys
import tempfile
import time
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

from benchmarks.peak import peak_bytes
from llm.reward import integer

PACKAGES = ("trl", "transformers", "accelerate", "datasets", "torch", "numpy")


def config(job: dict, folder: str, steps: int):
    """The settings of a job in TRL's words; dr_grpo: no division by the group's std, constant denominator."""
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=folder, use_cpu=True, bf16=False, fp16=False, seed=job["seed"], max_steps=steps,
        per_device_train_batch_size=job["prompts"] * job["group_size"], num_generations=job["group_size"],
        gradient_accumulation_steps=1, num_iterations=1, max_completion_length=job["max_tokens"],
        temperature=1.0, top_p=1.0, top_k=0, shuffle_dataset=False, beta=0.0, loss_type="dr_grpo",
        scale_rewards="none", optim="sgd", learning_rate=job["lr"], lr_scheduler_type="constant", weight_decay=0.0,
        max_grad_norm=0.0, gradient_checkpointing=False, report_to="none", logging_strategy="no",
        save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, disable_dropout=True,
    )


def main(path: str) -> None:
    import torch

    torch.set_num_threads(1)
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOTrainer

    job = json.loads(Path(path).read_text())
    tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    dumping = job.get("dump")
    steps = 1 if dumping else job["warm"] + job["steps"]
    problems = job["problems"][: steps * job["prompts"]]
    seen: dict = {}
    clock: list[tuple[float, float]] = []
    solved: list[float] = []

    def reward(completions, answer, completion_ids, **kwargs) -> list[float]:
        """The verifier of this project: a whole number and an end token."""
        out = [float(ids[-1] == tokenizer.eos_token_id and integer(text, right))
               for text, right, ids in zip(completions, answer, completion_ids, strict=True)]
        seen["reward"] = out
        solved.append(sum(out) / len(out))
        return out

    class Clock(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            seen["before"] = peak_bytes()

        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            if dumping:
                seen["gradient"] = {name: p.grad.clone() for name, p in model.named_parameters()}

        def on_step_end(self, args, state, control, **kwargs):
            clock.append((time.process_time(), time.perf_counter()))

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model, args=config(job, folder, steps), processing_class=tokenizer, reward_funcs=reward,
            train_dataset=Dataset.from_list([{"prompt": p, "answer": a} for p, a in problems]), callbacks=[Clock()])
        if dumping:
            keep_first_batch(trainer, seen)
        trainer.train()
    if dumping:
        torch.save(seen, dumping)
    took = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(clock)][job["warm"] - 1 :]
    print(json.dumps({
        "cpu": [c for c, _ in took], "wall": [w for _, w in took], "peak": peak_bytes(), "before": seen["before"],
        "solved": solved, "versions": {name: version(name) for name in PACKAGES}}))


def keep_first_batch(trainer, seen: dict) -> None:
    """Put TRL's own tokens, masks, advantages and loss of a step into `seen`."""
    generate, loss = trainer._generate_and_score_completions, trainer.compute_loss

    def generated(inputs):
        out = generate(inputs)
        names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages")
        seen["batch"] = {name: out[name].clone() for name in names}
        return out

    def computed(*args, **kwargs):
        out = loss(*args, **kwargs)
        seen["loss"] = float(out.detach())
        return out

    trainer._generate_and_score_completions, trainer.compute_loss = generated, computed


if __name__ == "__main__":
    main(sys.argv[1])
