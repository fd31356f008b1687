"""Settings and helpers of the trainer's tests."""

from pathlib import Path

import torch

HERE = Path(__file__).parent
SMALL = {
    "train.steps": 4, "train.prompts": 4, "train.group_size": 4, "train.record": 100, "model.lr": 0.5,
    "data.train_prompts": 10, "data.test_prompts": 4, "data.eval_prompts": 4, "data.eval_rollouts": 4,
    "data.eval_k": [1, 4], "reward.name": "verifiers:even", "rollout.max_tokens": 5, "parallel.save_every": 0,
}


def weights(trainer):
    """All weights of a trainer as one vector."""
    return torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])


def train_steps(overrides: dict, ranks, saved: Path):
    """(trainer, rows) after train.steps - 2 steps; goes on from a checkpoint in `saved` where there is one."""
    from llm import checkpoint, config, jobs
    from llm.data import problems
    from llm.trainer import Trainer

    settings = config.load("dr_grpo", {**SMALL, **overrides})
    policy, tokenizer, reference = jobs._policies(settings, ranks)
    roller = jobs._roller(settings, policy, tokenizer, ranks)
    trainer = Trainer(settings, policy, roller, problems(settings.data), ranks, reference)
    checkpoint.load(trainer, saved)
    last = settings.train.steps - 2 if trainer.step == 0 else settings.train.steps
    return trainer, [trainer.advance() for _ in range(trainer.step, last)]
