"""Models and GPUs as numbers: parameters, bytes, floating-point operations. Closed forms, no torch.

Legend: L layers, d hidden size, H query heads, K key-value heads, h dimension of a head, f intermediate
size, V vocabulary. Sizes are in bytes, rates per second, 1 GB = 1e9 bytes.
"""

from typing import NamedTuple

from fade_sim.errors import InputError, nearest


class Spec(NamedTuple):
    """A decoder-only transformer with gated MLPs and grouped key-value heads."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool  # the output layer is the embedding
    qkv_bias: bool
    context: int  # longest sequence, tokens
    window: int  # of the local layers, tokens; 0: every layer sees everything
    global_layers: int  # layers that see everything
    folder: str  # name on the Hugging Face hub
    source: str


MODELS = {spec.name: spec for spec in (
    Spec("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, False, True, 131072, 0, 28, "Qwen/Qwen2.5-7B",
         "config.json of Qwen/Qwen2.5-7B; arXiv 2412.15115, table 1"),
    Spec("cwm-32b", 64, 6144, 48, 8, 128, 21504, 128256, False, False, 131072, 8192, 16, "facebook/cwm",
         "transformers.CwmConfig, whose defaults are facebook/cwm; arXiv 2510.02387"),
)}


class Gpu(NamedTuple):
    """What one accelerator has: usable memory, dense bfloat16 operations and memory traffic per second."""

    memory: float
    flops: float
    bandwidth: float


GPUS = {  # data sheets of the SXM versions; memory as the driver reports it, less 1 GB for its context
    "a100": Gpu(84.0e9, 312e12, 2.04e12),
    "h100": Gpu(84.0e9, 989e12, 3.35e12),
    "h200": Gpu(149.0e9, 989e12, 4.8e12),
}


def find_model(name: str) -> Spec:
    """Raises InputError with the nearest name."""
    if name not in MODELS:
        raise InputError(f"unknown --model {name!r}{nearest(name, MODELS)}")
    return MODELS[name]


# --- parameters ----------------------------------------------------------------------------------------


def block_parameters(m: Spec) -> int:
    """Of one layer: attention d h (2 H + 2 K), gated MLP 3 d f, two norms 2 d, biases (H + 2 K) h if any."""
    attention = m.hidden * m.head_dim * 2 * (m.heads + m.kv_heads)
    bias = (m.heads + 2 * m.kv_heads) * m.head_dim if m.qkv_bias else 0
    return attention + bias + 3 * m.hidden * m.intermediate + 2 * m.hidden


def root_parameters(m: Spec) -> int:
    """Outside the layers: embedding, output layer unless tied, last norm."""
    return m.vocabulary * m.hidden * (1 if m.tied else 2) + m.hidden


def parameters(m: Spec) -> int:
    """All of them."""
    return m.layers * block_parameters(m) + root_parameters(m)


# --- memory of training --------------------------------------------------------------------------------

STATE_BYTES = {"weights, float32": 4, "gradients, float32": 4, "Adam moments, float32": 8}  # per parameter


def training_state(m: Spec, shards: int) -> dict[str, float]:
    """Bytes per GPU that live through a step, fully sharded: float32 weights, gradients and two Adam moments."""
    return {part: size * parameters(m) / shards for part, size in STATE_BYTES.items()}


def gathered(m: Spec) -> int:
    """Bytes of bfloat16 weights and gradients that FSDP has whole at its busiest moment.

    Embedding, output layer and last norm stay whole through forward and backward; of the layers there are two
    (the one at work and the one that is prefetched), and the gradient of one before it is scattered.
    """
    return 2 * (root_parameters(m) + 2 * block_parameters(m)) + 2 * max(block_parameters(m), root_parameters(m))


def checkpoint_bytes(m: Spec) -> int:
    """Per token: the input of every layer, bfloat16, all that activation checkpointing keeps."""
    return 2 * m.layers * m.hidden


def block_activation_bytes(m: Spec) -> int:
    """Per token: what the backward pass of one layer reads, recomputed layer by layer under checkpointing.

    In bfloat16 but for the norms, which Hugging Face computes in float32: two norms of 4 d (input) + 2 d
    (normalised) + 2 d (output, read by the projections); query, key and value after the rotation and the output of
    attention, 2 (2 H + 2 K) h; gate, its SiLU, up and their product, 8 f.
    """
    return 16 * m.hidden + 4 * (m.heads + m.kv_heads) * m.head_dim + 8 * m.intermediate


def activations(m: Spec, tokens: int) -> dict[str, int]:
    """Bytes for a pass over `tokens` tokens (per GPU) with checkpointing: kept inputs, and one layer recomputed.

    The recomputed layer counts twice: its activations and, of the same size at most, their gradients.
    """
    return {"inputs of the layers": checkpoint_bytes(m) * tokens,
            "one layer, recomputed": 2 * block_activation_bytes(m) * tokens}


def logit_bytes(m: Spec, tokens: int) -> int:
    """Logits of `tokens` tokens at a time: bfloat16 with their gradient, and float32 twice (softmax, gradient)."""
    return (2 + 2 + 4 + 4) * m.vocabulary * tokens


# --- memory and speed of sampling ----------------------------------------------------------------------


def kv_bytes_per_token(m: Spec) -> int:
    """Key-value cache of a token, bfloat16, while no window is full: 2 L K h 2.

    >>> kv_bytes_per_token(MODELS["qwen2.5-7b"])
    57344
    """
    return 2 * m.layers * m.kv_heads * m.head_dim * 2


def kv_bytes(m: Spec, tokens: float) -> float:
    """Key-value cache of a sequence; local layers forget what is outside their window."""
    local = m.layers - m.global_layers
    seen = min(tokens, m.window) if m.window else tokens
    return kv_bytes_per_token(m) / m.layers * (m.global_layers * tokens + local * seen)


def mean_kv_bytes(m: Spec, prompt: float, answer: float, steps: int = 256) -> float:
    """Mean over the life of a sequence that grows from `prompt` to prompt + answer tokens."""
    return sum(kv_bytes(m, prompt + answer * (i + 0.5) / steps) for i in range(steps)) / steps


# --- floating-point operations -------------------------------------------------------------------------


def matrix_parameters(m: Spec) -> int:
    """Parameters that multiply each token: all but the embedding (a look-up), norms and biases."""
    return m.layers * (block_parameters(m) - 2 * m.hidden - m.qkv_bias * (m.heads + 2 * m.kv_heads) * m.head_dim) + (
        m.vocabulary * m.hidden)


def forward_flops(m: Spec, length: int, causal: bool = True) -> float:
    """Per token of a sequence of `length` tokens: 2 N and attention, 4 H h times the tokens seen, per layer.

    causal: a token sees half of the sequence on average (of a window, at most the window); False: all of it, as
    counters of operations that know no mask do.
    """
    seen = length / 2 if causal else length
    local = min(seen, m.window - m.window**2 / (2 * length)) if m.window and causal and length > m.window else seen
    attention = 4 * m.heads * m.head_dim * (m.global_layers * seen + (m.layers - m.global_layers) * local)
    return 2 * matrix_parameters(m) + attention


def decode_rate(m: Spec, gpu: Gpu, gpus: int, sequences: float, kv: float, share: float) -> float:
    """Tokens per second of a replica on `gpus` GPUs that decodes `sequences` answers at once.

    A step reads the weights and every cache (kv bytes each) and computes 2 N per sequence; it takes the longer of the
    two at `share` of the bandwidth and of the peak. Prefill, sampling and the network are left out.
    """
    if sequences <= 0:
        return 0.0
    read = (2 * parameters(m) + sequences * kv) / (gpus * gpu.bandwidth * share)
    compute = 2 * matrix_parameters(m) * sequences / (gpus * gpu.flops * share)
    return sequences / max(read, compute)
