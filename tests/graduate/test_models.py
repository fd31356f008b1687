"""Closed forms of a model against the model itself: real shapes without memory, small ones measured."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, CwmConfig, Qwen2Config

from fade_sim.errors import InputError
from llm.graduate import models
from llm.graduate.models import GPUS, MODELS, Gpu, Spec

QWEN, CWM = MODELS["qwen2.5-7b"], MODELS["cwm-32b"]


def config_of(m: Spec):
    """The Hugging Face config of these shapes."""
    shapes = {"vocab_size": m.vocabulary, "hidden_size": m.hidden, "intermediate_size": m.intermediate,
              "num_hidden_layers": m.layers, "num_attention_heads": m.heads, "num_key_value_heads": m.kv_heads,
              "tie_word_embeddings": m.tied}
    if m.window:
        return CwmConfig(**shapes, head_dim=m.head_dim, sliding_window=m.window, bos_token_id=0, eos_token_id=[1])
    return Qwen2Config(**shapes)


def small(window: int = 0, **changes) -> Spec:
    """8 layers of 128; d = H h, as in Qwen2."""
    shape = {"name": "small", "layers": 8, "hidden": 128, "heads": 8, "kv_heads": 2, "head_dim": 16,
             "intermediate": 320, "vocabulary": 50, "tied": False, "qkv_bias": not window, "context": 1000,
             "window": window, "global_layers": 2 if window else 8, "folder": "", "source": ""}
    return Spec(**{**shape, **changes})


# --- parameters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "count"), [
    # a layer: 3584 * 128 * 2 (28 + 4) + 36 * 128 + 3 * 3584 * 18944 + 2 * 3584 = 233 057 792; 28 of them, two tables of
    # 152 064 * 3584, and the last norm
    (QWEN, 28 * 233_057_792 + 2 * 152_064 * 3584 + 3584),
    # a layer: 6144 * 128 * 2 (48 + 8) + 3 * 6144 * 21504 + 2 * 6144 = 484 454 400
    (CWM, 64 * 484_454_400 + 2 * 128_256 * 6144 + 6144),
])
def test_every_parameter_of_the_real_model_is_counted(m, count):
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(config_of(m))
    assert sum(p.numel() for p in real.parameters()) == models.parameters(m) == count
    assert {QWEN: 7_615_616_512, CWM: 32_581_097_472}[m] == count


def test_cwm_is_the_config_that_transformers_has():
    real = CwmConfig()
    assert (real.num_hidden_layers, real.hidden_size, real.num_attention_heads, real.num_key_value_heads) == CWM[1:5]
    assert (real.head_dim, real.intermediate_size, real.vocab_size, real.tie_word_embeddings) == CWM[5:9]
    assert (real.max_position_embeddings, real.sliding_window) == (CWM.context, CWM.window)
    assert real.layer_types.count("full_attention") == CWM.global_layers


@pytest.mark.parametrize("m", [small(), small(tied=True), small(window=16)])
def test_small_models_of_every_kind_are_counted(m):
    assert sum(p.numel() for p in AutoModelForCausalLM.from_config(config_of(m)).parameters()) == models.parameters(m)


# --- memory of training --------------------------------------------------------------------------------


def test_weights_gradients_and_moments_after_a_step():
    m = small()
    model = AutoModelForCausalLM.from_config(config_of(m))
    optimiser = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long)).logits.sum().backward()
    optimiser.step()
    moments = sum(v.nbytes for state in optimiser.state.values() for k, v in state.items() if k != "step")
    measured = {"weights, float32": sum(p.nbytes for p in model.parameters()),
                "gradients, float32": sum(p.grad.nbytes for p in model.parameters()), "Adam moments, float32": moments}
    assert measured == models.training_state(m, 1)


def test_two_shards_hold_half_each(tmp_path):
    """FSDP2 on two processes. A matrix whose rows do not divide is padded: within 1%."""
    script = Path(__file__).parent / "shard_bytes.py"
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), str(Path(__file__).parent)])
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                           script, tmp_path], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        measured = int((tmp_path / str(rank)).read_text())
        assert measured == pytest.approx(sum(models.training_state(small(), 2).values()), rel=0.01)


def saved_bytes(model, tokens: int) -> int:
    """What autograd keeps of a forward pass of the layers, parameters apart."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), t)  # the tensor keeps its address taken
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model.model(torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    return sum(size for size, _ in kept.values())


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_autograd_keeps(checkpointing):
    """Within 2%: the rest are sums over rows. The last norm keeps 6 d a token beside the layers."""
    m, tokens = small(), 128
    model = AutoModelForCausalLM.from_config(config_of(m)).to(torch.bfloat16).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    measured = saved_bytes(model, tokens) / tokens - 6 * m.hidden
    expected = models.checkpoint_bytes(m) if checkpointing else m.layers * models.block_activation_bytes(m)
    assert measured == pytest.approx(expected, rel=0.02)


def test_worked_activations():
    # 28 layers * 3584 * 2 bytes a token; 16 * 3584 + 4 * 32 * 128 + 8 * 18944 in a layer
    assert models.checkpoint_bytes(QWEN) == 200_704
    assert models.block_activation_bytes(QWEN) == 57_344 + 16_384 + 151_552
    kept = models.activations(QWEN, 1000)
    assert kept == {"inputs of the layers": 200_704_000, "one layer, recomputed": 2 * 225_280_000}


# --- sampling ------------------------------------------------------------------------------------------


def test_worked_key_value_caches():
    assert models.kv_bytes_per_token(QWEN) == 2 * 28 * 4 * 128 * 2 == 57_344
    assert models.kv_bytes_per_token(CWM) == 2 * 64 * 8 * 128 * 2 == 262_144
    # beyond the window of 8192 only 16 of 64 layers grow: 4096 bytes a token and layer
    assert models.kv_bytes(CWM, 8192) == 8192 * 262_144
    assert models.kv_bytes(CWM, 10_000) == 8192 * 262_144 + 1808 * 16 * 4096
    # a sequence from 1000 to 3000 tokens holds 2000 on average
    assert models.mean_kv_bytes(QWEN, 1000, 2000) == pytest.approx(2000 * 57_344)


@pytest.mark.parametrize(("m", "tokens"), [(small(), 50), (small(window=16), 10), (small(window=16), 50)])
def test_caches_of_a_forward_pass(m, tokens):
    """To the byte; a full window is one token shorter in transformers, which needs no room for the new one."""
    model = AutoModelForCausalLM.from_config(config_of(m)).to(torch.bfloat16).eval()
    with torch.no_grad():
        cache = model(torch.zeros(1, tokens, dtype=torch.long), use_cache=True).past_key_values
    measured = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    per_layer = models.kv_bytes_per_token(m) // m.layers
    full = (m.layers - m.global_layers) * per_layer if m.window and tokens >= m.window else 0
    assert measured == models.kv_bytes(m, tokens) - full


def test_decoding_is_bound_by_the_bytes_it_reads_until_it_computes_too_much():
    gpu = Gpu(memory=80e9, flops=1e15, bandwidth=2e12)
    weights = 2 * models.parameters(QWEN)
    assert models.decode_rate(QWEN, gpu, 1, 1, 0.0, 0.5) == pytest.approx(1e12 / weights)
    # caches as large as the weights halve it, per sequence
    assert models.decode_rate(QWEN, gpu, 1, 10, weights / 10, 0.5) == pytest.approx(10 * 1e12 / (2 * weights))
    # two GPUs read twice as fast
    assert models.decode_rate(QWEN, gpu, 2, 1, 0.0, 0.5) == pytest.approx(2e12 / weights)
    # 100 000 sequences: 0.5e15 / (2 N) tokens a second whatever is read
    expected = 0.5e15 / (2 * models.matrix_parameters(QWEN))
    assert models.decode_rate(QWEN, gpu, 1, 100_000, 0.0, 0.5) == pytest.approx(expected)


# --- operations ----------------------------------------------------------------------------------------


def test_operations_counted_by_torch():
    """Exactly, forward, and three times that with backward; the counter knows no mask, so causal=False."""
    from torch.utils.flop_counter import FlopCounterMode

    m, tokens = small(), 96
    model = AutoModelForCausalLM.from_config(config_of(m), attn_implementation="eager")
    for backward, times in ((False, 1), (True, 3)):
        with FlopCounterMode(display=False) as counter:
            logits = model(torch.zeros(1, tokens, dtype=torch.long), use_cache=False).logits
            if backward:
                logits.sum().backward()
        assert counter.get_total_flops() == times * tokens * models.forward_flops(m, tokens, causal=False)


def test_attention_sees_half_a_sequence_or_a_window():
    m = small(window=16)
    dense = 2 * models.matrix_parameters(m)
    per_token = 4 * 8 * 16  # 4 H h per token seen
    assert models.forward_flops(m, 10) == dense + per_token * 8 * 5
    # brute force over 40 positions: a token at t sees t + .5 (half of itself), a local layer at most 16
    seen = [t + 0.5 for t in range(40)]
    local = sum(min(t + 0.5, 16) for t in range(40)) / 40
    assert models.forward_flops(m, 40) == pytest.approx(dense + per_token * (2 * sum(seen) / 40 + 6 * local), rel=1e-3)


def test_matrices_leave_out_the_embedding_norms_and_biases():
    m = small()
    model = AutoModelForCausalLM.from_config(config_of(m))
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name)
    assert models.matrix_parameters(m) == matrices


def test_a_wrong_name_gets_the_nearest():
    with pytest.raises(InputError, match=r"unknown --model 'qwen2.5-7B'; did you mean 'qwen2.5-7b'\?"):
        models.find_model("qwen2.5-7B")
    assert set(GPUS) == {"a100", "h100", "h200"}
