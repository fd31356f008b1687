"""All that has to do with several processes: start, sums over ranks, sharding. One process is the same code.

Started by torchrun, every process takes its share of the groups of a step; the weights are sharded
over all of them (FSDP2). What is summed is always numerators and denominators, never means.
"""

import os
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Ranks:
    """The processes of a run and this one's place among them."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"

    def sum(self, values) -> np.ndarray:
        """Float64 sum over ranks of an array of numbers."""
        values = np.asarray(values, dtype=np.float64)
        if self.size == 1:
            return values
        tensor = torch.from_numpy(values.copy()).to(self.device)
        dist.all_reduce(tensor)
        return tensor.cpu().numpy()

    def max(self, value: float) -> float:
        if self.size == 1:
            return value
        tensor = torch.tensor(float(value), dtype=torch.float64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return float(tensor)

    def all(self, flag: bool) -> bool:
        """True when every rank says True."""
        return self.max(0.0 if flag else 1.0) == 0.0

    def gather(self, value) -> list:
        """The values of all ranks, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        out = [None] * self.size
        dist.all_gather_object(out, value)
        return out

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def close(self, failed: bool = False) -> None:
        """Leave together: without it some runs abort after their work is done. After a failure there is no waiting."""
        if self.size > 1:
            if not failed:
                dist.barrier()
            dist.destroy_process_group()


def start() -> Ranks:
    """Join the processes that torchrun started, or be the only one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    cuda = torch.cuda.is_available()
    if size == 1:
        return Ranks(device="cuda" if cuda else "cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if cuda else "gloo")
    return Ranks(dist.get_rank(), size, f"cuda:{local}" if cuda else "cpu")


def shard(policy, ranks: Ranks) -> None:
    """Shard the weights of a policy over all ranks: one group per transformer block, the rest in the root."""
    if ranks.size == 1:
        return
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for block in blocks(policy.model):
        fully_shard(block, mp_policy=precision)
    fully_shard(policy, mp_policy=precision)


def blocks(model) -> list[torch.nn.Module]:
    """The transformer blocks: the longest list of modules."""
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; a plain tensor is itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full tensor, on every rank (a collective where it is sharded)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def global_norm(gradients, ranks: Ranks) -> float:
    """Euclidean norm over all gradients and ranks, in float64: sharded parts are summed, replicated ones count once."""
    parts = [0.0, 0.0]
    for gradient in gradients:
        sharded = hasattr(gradient, "to_local")
        parts[sharded] += float(local(gradient).double().square().sum())
    return float(np.sqrt(parts[0] + ranks.sum(parts[1])))
