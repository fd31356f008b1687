"""A model of 1 layer and 16 hidden units in the place of a large one."""

from pathlib import Path


def write(folder: Path) -> str:
    """Its folder, in Hugging Face's form with a tokenizer."""
    import torch

    from llm.policy import export
    from llm.pretrain import new_policy
    from llm.settings import Pretrain

    torch.set_num_threads(1)
    policy, tokenizer = new_policy(Pretrain(hidden=16, layers=1, heads=2, intermediate=32))
    export(policy, tokenizer, folder, policy.model.state_dict())
    return str(folder)
