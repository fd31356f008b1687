"""The loop: what the controller sees, filters, old rollouts, references, LoRA, bfloat16, other models and samplers."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import weights

from fade_sim import config as shared
from fade_sim.advantage import advantages, controller, resolve
from fade_sim.errors import InputError
from llm import checkpoint, lora
from llm.policy import load
from llm.settings import Model, Rollout
from llm.vllm import VLLMSampler

METHODS = [name for name, path in shared.shipped().items() if path.parent.name == "methods" and name != "table"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_file_trains_with_the_advantages_of_the_core(make_trainer, name):
    """The file as it is; the advantages of a step are those of the core on the same rewards and groups."""
    mixed_only = shared.load(name, {"train.dynamic_sampling": True}).contenders[0].method.rule.mixed_only
    trainer = make_trainer(name, **{"train.dynamic_sampling": mixed_only, "train.group_size": 8, "train.prompts": 2})
    batch = trainer.collect()
    _, advantage = trainer.weigh(batch)
    method, r = trainer.settings.contender.method, batch.rollouts
    if method.rule.adaptive:
        if method.rule.control != "none":
            assert torch.isfinite(advantage).all()
            return
        method = resolve(method, *controller.gains(trainer.controller))
    assert torch.equal(advantage, advantages(r.reward, r.group, method))
    assert 0 < r.reward.mean() < 1
    trainer.learn(batch, advantage)


def test_dynamic_sampling_hides_no_group_from_the_controller(make_trainer):
    """Uniform groups are replaced, and counted: phat moves by the mean of all groups drawn."""
    trainer = make_trainer(**{"train.dynamic_sampling": True, "train.prompts": 6, "train.max_rounds": 20})
    row = trainer.advance()
    assert row["groups_drawn"] > row["groups_used"] == 6
    assert row["all_fail"] + row["all_pass"] == pytest.approx(1 - row["mixed"]) and row["mixed"] < 1
    assert trainer.controller.phat == pytest.approx(0.98 * 0.5 + 0.02 * row["solve_rate"])
    share = row["mass_by_solve_rate"]
    assert share["0"] == share["1"] == 0.0 and row["m_S"] > 0


def test_dynamic_sampling_stops_at_its_budget(make_trainer):
    """Every answer fails: after max_rounds batches uniform groups are taken as they are."""
    trainer = make_trainer(**{"train.dynamic_sampling": True, "train.max_rounds": 3, "reward.name": "integer"})
    row = trainer.advance()
    assert (row["groups_drawn"], row["groups_used"], row["all_fail"]) == (12, 4, 1.0)


def test_old_rollouts_come_from_the_policy_of_so_many_updates_ago(make_trainer):
    """Lag 2: the batch of step 3 is what the initial policy samples, that of step 4 the policy after 1 update."""
    stale = make_trainer(**{"train.staleness": 2, "train.steps": 5})
    fresh = make_trainer()
    initial = [fresh.collect().rollouts.ids for _ in range(3)]
    seen = []
    weigh = stale.weigh
    stale.weigh = lambda batch: (seen.append(batch.rollouts), weigh(batch))[1]
    for _ in range(5):
        stale.advance()
    for t in range(3):
        assert torch.equal(seen[t].ids, initial[t])
    assert [int(r.born[0]) for r in seen] == [0, 0, 0, 1, 2]
    assert stale.cursor == 5 * 4  # nothing sampled that is never used


def test_staleness_without_correction_changes_what_is_learned(make_trainer):
    runs = [make_trainer(**{"train.staleness": lag, "train.correction": c}) for lag, c in
            ((0, "none"), (2, "none"), (2, "ratio"))]
    for trainer in runs:
        for _ in range(4):
            trainer.advance()
    a, b, c = map(weights, runs)
    assert not torch.equal(a, b) and not torch.equal(b, c)


def test_kl_is_measured_from_the_initial_policy(make_trainer):
    """0 before the first update, above 0 after; a strong coefficient holds the policy closer to where it began."""
    end = {}
    for coef in (0.0, 0.3):
        trainer = make_trainer(**{"loss.kl": "k3", "loss.kl_coef": coef, "train.steps": 25, "model.lr": 1.0,
                                  "reward.name": "verifiers:digit"})
        rows = [trainer.advance() for _ in range(25)]
        assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)
        end[coef] = rows[-1]["kl"]
    assert end[0.0] > 10 * end[0.3] > 0


def test_an_entropy_bonus_raises_the_entropy_of_a_run(make_trainer):
    end = {c: [make_trainer(**{"loss.entropy_coef": c, "reward.name": "integer", "model.lr": 2.0})][0]
           for c in (0.0, 1.0, -1.0)}
    H = {c: [trainer.advance()["entropy"] for _ in range(4)] for c, trainer in end.items()}
    assert H[0.0][-1] == pytest.approx(H[0.0][0], abs=0.05)
    assert H[1.0][-1] > H[0.0][-1] > H[-1.0][-1]


# --- weights -------------------------------------------------------------------------------------------


def test_the_head_alone_takes_the_step_of_the_head(make_trainer):
    """The first step of the head is that of a run in which everything is trained; nothing else moves."""
    whole, alone = (make_trainer(**{"model.lr": 2.0, "model.trained": what}) for what in ("all", "head"))
    before = {k: v.clone() for k, v in alone.policy.model.state_dict().items()}
    (head,) = alone.policy.trainable()
    for trainer in (whole, alone):
        trainer.advance()
    after, all_after = alone.policy.model.state_dict(), whole.policy.model.state_dict()
    assert torch.allclose(after[head], all_after[head], atol=1e-7) and not torch.equal(after[head], before[head])
    assert [k for k, v in before.items() if k != head and not torch.equal(v, after[k])] == []
    assert [k for k, v in before.items() if torch.equal(v, all_after[k])] == []
    with pytest.raises(InputError, match="give one of them"):
        make_trainer(**{"model.trained": "head", "model.lora_rank": 2})


def test_lora_starts_at_the_base_trains_only_itself_and_merges(make_trainer, tmp_path):
    plain, trainer = make_trainer(), make_trainer(**{"model.lora_rank": 2, "model.lr": 20.0})
    r = plain.sample([0, 1])
    with torch.no_grad():
        assert torch.equal(trainer.policy.score(r, 1.0, 64).logprob, plain.policy.score(r, 1.0, 64).logprob)
    names = set(trainer.policy.trainable())
    assert names and all(name.endswith((".down", ".up")) for name in names)
    assert sum(p.numel() for p in trainer.policy.trainable().values()) < weights(plain).numel() / 2
    frozen = {k: v.clone() for k, v in trainer.policy.model.state_dict().items() if k not in names}
    for _ in range(3):
        trainer.advance()
    state = trainer.policy.model.state_dict()
    assert all(torch.equal(state[k], v) for k, v in frozen.items())
    checkpoint.export(trainer, trainer.roller.tokenizer, tmp_path / "model")
    merged, _ = load(Model(path=str(tmp_path / "model")))
    with torch.no_grad():
        ours, theirs = (p.score(r, 1.0, 64).logprob for p in (trainer.policy, merged))
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert (ours - plain.policy.score(r, 1.0, 64).logprob).abs().max() > 1e-3


def test_lora_update_is_scaled_by_alpha_over_rank():
    """W = I, down = (1, 0), up = (0, 1)^T, alpha 6, rank 2 ... one direction: x = (1, 0) -> (1, 0) + 3 (0, 1)."""
    layer = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.eye_(layer.weight)
    wrapped = lora.LoraLinear(layer, 2, 6.0)
    with torch.no_grad():
        wrapped.down.copy_(torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
        wrapped.up.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    assert wrapped(torch.tensor([1.0, 0.0])).tolist() == [1.0, 3.0]


def test_small_steps_on_bfloat16_weights_add_up(make_trainer):
    """A step of 1e-4 on a weight of 1 is below half a bfloat16 ulp (1/256): 100 of them must still arrive."""
    trainer = make_trainer(**{"model.dtype": "bfloat16", "model.lr": 1e-4})
    name, p = next(iter(trainer.policy.trainable().items()))
    with torch.no_grad():
        p.fill_(1.0)
        trainer.optimiser.master[name].fill_(1.0)
    for _ in range(100):
        p.grad = torch.full_like(p, -1.0)
        trainer.optimiser.step(trainer.ranks)
    assert p.dtype == torch.bfloat16 and p.flatten()[0].item() == pytest.approx(1.01, abs=1 / 256)
    assert p.flatten()[0].item() > 1.0


def test_the_gradient_norm_is_clipped_globally(make_trainer):
    trainer = make_trainer(**{"model.max_grad_norm": 0.5, "model.lr": 1.0})
    start = weights(trainer)
    for p in trainer.policy.parameters():
        p.grad = torch.ones_like(p)
    norm = trainer.optimiser.step(trainer.ranks)
    assert norm == pytest.approx(math.sqrt(start.numel()))
    assert float((weights(trainer) - start).norm()) == pytest.approx(0.5, rel=1e-4)


# --- any model, any sampler ----------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gpt2", "qwen2 tied"])
def test_other_families_go_through_the_same_code(make_trainer, base, tmp_path, family):
    """Learned positions, dropout, biases; tied embeddings with grouped heads."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, Qwen2Config, Qwen2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(base)
    if family == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=2, n_head=2, n_positions=32))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32,
                                             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                             tie_word_embeddings=True))
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    trainer = make_trainer(**{"model.path": str(tmp_path / "m"), "train.record": 1, "train.correction": "ratio",
                              "parallel.activation_checkpointing": True, "probe.stability": True,
                              "probe.rollouts": 32, "method.name": "asym_delta", "method.delta": 0.5,
                              "train.staleness": 1, "reward.name": "verifiers:digit"})
    start = weights(trainer)
    rows = [trainer.advance() for _ in range(3)]
    assert rows[0]["ratio"] == 1.0 and abs(rows[1]["ratio"] - 1) < 0.5 and rows[0]["Lambda_in_sample"] > 0
    assert not torch.equal(weights(trainer), start)


def test_capped_logits_are_refused(base, tmp_path):
    """Gemma-2 squashes its logits after the head: scoring its head alone would be wrong."""
    from transformers import AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(base)
    model = Gemma2ForCausalLM(Gemma2Config(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32,
                                           num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
                                           head_dim=8, final_logit_softcapping=0.05))
    torch.nn.init.normal_(model.get_input_embeddings().weight)
    model.save_pretrained(tmp_path / "m")
    tokenizer.save_pretrained(tmp_path / "m")
    with pytest.raises(ValueError, match="not supported"):
        load(Model(path=str(tmp_path / "m")))


class FakeEngine:
    """Speaks vLLM's interface and samples from the policy it was last given."""

    def __init__(self, trainer):
        self.trainer, self.synced = trainer, 0

    def apply_model(self, function):
        function(self)

    def load_weights(self, tensors):
        assert {name for name, _ in tensors} == set(self.trainer.policy.model.state_dict())
        self.synced += 1

    def generate(self, requests, params, use_tqdm):
        own, out = self.trainer.own, []
        for request, p in zip(requests, params, strict=True):
            got = own.sample(self.trainer.policy, [request["prompt_token_ids"]], 1, [[p["seed"]]])
            n = int(got.mask.sum())
            ids = got.ids[0, :n].tolist()
            steps = [{t: SimpleNamespace(logprob=float(v))} for t, v in zip(ids, got.logprob[0, :n], strict=True)]
            out.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=ids, logprobs=steps)]))
        return out


def test_the_contract_of_the_vllm_sampler_with_a_fake_engine(make_trainer):
    """Same interface: entropies are measured by the trainer, weights handed over each time, the loop unchanged."""
    trainer = make_trainer()
    trainer.own = trainer.roller.sampler
    sampler = VLLMSampler("", Rollout(max_tokens=5), trainer.roller.stop, trainer.roller.pad, FakeEngine(trainer), dict)
    object.__setattr__(trainer.roller, "sampler", sampler)
    row = trainer.advance()
    assert sampler.engine.synced == 1 and 0 < row["entropy"] < math.log(17) and row["ratio"] == 1.0
    r = trainer.sample([7, 8])
    with torch.no_grad():
        got = trainer.policy.score(r, 1.0, 64)
    assert torch.allclose(got.logprob, r.logprob[r.answer], atol=1e-5)
    assert torch.allclose(got.entropy, r.entropy[r.answer], atol=1e-6)


def test_a_verifier_that_returns_nonsense_is_an_error(make_trainer):
    trainer = make_trainer()
    object.__setattr__(trainer.roller, "verifier", lambda text, answer: float("nan"))
    with pytest.raises(ValueError, match="expected 0 or 1"):
        trainer.advance()


def test_a_whole_run_records_and_learns(make_trainer):
    """Answers that start with a digit, 25 steps: from about 10 of 17 tokens at random to nearly all."""
    trainer = make_trainer(**{"reward.name": "verifiers:digit", "train.steps": 25, "train.record": 25, "model.lr": 2.0})
    rows = []
    trainer.run(rows.append, lambda: None)
    assert [row["step"] for row in rows] == list(range(26))
    assert rows[-1]["eval"]["train"]["pass@1"]["mean"] > rows[0]["eval"]["train"]["pass@1"]["mean"] + 0.1
    assert np.isfinite(rows[-1]["rank1"]) and json.dumps(rows, allow_nan=False)
