"""The numbers of the two paper runs, by hand, and the settings that are refused."""

import pytest

from fade_sim.errors import InputError
from llm.graduate.budget import budget, layout
from llm.graduate.command import resolve
from llm.graduate.models import MODELS

QWEN, CWM = MODELS["qwen2.5-7b"], MODELS["cwm-32b"]


def settings(model="qwen2.5-7b", regime="cluster", **changes):
    overrides = {k.replace("__", "."): v for k, v in changes.items()}
    return resolve("dr_grpo", f"paper/{model}", None, overrides, regime=regime)[0]


def test_the_seven_billion_run_by_hand():
    b = budget(settings(), QWEN)
    at = b.layout
    assert (at.trainer_gpus, at.sampler_gpus, at.replicas, at.data_parallel, at.apart) == (8, 56, 56, 8, True)
    # 16 prompts x 8 answers; mean answer 8192/2; prompts counted as 1024
    assert (b.rollouts, b.sampled_tokens, b.trained_tokens) == (128, 128 * 4096, 128 * 5120)
    # 16 bytes of state a parameter over 8 GPUs
    state = sum(size for name, size in b.trainer.items() if "float32" in name)
    assert state == 2 * 7_615_616_512
    # forward, a token of 5120: 2 x 7.0703e9 + 4 x 3584 x 28 layers x 2560 seen = 1.41406e10 + 0.10276e10; three times
    # with backward, once for the old log-probabilities: 6.0673e10. 655 360 tokens / (8 x 989e12 x .4) = 12.564 s
    assert b.flops == pytest.approx(6.0673e10, rel=1e-4)
    assert b.train_seconds == pytest.approx(12.564, rel=1e-4)
    # 1024 in flight on 56 replicas, decoding for 4096 of the 8192 tokens that their group takes: 9.1429 at once, each
    # 3072 tokens x 57 344 bytes = 0.17616e9 on average; a step reads 15.2312e9 + 9.1429 x 0.17616e9 = 16.8418e9 at
    # .6 x 3.35e12: 8.3790 ms for 9.1429 tokens
    assert b.at_once == pytest.approx(1024 / 56 / 2)
    assert b.decode == pytest.approx(1091.2, rel=1e-4)
    assert b.sample_seconds == pytest.approx(128 * 4096 / (56 * 1091.2), rel=1e-4)
    # .85 x 84e9 - 15.2312e9 = 56.169e9 of caches / 0.17616e9
    assert b.room == 318
    # the trainers set the pace: 30 000 x 12.564 s x 64 GPUs / 3600
    assert b.seconds == b.train_seconds > b.sample_seconds
    assert b.gpu_hours == pytest.approx(30_000 * 12.564 * 64 / 3600, rel=1e-4)
    # with n updates in flight, sampling takes 8192 x (15.2312e9 + n 1.1429 x 0.17616e9)/2.01e12 / n seconds an update:
    # 13.2 at n = 5, 11.2 at n = 6
    assert (b.age, b.enough) == (8, 6)


def test_the_thirty_two_billion_run_by_hand():
    b = budget(settings("cwm-32b"), CWM)
    at = b.layout
    assert (at.trainer_gpus, at.sampler_gpus, at.replicas, at.data_parallel) == (96, 160, 40, 24)
    assert sum(size for name, size in b.trainer.items() if "float32" in name) == pytest.approx(
        16 * 32_581_097_472 / 96)
    # 31 024 tokens over 4 GPUs are less than 16 384 a GPU; inputs of 64 layers of 6144, 2 bytes
    assert b.tokens == 16_384
    assert b.trainer["inputs of the layers"] == 64 * 6144 * 2 * 16_384
    assert b.sampler["weights, bfloat16"] == 32_581_097_472 * 2 / 4
    # 768 rollouts x (1024 + 10 000): 8.466e6 tokens; 4 x forward = 4 (2 x 3.1793e10 + attention 4 x 6144 x (16 layers
    # x 5512 + 48 x (8192 - 8192^2/22048)) = 4 (6.3586e10 + 0.8240e10); / (96 x 989e12 x .4)
    assert b.train_seconds == pytest.approx(8_466_432 * 4 * 7.1826e10 / (96 * 989e12 * 0.4), rel=1e-3)


def test_on_one_node_the_same_gpus_do_both():
    b = budget(settings(regime="one node"), QWEN)
    assert (b.layout.apart, b.layout.trainer_gpus, b.layout.sampler_gpus) == (False, 8, 8)
    assert b.seconds == b.train_seconds + b.sample_seconds and b.age == 0
    # .95 less the 15.23 GB of state of 84: the sampler cannot have .85
    assert b.sampler_share == pytest.approx(0.95 - 2 * 7_615_616_512 / 84e9)
    # a batch is sampled when its longest answer is: 8192 steps that read 15.2312e9 + 8 x 0.17616e9 on average
    assert b.sample_seconds == pytest.approx(8192 * (15.231233e9 + 8 * 0.176160768e9) / 2.01e12, rel=1e-6)


def test_offloaded_state_is_in_the_memory_of_the_host():
    b = budget(settings("cwm-32b", "one node"), CWM)
    assert b.trainer_host == 16 * 32_581_097_472 / 8
    assert not any("float32" in name for name in b.trainer) and b.sampler_share == 0.85


def test_age_counts_the_batches_in_flight_and_the_place_between_two_copies():
    # 8 updates in flight; with weights every 4 updates an update is 0 to 3 after the copy: 1.5 more
    assert budget(settings(cluster__sync_updates=4), QWEN).age == 9.5
    assert budget(settings(train__staleness=20), QWEN).age == 20


def test_more_in_flight_than_the_caches_hold_decodes_no_faster():
    few, many = (budget(settings(train__staleness=n), QWEN) for n in (278, 1000))
    assert few.at_once == pytest.approx(278 * 128 / 56 / 2)
    assert many.at_once == pytest.approx(318.86, rel=1e-4)  # 56.169e9 / 0.17616e9
    assert many.decode < few.decode * 1.01


def test_passes_without_packing_are_as_long_as_the_longest_answer():
    b = budget(settings(regime="one node"), QWEN, packed=False, chunk=10**9)
    assert b.tokens == 2 * (1024 + 8192)  # parallel.micro_batch rollouts
    assert b.chunk == b.tokens and b.trainer["logits"] == 12 * 152_064 * b.tokens


@pytest.mark.parametrize(("changes", "said"), [
    ({"cluster__trainer_nodes": 8}, "cluster.trainer_nodes is 8 of 8 nodes: none is left to sample"),
    ({"cluster__sequence_parallel": 3}, "cluster.sequence_parallel is 3, expected a divisor of 8 GPUs"),
    ({"cluster__tensor_parallel": 16}, "cluster.tensor_parallel is 16, expected a divisor of 8 GPUs"),
    ({"cluster__tensor_parallel": 8}, "cluster.tensor_parallel is 8, expected a divisor of 28 heads"),
    ({"cluster__sequence_parallel": 8}, "cluster.sequence_parallel is 8, expected a divisor of 28 heads"),
    ({"train__staleness": 0}, "train.staleness is 0, but the samplers have nodes of their own"),
    ({"cluster__sync_updates": 3}, "train.staleness is 8 updates, expected a multiple of cluster.sync_updates, 3"),
    ({"cluster__trainer_nodes": 0}, "train.staleness is 8, but the same GPUs train and sample in turn"),
    ({"rollout__max_tokens": 131_072}, "is 132096, qwen2.5-7b reads 131072"),
    ({"cluster__mean_tokens": 9000}, "cluster.mean_tokens is 9000, expected at most rollout.max_tokens, 8192"),
    ({"train__optimizer": "sgd"}, "train.optimizer is 'sgd'"), ({"model__lora_rank": 8}, "all weights"),
])
def test_settings_that_contradict_each_other(changes, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(").replace(".", r"\.")):
        budget(settings(**changes), QWEN)


def test_a_model_too_large_for_its_gpus_has_no_room():
    b = budget(settings("cwm-32b", cluster__tensor_parallel=1, cluster__gpu="a100", cluster__sampler_memory=0.7), CWM)
    assert b.room == 0 and b.decode == 0 and b.sample_seconds == float("inf")
    assert layout(settings("cwm-32b")).nodes == 32
