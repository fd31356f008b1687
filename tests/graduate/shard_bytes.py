"""Bytes of weights, gradients and moments that each of several processes holds after a step. Run by test_models."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from test_models import config_of, small
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM


def main(folder: Path) -> None:
    dist.init_process_group("gloo")
    model = AutoModelForCausalLM.from_config(config_of(small()))
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimiser.step()
    tensors = [*model.parameters(), *(p.grad for p in model.parameters()),
               *(v for state in optimiser.state.values() for k, v in state.items() if k != "step")]
    (folder / str(dist.get_rank())).write_text(str(sum(t.to_local().nbytes for t in tensors)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
