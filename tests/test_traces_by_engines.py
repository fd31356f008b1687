"""The readers on files that the engines' own code writes, where an engine is installed."""

import json
import math

import pytest
from test_traces import rows_of

from fade_sim import traces

pytestmark = pytest.mark.slow


def needs(module, package):
    return pytest.importorskip(module, reason=f"pip install {package}")


@pytest.mark.parametrize("chat", [False, True])
def test_trl_completions_of_a_training(tmp_path, chat):
    # A tiny random model, 11 steps, a batch of 2 groups of 4 for every 2 steps: 6 batches, written 11 times.
    trl, datasets, torch = needs("trl", "trl==1.16.0"), needs("datasets", "datasets"), needs("torch", "torch")
    needs("pyarrow", "pyarrow")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    words = ["<pad>", "<eos>", "<unk>", *map(str, range(10)), "+", "=", "user", "assistant"]
    tokens = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, pad_token="<pad>", eos_token="<eos>",
                                        unk_token="<unk>")
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, eos_token_id=1, pad_token_id=0, bos_token_id=1))
    texts = [f"{a} + {b} =" for a in range(2) for b in range(3)]
    expected = []

    def even(completions, trainer_state, **_):  # of the first digit; without a digit there is no verdict
        said = [text if isinstance(text, str) else text[0]["content"] for text in completions]
        digits = [[int(word) for word in text.split() if word.isdigit()] for text in said]
        rewards = [float(found[0] % 2 == 0) if found else None for found in digits]
        for group in (rewards[:4], rewards[4:]):
            known = [reward for reward in group if reward is not None]
            expected.append((trainer_state.global_step + 1, int(sum(known)), len(known)))
        return rewards

    arguments = trl.GRPOConfig(
        output_dir=str(tmp_path), per_device_train_batch_size=4, num_generations=4, steps_per_generation=2,
        gradient_accumulation_steps=1, max_completion_length=3, max_steps=11, logging_steps=1, log_completions=True,
        num_completions_to_print=0, report_to="none", use_cpu=True, save_strategy="no")
    prompts = [[{"role": "user", "content": text}] for text in texts] if chat else texts
    trl.GRPOTrainer(model=model, reward_funcs=even, args=arguments, processing_class=tokenizer,
                    train_dataset=datasets.Dataset.from_dict({"prompt": prompts})).train()
    assert len(list((tmp_path / "completions").iterdir())) == 11
    recording = traces.load(tmp_path)
    assert rows_of(recording) == [row for row in expected if row[2]]
    assert len(expected) == 12 and sum(4 - row[2] for row in expected) > 0
    assert f"rollouts that were not judged, left out: {sum(4 - row[2] for row in expected)}" in recording.notes
    assert "groups that were in the file before as well, left out: 10" in recording.notes
    assert len(set(recording.prompt_id)) == 6


def test_verl_dumps(tmp_path):
    np = needs("numpy", "numpy")
    before = needs("verl.trainer.ppo.ray_trainer", "verl==0.9.1").RayPPOTrainer
    now = needs("verl.trainer.ppo.v1.trainer_base", "verl==0.9.1").PPOTrainer
    scores = [1.0, -1.0, -1.0, math.nan]
    before._write_generations(list("aabb"), list("wxyz"), [None] * 4, scores,
                              {"acc": [np.bool_(True), np.bool_(False), np.bool_(False), None]}, tmp_path, 9)
    now._write_generations(list("aa"), list("wx"), [None] * 2, [1.0, -1.0], {"uid": ["u_0_0", "u_1_0"]}, tmp_path, 10)
    assert rows_of(traces.load(tmp_path, threshold=0)) == [(9, 1, 2), (9, 0, 1), (10, 1, 2)]
    assert rows_of(traces.load(tmp_path / "9.jsonl", reward="acc")) == [(9, 1, 2), (9, 0, 1)]


def test_prime_rl_episodes(tmp_path):
    wire = needs("verifiers.v1.episode", "verifiers").WireEpisode
    file = tmp_path / "rollouts" / "step_3" / "train" / "all" / "traces.jsonl"
    file.parent.mkdir(parents=True)
    with file.open("w") as stream:
        halves = {"a": {"score": 1.0, "weight": 0.5}, "b": {"score": 1.0, "weight": 0.5}}
        for group, rewards, ok in (("g", halves, True), ("g", {"a": {"score": 0.0}}, True), ("g", {"a": None}, True),
                                   ("h", {"a": {"score": 1.0}}, True), ("h", {"a": {"score": 1.0}}, False)):
            task = {"type": "Math", "data": {"idx": ord(group), "prompt": "1 + 1"}}
            trace = {"task": task, "agent": {"config": {}}, "ok": ok, "rewards": rewards}
            episode = wire.model_validate({"task": task, "env": {"id": "math", "name": "math"}, "group": {"id": group},
                                           "ok": ok, "traces": [trace]})
            stream.write(json.dumps(episode.to_record(), default=str) + "\n")
    recording = traces.load(tmp_path)
    assert rows_of(recording) == [(3, 1, 2), (3, 1, 1)]
    assert "rollouts that were not judged, left out: 2" in recording.notes
