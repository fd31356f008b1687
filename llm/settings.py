"""The trainer's own settings: every key, its type, range and default. No reading of files.

The dynamics ([train]) and the rule ([method], [controller]) are those of `fade_sim.settings` and
`fade_sim.config`: one file serves the simulator and the trainer.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from fade_sim.settings import Count, NonNegative, Positive, Share, Whole

Probability = Annotated[float, Meta(gt=0, lt=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table of the config."""


class Model(Section):
    """The policy and its optimiser. The simulator's train.lr is the step of a toy head: it does not transfer."""

    path: str = ""  # folder of a Hugging Face causal language model with its tokenizer
    lr: NonNegative = 0.1  # sgd: about .1 for the small model of fade-llm pretrain; adam: about 2e-4
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the weights; the optimiser keeps float32 ones
    weight_decay: NonNegative = 0.0  # decoupled (AdamW)
    max_grad_norm: NonNegative = 0.0  # clip of the global gradient norm; 0: none
    trained: Literal["all", "head"] = "all"  # head: the output layer alone, as in the simulator
    lora_rank: Whole = 0  # above 0: low-rank updates instead of the weights themselves
    lora_alpha: Positive = 16.0  # the update is scaled by lora_alpha / lora_rank


class Data(Section):
    """The problems."""

    # arithmetic: `12+34=`; few_shot: solved examples before `12 + 3 =`, for a model that has read text
    task: Literal["arithmetic", "few_shot", "file"] = "arithmetic"
    train: str = ""  # task = file: JSONL of {"prompt", "answer"}, optional "skill" (see fade-llm data)
    test: str = ""
    train_prompts: Count = 256  # task = arithmetic or few_shot
    test_prompts: Count = 128  # held-out prompts of the training skills, and as many of the held-out skill
    seed: Whole = 0  # of the problems and of their split
    eval_prompts: Count = 128  # evaluated prompts of each set
    eval_rollouts: Count = 16  # rollouts of each of them
    eval_k: tuple[Count, ...] = (1, 4, 16)  # pass@k


class Reward(Section):
    """The verifier of an answer."""

    # integer (the whole answer is that number), exact (same text), math (the last box), code (tests of a program in
    # isolation), gym (the scorer of a generated problem), or module:function
    name: str = "integer"
    # code: the program is the last ``` block of an answer, or its whole text; limits are per test
    program: Literal["block", "text"] = "block"
    cpu_seconds: Positive = 6.0
    wall_seconds: Positive = 15.0
    memory_mb: Annotated[int, Meta(ge=64)] = 1024
    processes: Count = 16  # and threads, of one program
    slots: Whole = 0  # programs judged side by side, by each process; 0: one per core, shared among the processes
    unsafe_local: bool = False  # run programs WITHOUT isolation, with the rights of this process
    # math: the answer must stand in the last box; without one, the last **bold** text may count
    answer: Literal["box", "box_or_bold"] = "box"
    tolerance: NonNegative = 0.0  # relative, of numbers of which one is written with a decimal point; 0: exact
    symbolic: bool = True  # compare what is neither a number nor the same text with math-verify; False: it is wrong
    symbolic_seconds: Positive = 5.0  # per comparison, in a process of its own
    # gym: the answer stands between <answer> and </answer>
    threshold: Annotated[float, Meta(gt=0, le=1)] = 1.0  # scores from here on are reward 1, below 0
    scorer_error: Literal["unjudged", "fail"] = "unjudged"  # a scorer that raises: the rollout leaves, or fails
    scorer_seconds: Positive = 5.0  # per answer, in a process of its own; longer is wrong


class Rollout(Section):
    """Sampling of answers, in training and in evaluation."""

    sampler: Literal["own", "vllm"] = "own"
    temperature: Positive = 1.0  # log-probabilities and entropies are those of softmax(z / temperature)
    max_tokens: Count = 8  # longest answer, its end token included
    stop: str = ""  # text that ends an answer, if it is one token; the end token always does
    batch: Count = 512  # rollouts sampled at a time


class Loss(Section):
    """The objective, beyond [train] correction, clip and epochs."""

    # what the sum over all tokens of the step is divided by: tokens, or sequences of their own length, or
    # sequences times constant_length
    denominator: Literal["token_mean", "sequence_mean", "constant"] = "constant"
    constant_length: Whole = 0  # 0: rollout.max_tokens
    ratio: Literal["token", "sequence"] = "token"  # level of the importance ratio
    ratio_cap: Annotated[float, Meta(gt=1)] | None = None  # ceiling of the importance ratio
    clip_high: Annotated[float, Meta(gt=0)] | None = None  # upper half-width of the PPO clip; default train.clip
    kl: Literal["none", "k1", "k2", "k3"] = "none"  # estimator of KL(policy || initial policy), per token
    kl_coef: NonNegative = 0.0
    entropy_coef: float = 0.0  # of the entropy bonus
    mask_truncated: bool = False  # answers without an end token carry no gradient


class Parallel(Section):
    """Memory and processes; none of it changes the result beyond rounding."""

    micro_batch: Count = 256  # rollouts per forward and backward pass
    chunk: Count = 1024  # tokens whose logits exist at one time
    activation_checkpointing: bool = False
    save_every: Whole = 50  # steps between checkpoints; 0: none
    keep: Count = 2  # newest checkpoints kept


class Probe(Section):
    """Costly diagnostics, taken every train.record steps."""

    stability: bool = False  # Lambda over all trainable parameters, from per-rollout gradients
    exact: bool = False  # also of the exact feedback matrix E[A Hess log pi], by Lanczos (about 60 backward passes)
    rollouts: Count = 1024  # rollouts they are measured on
    entropy_slope: bool = True  # predicted and measured change of entropy of one step
    events: bool = False  # also write TensorBoard event files (needs tensorboardX)


class Pretrain(Section):
    """The first rung: a small transformer trained from scratch to partial competence."""

    hidden: Count = 64
    layers: Count = 2
    heads: Count = 4
    intermediate: Count = 176
    steps: Count = 3000  # at most
    batch: Count = 256
    lr: Positive = 3e-3  # AdamW
    solve_rate: Share = 0.3  # stop when the mean solve rate of the training prompts reaches it
    check_every: Count = 50
    seed: Whole = 0


class Cluster(Section):
    """Where a large model trains, for `fade-llm graduate`; the trainer of this package does not read it."""

    nodes: Count = 1
    trainer_nodes: Whole = 0  # of them, the others sample; 0: all train and sample in turn
    gpus_per_node: Count = 8
    gpu: Literal["a100", "h100", "h200"] = "h100"
    sequence_parallel: Count = 1  # GPUs that share a sequence in training
    tensor_parallel: Count = 1  # GPUs that share a layer in sampling
    sync_updates: Count = 1  # updates between two copies of the weights to the samplers
    tokens_per_gpu: Count = 16384  # of one forward and backward pass
    prompt_tokens: Count = 1024  # longest prompt
    mean_tokens: Whole = 0  # mean length of an answer, assumed; 0: half of rollout.max_tokens
    offload: bool = False  # float32 weights and Adam's moments stay in the memory of the host
    # assumed shares: of the peak operations that training reaches, of the peak operations or traffic that decoding
    # reaches, of the memory that the sampler may fill
    mfu: Annotated[float, Meta(gt=0, lt=1)] = 0.4
    decode_share: Annotated[float, Meta(gt=0, lt=1)] = 0.6
    sampler_memory: Annotated[float, Meta(gt=0, lt=1)] = 0.85


SECTIONS: dict[str, type[Section]] = {
    "model": Model, "data": Data, "reward": Reward, "rollout": Rollout, "loss": Loss, "parallel": Parallel,
    "probe": Probe, "pretrain": Pretrain, "cluster": Cluster,
}
