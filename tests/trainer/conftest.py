"""A tiny untrained transformer, and trainers on it: a step takes milliseconds."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import pytest
from tiny import HERE, SMALL

from llm import config


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> str:
    """Folder of a model with 1 layer and 16 hidden units."""
    import torch

    from llm.policy import export
    from llm.pretrain import new_policy
    from llm.settings import Pretrain

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("base")
    policy, tokenizer = new_policy(Pretrain(hidden=16, layers=1, heads=2, intermediate=32))
    export(policy, tokenizer, folder, policy.model.state_dict())
    return str(folder)


@pytest.fixture
def make_trainer(base, monkeypatch):
    """make_trainer(source="dr_grpo", **{"train.lr": ...}) -> Trainer; keys as on the command line."""
    monkeypatch.syspath_prepend(str(HERE))

    def build(source="dr_grpo", sampler=None, **overrides):
        from dataclasses import replace

        from llm import jobs
        from llm.data import problems
        from llm.parallel import Ranks
        from llm.trainer import Trainer

        settings = config.load(source, {**SMALL, "model.path": base, **overrides})
        policy, tokenizer, reference = jobs._policies(settings, Ranks())
        roller = jobs._roller(settings, policy, tokenizer)
        if sampler is not None:
            roller = replace(roller, sampler=sampler)
        return Trainer(settings, policy, roller, problems(settings.data), Ranks(), reference)

    return build
