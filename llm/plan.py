"""What a run will need, before it starts: parameters, memory of a process, tokens of a step."""

import json
from pathlib import Path

from fade_sim.errors import InputError
from llm.policy import parameter_count


def plan(settings, ranks: int) -> str:
    """A few lines for a person. An estimate: activations of a block are counted as 16 d values a token.

    Raises InputError where the model folder is missing.
    """
    folder = Path(settings.model.path)
    if not settings.model.path:
        return "plan: model.path is empty, so there is nothing to count"
    try:
        shape = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: is no model folder ({error})") from None
    total = parameter_count(folder)
    hidden, layers, vocabulary = (int(shape.get(k) or shape.get(old) or 0) for k, old in
                                  (("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("vocab_size", "")))
    train, parallel, rollout = settings.train, settings.parallel, settings.rollout
    stored = 2 if settings.model.dtype == "bfloat16" else 4
    trained = vocabulary * hidden if settings.model.trained == "head" else total
    if settings.model.lora_rank:
        trained = min(2 * settings.model.lora_rank * 7 * hidden * layers, total)  # about 7 linear layers a block
    moments = 8 if train.optimizer == "adam" else 0
    master = 4 if stored == 2 else 0
    copies = 2 if settings.loss.kl != "none" else 1
    weights = copies * stored * total / ranks
    training = (stored + master + moments) * trained / ranks
    length = rollout.max_tokens + 32
    kept = 2 if parallel.activation_checkpointing else 16
    activations = stored * parallel.micro_batch * length * hidden * (layers * kept + 16)
    logits = 4 * 4 * parallel.chunk * vocabulary
    rows = train.prompts * train.group_size
    share = -(-train.prompts // ranks) * train.group_size
    parts = {"weights": weights, "gradients and optimiser": training, "activations": activations, "logits": logits}
    memory = ", ".join(f"{name} {_bytes(size)}" for name, size in parts.items())
    return (f"parameters: {total:,} ({trained:,} trained)\n"
            f"memory per process, {ranks} process{'es' * (ranks > 1)}: about {_bytes(sum(parts.values()))} ({memory})\n"
            f"per step: {train.prompts} groups, {rows} rollouts ({share} per process), "
            f"at most {rows * rollout.max_tokens:,} answer tokens\n"
            f"waiting rollouts: {train.staleness * rows} (staleness {train.staleness})")


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
