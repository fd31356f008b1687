"""What one run of a model on a cluster needs: layout, memory, time, age of its rollouts. Numbers only.

An update is one step of the optimiser, on prompts x group_size rollouts. Every rate is an assumption of the config
([cluster] mfu, decode_share, mean_tokens), not a measurement.
"""

from typing import NamedTuple

from fade_sim.errors import InputError
from llm.graduate import models
from llm.graduate.models import GPUS, Spec


class Layout(NamedTuple):
    """Who does what. A replica is one copy of the sampler, on tensor_parallel GPUs."""

    nodes: int
    trainer_nodes: int
    sampler_nodes: int
    trainer_gpus: int
    sampler_gpus: int
    apart: bool  # samplers on nodes of their own; else the same GPUs train and sample in turn
    replicas: int
    data_parallel: int  # groups of GPUs that see different rollouts


class Budget(NamedTuple):
    """Everything the plan says in numbers; bytes and seconds."""

    layout: Layout
    parameters: int
    trainer: dict[str, float]  # bytes per GPU, by part
    trainer_host: float  # bytes per GPU in the memory of the host
    trainer_total: float
    tokens: int  # of a pass, per GPU
    chunk: int  # tokens whose logits exist at one time
    sampler: dict[str, float]
    sampler_share: float  # of the memory of a GPU, that the sampler may fill
    room: int  # answers that a replica's caches hold at once, at their mean size
    gpu_memory: float
    rollouts: int  # per update
    mean_tokens: float  # per answer
    sampled_tokens: float  # per update
    trained_tokens: float
    in_flight: int  # rollouts started and not yet learned from
    at_once: float  # answers that a replica decodes at once; the others in flight wait for the rest of their group
    decode: float  # tokens per second of a replica
    flops: float  # per trained token: forward and backward, and the pass for the old log-probabilities
    train_seconds: float  # per update
    sample_seconds: float
    seconds: float  # per update: the longer of the two, or their sum on the same GPUs
    gpu_hours: float
    enough: int | None  # updates in flight at which the samplers keep pace with the trainers; None: they never do
    age: float  # expected updates between the weights that started a rollout and the update that learns from it


def layout(settings) -> Layout:
    """Raises InputError where nodes and parallel degrees do not fit together."""
    c = settings.cluster
    apart = c.trainer_nodes > 0
    if c.trainer_nodes >= c.nodes and apart:
        raise InputError(f"cluster.trainer_nodes is {c.trainer_nodes} of {c.nodes} nodes: none is left to sample; "
                         "0 lets all of them do both in turn")
    trainers = c.trainer_nodes if apart else c.nodes
    samplers = c.nodes - c.trainer_nodes
    for key, gpus in (("sequence_parallel", trainers * c.gpus_per_node), ("tensor_parallel", c.gpus_per_node)):
        if gpus % getattr(c, key):
            raise InputError(f"cluster.{key} is {getattr(c, key)}, expected a divisor of {gpus} GPUs")
    return Layout(c.nodes, trainers, samplers, trainers * c.gpus_per_node, samplers * c.gpus_per_node, apart,
                  samplers * c.gpus_per_node // c.tensor_parallel, trainers * c.gpus_per_node // c.sequence_parallel)


def warmup(settings) -> int:
    """Batches of sync_updates updates that are in flight beyond the one that is learned from: staleness/sync_updates.

    Raises InputError where staleness and layout contradict each other.
    """
    train, c = settings.train, settings.cluster
    if train.staleness % c.sync_updates:
        raise InputError(f"train.staleness is {train.staleness} updates, expected a multiple of cluster.sync_updates, "
                         f"{c.sync_updates}: the samplers get new weights only then")
    if c.trainer_nodes and not train.staleness:
        raise InputError("train.staleness is 0, but the samplers have nodes of their own: they would wait for every "
                         f"update; give it at least cluster.sync_updates, {c.sync_updates}, or cluster.trainer_nodes 0")
    if not c.trainer_nodes and train.staleness:
        raise InputError(f"train.staleness is {train.staleness}, but the same GPUs train and sample in turn "
                         "(cluster.trainer_nodes 0): expected 0")
    return train.staleness // c.sync_updates


def budget(settings, m: Spec, *, packed: bool = True, chunk: int = 512) -> Budget:
    """The numbers of a run. Raises InputError on settings that contradict each other.

    packed: passes of cluster.tokens_per_gpu tokens without padding (verl); False: of parallel.micro_batch rollouts of
    the greatest length (TRL). chunk: tokens whose logits the engine holds at one time.
    """
    train, c, gpu, at = settings.train, settings.cluster, GPUS[settings.cluster.gpu], layout(settings)
    longest = c.prompt_tokens + settings.rollout.max_tokens
    _check(settings, m, longest)
    warmup(settings)
    # --- memory of a GPU that trains
    state = models.training_state(m, at.trainer_gpus)
    host = sum(state.values()) if c.offload else 0.0
    pass_ = max(c.tokens_per_gpu * c.sequence_parallel, longest) if packed else settings.parallel.micro_batch * longest
    tokens = -(-pass_ // c.sequence_parallel)
    chunk = min(chunk, tokens)
    trainer = {**({} if c.offload else state), "weights and gradients, whole": models.gathered(m),
               **models.activations(m, tokens), "logits": models.logit_bytes(m, chunk)}
    # --- memory of a GPU that samples
    mean = c.mean_tokens or settings.rollout.max_tokens / 2
    kv = models.mean_kv_bytes(m, c.prompt_tokens, mean)
    weights = 2 * models.parameters(m) / c.tensor_parallel
    resident = 0.0 if at.apart or c.offload else sum(state.values()) / gpu.memory  # of the trainer, on the same GPU
    share = min(c.sampler_memory, 0.95 - resident)
    room = max(gpu.memory * share - weights, 0.0)
    sampler = {"weights, bfloat16": weights, "key-value caches": room}
    # --- time
    rollouts = train.prompts * train.group_size
    active = mean / settings.rollout.max_tokens  # a group is done with its longest answer, taken to fill the limit
    in_flight = (train.staleness or c.sync_updates) * rollouts

    def sampling(flying: float) -> tuple[float, float, float]:
        """(answers at once on a replica, its tokens per second, seconds per update) at so many rollouts in flight."""
        at_once = min(flying * active / at.replicas, room * c.tensor_parallel / kv)
        decode = models.decode_rate(m, gpu, c.tensor_parallel, at_once, kv, c.decode_share)
        return at_once, decode, rollouts * mean / (at.replicas * decode) if decode else float("inf")

    at_once, decode, sample_seconds = sampling(in_flight)
    trained = rollouts * (c.prompt_tokens + mean)
    flops = (3 * train.epochs + 1) * models.forward_flops(m, round(c.prompt_tokens + mean))
    train_seconds = trained * flops / (at.trainer_gpus * gpu.flops * c.mfu)
    full = int(room * c.tensor_parallel / kv * at.replicas / (active * rollouts)) + 1  # more is not decoded at once
    enough = next((n for n in range(1, full + 1) if sampling(n * rollouts)[2] <= train_seconds), None)
    seconds = max(train_seconds, sample_seconds) if at.apart else train_seconds + sample_seconds
    return Budget(
        layout=at, parameters=models.parameters(m), trainer=trainer, trainer_host=host,
        trainer_total=sum(trainer.values()), tokens=tokens, chunk=chunk, sampler=sampler,
        sampler_share=share, room=int(room * c.tensor_parallel / kv),
        gpu_memory=gpu.memory, rollouts=rollouts, mean_tokens=mean, sampled_tokens=rollouts * mean,
        trained_tokens=trained, in_flight=in_flight, at_once=at_once, decode=decode, flops=flops,
        train_seconds=train_seconds, sample_seconds=sample_seconds, seconds=seconds,
        gpu_hours=train.steps * seconds * at.nodes * c.gpus_per_node / 3600,
        enough=enough, age=train.staleness + (c.sync_updates - 1) / 2)


def _check(settings, m: Spec, longest: int) -> None:
    c = settings.cluster
    if longest > m.context:
        raise InputError(f"cluster.prompt_tokens + rollout.max_tokens is {longest}, {m.name} reads {m.context}")
    if (c.mean_tokens or 1) > settings.rollout.max_tokens:
        raise InputError(f"cluster.mean_tokens is {c.mean_tokens}, expected at most rollout.max_tokens, "
                         f"{settings.rollout.max_tokens}")
    if m.heads % c.sequence_parallel:
        raise InputError(f"cluster.sequence_parallel is {c.sequence_parallel}, expected a divisor of {m.heads} heads")
    if m.kv_heads % c.tensor_parallel and c.tensor_parallel % m.kv_heads:
        raise InputError(f"cluster.tensor_parallel is {c.tensor_parallel}, expected a divisor or a multiple of "
                         f"{m.kv_heads} key-value heads")
    if m.heads % c.tensor_parallel:
        raise InputError(f"cluster.tensor_parallel is {c.tensor_parallel}, expected a divisor of {m.heads} heads")
    if settings.model.lora_rank or settings.model.trained != "all":
        raise InputError("graduate plans runs that train all weights: model.lora_rank and model.trained are not "
                         "handed to an engine")
    if settings.train.optimizer != "adam":
        raise InputError(f"train.optimizer is {settings.train.optimizer!r}: the engines are configured for AdamW; "
                         "expected 'adam'")
