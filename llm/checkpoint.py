"""Checkpoints: everything that the rest of a run depends on, written whole or not at all.

A checkpoint is a folder `checkpoint-<step>`: weights and optimiser, each process writing its shards
(torch.distributed.checkpoint, readable by any number of processes); the rollouts that wait to be
learned from; and state.json with the step, the controller, the data cursor and the length of
metrics.jsonl. Random numbers are keyed by seed, step and group, so there is no generator to save.
"""

import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

from fade_sim.advantage import controller
from fade_sim.errors import InputError
from llm import lora
from llm.batch import Rollouts, concat
from llm.parallel import Ranks, local, whole
from llm.policy import export as write_model
from llm.trainer import Batch, Trainer, spare

_PREFIX = "checkpoint-"


def save(trainer: Trainer, folder: Path, metrics_bytes: int) -> Path:
    """Write the newest checkpoint and remove older ones beyond parallel.keep. Refuses non-finite weights."""
    final = folder / f"{_PREFIX}{trainer.step:08d}"
    staging = folder / f".{final.name}.partial"
    tensors = _tensors(trainer)
    finite = all(bool(torch.isfinite(local(t)).all()) for t in tensors.values())
    if not trainer.ranks.all(finite):
        raise InputError(f"the weights are not finite after step {trainer.step}: not saved; lower model.lr")
    queue = [_gathered(batch, trainer.ranks) for batch in trainer.queue]
    if trainer.ranks.rank == 0:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
    trainer.ranks.barrier()
    _dcp(dcp.save, tensors, staging / "weights", trainer.ranks)
    if trainer.ranks.rank == 0:
        _write(staging / "queue.npz", lambda path: _save_queue(path, queue))
        state = {"step": trainer.step, "cursor": trainer.cursor, "queue": len(queue), "metrics_bytes": metrics_bytes,
                 "controller": controller.to_dict(trainer.controller)}
        _write(staging / "state.json", lambda path: path.write_text(json.dumps(state, indent=1) + "\n"))
        _sync(staging)
        shutil.rmtree(final, ignore_errors=True)
        staging.rename(final)
        _sync(folder)
        for old in checkpoints(folder)[: -trainer.settings.parallel.keep]:
            shutil.rmtree(old)
    trainer.ranks.barrier()
    return final


def load(trainer: Trainer, folder: Path) -> int:
    """Put a trainer where its newest checkpoint in `folder` left off; returns the length of metrics.jsonl then.

    0 and an untouched trainer where there is no checkpoint yet. Raises InputError on a damaged one.
    """
    found = checkpoints(folder)
    if not found:
        return 0
    newest = found[-1]
    try:
        state = json.loads((newest / "state.json").read_text())
        tensors = _tensors(trainer)
        _dcp(dcp.load, tensors, newest / "weights", trainer.ranks)
        queue = _load_queue(newest / "queue.npz", state["queue"])
    except (OSError, ValueError, KeyError, RuntimeError, dcp.api.CheckpointException) as error:
        raise InputError(f"{newest}: cannot be loaded ({str(error).splitlines()[0]})") from None
    trainer.step, trainer.cursor = state["step"], state["cursor"]
    trainer.controller = controller.from_dict(state["controller"])
    trainer.queue.clear()
    trainer.queue.extend(_own(batch, trainer.ranks) for batch in queue)
    return state["metrics_bytes"]


def export(trainer: Trainer, tokenizer, folder: Path) -> None:
    """The policy as a Hugging Face folder, LoRA merged; appears whole or not at all."""
    tensors = {name: whole(t).cpu() for name, t in trainer.policy.model.state_dict().items()}
    if trainer.ranks.rank == 0:
        staging = folder.with_name(f".{folder.name}.partial")
        for leftover in (staging, folder):  # of a run that was killed here
            shutil.rmtree(leftover, ignore_errors=True)
        write_model(trainer.policy, tokenizer, staging, lora.merged(trainer.policy.model, tensors))
        staging.rename(folder)
    trainer.ranks.barrier()


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints of a run folder, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if (path / "state.json").is_file())


def _tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    """All tensors of a run by name; loading fills them in place."""
    out = {f"model.{k}": v for k, v in trainer.policy.model.state_dict().items()}
    out |= {f"optimiser.{k}": v for k, v in trainer.optimiser.tensors().items()}
    if trainer.first_head is not None:
        out["first_head"] = trainer.first_head
    return out


def _dcp(function, tensors: dict, path: Path, ranks: Ranks) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as meant
        function(tensors, checkpoint_id=str(path), no_dist=ranks.size == 1)


# --- rollouts in waiting -------------------------------------------------------------------------------


def _gathered(batch: Batch, ranks: Ranks) -> Batch:
    """The batch with the rollouts of all processes, in order of their groups."""
    if ranks.size == 1:
        return batch
    everything = concat(ranks.gather(batch.rollouts))
    keep = torch.isin(everything.group, torch.from_numpy(batch.kept))
    order = torch.argsort(everything.group, stable=True)
    return Batch(everything.select(order[keep[order]]), batch.kept, batch.drawn)


def _own(batch: Batch, ranks: Ranks) -> Batch:
    """This process's share of a batch that holds all rollouts."""
    if ranks.size == 1:
        return batch
    mine = torch.isin(batch.rollouts.group, torch.from_numpy(batch.kept[ranks.rank :: ranks.size]))
    return Batch(batch.rollouts.select(mine) if mine.any() else spare(batch.rollouts), batch.kept, batch.drawn)


def _save_queue(path: Path, queue: list[Batch]) -> None:
    arrays = {}
    for i, batch in enumerate(queue):
        arrays |= {f"{i}/{k}": v.numpy() for k, v in batch.rollouts.tensors().items()}
        arrays |= {f"{i}/kept": batch.kept, f"{i}/drawn": batch.drawn}
    np.savez(path, **arrays)


def _load_queue(path: Path, length: int) -> list[Batch]:
    with np.load(path, allow_pickle=False) as file:
        names = Rollouts.__dataclass_fields__
        return [Batch(Rollouts(**{k: torch.from_numpy(file[f"{i}/{k}"]) for k in names}), file[f"{i}/kept"],
                      file[f"{i}/drawn"]) for i in range(length)]


# --- disk ----------------------------------------------------------------------------------------------


def _write(path: Path, write) -> None:
    write(path)
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Names inside a folder are on disk before anything points at them."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
