"""Exact log-probabilities and entropies of the whole vocabulary, in chunks."""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from tiny import weights

from llm.batch import concat
from llm.data import Problem
from llm.logprob import token_scores
from llm.rollout import OwnSampler, invert
from llm.settings import Rollout

MEMORY = """
import re, sys, torch
torch.set_num_threads(1)
from llm.logprob import token_scores
vocabulary, tokens, chunk = (int(a) for a in sys.argv[1:])
def both_passes(vocabulary, tokens):
    head = torch.nn.Linear(32, vocabulary, bias=False)
    hidden = torch.randn(tokens, 32, requires_grad=True)
    out = token_scores(hidden, torch.randint(vocabulary, (tokens,)), head, 1.0, chunk)
    out.logprob.sum().backward()
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
both_passes(100, 2 * chunk)  # what the first call of anything loads is not counted
start = peak()
both_passes(vocabulary, tokens)
print(peak() - start)
"""
NAIVE = """
def token_scores(hidden, targets, head, temperature, chunk):
    logits = head(hidden).float()
    logprob = torch.log_softmax(logits, dim=-1)
    class out: pass
    out.entropy = -(logprob.exp() * logprob).sum(dim=-1).detach()
    out.logprob = logprob.gather(-1, targets[:, None])[:, 0]
    return out
"""


LINUX = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="the peak is read from /proc")


def peak_bytes(vocabulary: int, tokens: int, chunk: int, naive: bool) -> float:
    """Growth of the resident memory of a fresh process over a forward and a backward pass.

    Freed blocks go back to the system (glibc would keep those of the size of a chunk).
    """
    code = MEMORY.replace("from llm.logprob import token_scores\n", NAIVE) if naive else MEMORY
    done = subprocess.run([sys.executable, "-c", code, str(vocabulary), str(tokens), str(chunk)], capture_output=True,
                          text=True, timeout=600, env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"})
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 1e6
    return float(done.stdout)


def scores(logits, targets, temperature=1.0, chunk=2, **kw):
    """Scores through a head that returns the given logits."""
    return token_scores(torch.eye(len(logits)), torch.tensor(targets), lambda h: h @ logits, temperature, chunk, **kw)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.7])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_equal_the_plain_formula(temperature, chunk):
    """Values to 1e-6 and gradients (of log-probability and entropy together) to 1e-5."""
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(8, 500), torch.randn(23, 8)
    target = torch.randint(500, (23,))
    grads = []
    for chunked in (True, False):
        h = hidden.clone().requires_grad_()
        if chunked:
            got = token_scores(h, target, head, temperature, chunk, entropy_grad=True)
            logprob, entropy = got
        else:
            full = torch.log_softmax(head(h) / temperature, dim=-1)
            logprob, entropy = full.gather(-1, target[:, None])[:, 0], -(full.exp() * full).sum(dim=-1)
        value = (logprob * torch.linspace(-1, 1, 23) + 0.3 * entropy).sum()
        grads.append([logprob.detach(), entropy.detach(), *torch.autograd.grad(value, [h, *head.parameters()])])
    for ours, plain in zip(*grads, strict=True):
        assert torch.allclose(ours, plain, atol=1e-5, rtol=1e-5)


@LINUX
def test_memory_does_not_grow_with_the_sequence():
    """512 tokens of a vocabulary of 50 000, 102 MB of logits: at most an eighth of the plain way's peak."""
    assert peak_bytes(50_000, 512, 16, naive=False) < peak_bytes(50_000, 512, 16, naive=True) / 8


@pytest.mark.slow
@LINUX
def test_memory_at_full_size():
    """4096 tokens of a vocabulary of 151 936, 2.5 GB of logits."""
    assert peak_bytes(151_936, 4096, 64, naive=False) < peak_bytes(151_936, 4096, 64, naive=True) / 8


# --- entropy -------------------------------------------------------------------------------------------


def test_entropy_is_that_of_the_whole_distribution():
    """p = (.5, .25, .25): H = 1.03972 whichever token was taken; -log p of the taken one alone is .69315."""
    logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
    for token in (0, 1):
        got = scores(logits, [token])
        assert got.entropy.item() == pytest.approx(1.03972, abs=1e-5)
    assert got.logprob.item() == pytest.approx(math.log(0.25), abs=1e-6)


def test_entropy_of_a_softmax_of_a_log_softmax_is_the_same():
    """Logits (2, 1, 0): .832396 from logits or from their log-softmax."""
    z = torch.tensor([[2.0, 1.0, 0.0]])
    for logits in (z, torch.log_softmax(z, dim=-1)):
        assert scores(logits, [0]).entropy.item() == pytest.approx(0.832396, abs=1e-6)


def test_entropy_of_a_token_is_not_the_surprisal_of_a_sequence():
    """Uniform over 4, 5 tokens: 5 ln 4 = 6.9315 of surprisal, ln 4 = 1.3863 nats per token."""
    got = scores(torch.zeros(5, 4), [0, 1, 2, 3, 0])
    assert -got.logprob.sum().item() == pytest.approx(6.9315, abs=1e-4)
    assert got.entropy.mean().item() == pytest.approx(1.3863, abs=1e-4)


def test_entropy_of_bfloat16_logits_is_computed_in_float32():
    """50 000 logits ~ N(0, 9): 6.0619 nats; computed in bfloat16 it would be off by .03."""
    torch.manual_seed(0)
    z = (3 * torch.randn(50_000)).double().numpy()
    p = np.exp(z - z.max())
    p /= p.sum()
    exact = -(p * np.log(p)).sum()
    assert exact == pytest.approx(6.061865, abs=1e-5)
    logits = torch.from_numpy(z)[None]
    assert scores(logits.float(), [0]).entropy.item() == pytest.approx(exact, abs=1e-4)
    rounded = logits.bfloat16()
    got = token_scores(torch.ones(1, 1).bfloat16(), torch.tensor([0]), lambda h: rounded, 1.0, 8)
    of_rounded = torch.special.entr(torch.softmax(rounded.double(), dim=-1)).sum().item()
    assert got.entropy.dtype == torch.float32 and got.entropy.item() == pytest.approx(of_rounded, abs=1e-4)


def test_entropy_with_forbidden_tokens_is_finite():
    got = scores(torch.tensor([[0.0, 0.0, -math.inf]]), [0])
    assert got.entropy.item() == pytest.approx(math.log(2)) and got.logprob.item() == pytest.approx(-math.log(2))


def test_log_probabilities_of_long_answers_add_up_in_float32():
    """200 tokens of about -.1: -19.87; a running sum in bfloat16 is -22 or so, e^2 off in a sequence ratio."""
    p = math.exp(-0.1)
    head = torch.tensor([[math.log(p), math.log(1 - p)]]).bfloat16()
    exact = 200 * torch.log_softmax(head.double(), dim=-1)[0, 0].item()
    running = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(200):
        running = running + torch.tensor(exact / 200).bfloat16()
    assert abs(running.item() - exact) > 1.0
    got = token_scores(torch.ones(200, 1).bfloat16(), torch.zeros(200).long(), lambda h: h @ head, 1.0, 64)
    assert got.logprob.dtype == torch.float32
    assert got.logprob.sum().item() == pytest.approx(exact, abs=1e-3)


def test_padding_moves_neither_entropy_nor_log_probability(make_trainer):
    """A rollout alone, or padded on both sides beside a longer one: the same scores, 0 <= H <= ln V, log p <= 0."""
    trainer = make_trainer(**{"data.test_prompts": 4})
    one = trainer.sample([0]).select(slice(0, 1))
    widened = concat([one, trainer.sample([1, 2])])
    padded = type(one)(**{k: torch.nn.functional.pad(v, (3, 2)) if v.ndim == 2 else v
                          for k, v in widened.tensors().items()})
    alone, beside = (trainer.policy.score(r, 1.0, 64) for r in (one, padded))
    n = int(one.length)
    for a, b in zip(alone, beside, strict=True):
        assert torch.allclose(a, b[:n], atol=1e-5)
    assert (beside.entropy >= 0).all() and (beside.entropy <= math.log(trainer.policy.config.vocab_size)).all()
    assert (beside.logprob <= 0).all() and len(beside.entropy) == int(padded.length.sum())


def test_mean_entropy_of_a_step_is_over_answer_tokens_only(make_trainer):
    trainer = make_trainer()
    batch = trainer.collect()
    r = batch.rollouts
    with torch.no_grad():
        mean = trainer.policy.score(r, 1.0, 64).entropy.mean().item()
    assert batch.drawn[:, 2].sum() / batch.drawn[:, 3].sum() == pytest.approx(mean, abs=1e-5)
    assert batch.drawn[:, 3].sum() == r.answer.sum()


# --- the sampler ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampler_and_trainer_mean_the_same_policy(make_trainer, temperature):
    """Log-probabilities while sampling equal those of the training pass at softmax(z/T)."""
    trainer = make_trainer(**{"rollout.temperature": temperature})
    r = trainer.sample([0, 1, 2])
    with torch.no_grad():
        got = trainer.policy.score(r, temperature, 16)
    assert torch.allclose(got.logprob, r.logprob[r.answer], atol=1e-5)
    assert torch.allclose(got.entropy, r.entropy[r.answer], atol=1e-5)


def test_prompts_of_different_lengths_are_read_once_each(make_trainer, monkeypatch):
    """3 groups of 2 answers, one prompt twice: 2 rows are read, of 6 and 3 tokens, then 6 rows go on token by token."""
    trainer, rows = make_trainer(), []
    problems = [Problem("12+34=", "46", ""), Problem("7-=", "7", "")]
    read = trainer.policy.next_logits
    monkeypatch.setattr(trainer.policy, "next_logits", lambda ids, *rest: rows.append(ids.shape) or read(ids, *rest))
    r = trainer.roller.collect(trainer.policy, problems, [0, 1, 0], [5, 6, 7], 2, [0], 0)
    assert rows[0] == (2, 6) and set(rows[1:]) == {(6, 1)}
    assert r.prompt.sum(dim=1).tolist() == [6, 6, 3, 3, 6, 6]
    with torch.no_grad():
        assert torch.allclose(trainer.policy.score(r, 1.0, 16).logprob, r.logprob[r.answer], atol=1e-5)


def test_a_sampler_at_another_temperature_is_refused(make_trainer):
    """Logits (2, 0), T = .5: p = .98201 against .88080 at T = 1, a ratio of 1.1149 on that token."""
    z = torch.tensor([[2.0, 0.0]])
    gap = scores(z, [0], temperature=0.5).logprob - scores(z, [0]).logprob
    assert math.exp(gap.item()) == pytest.approx(1.1149, abs=1e-4)
    trainer = make_trainer()
    good = trainer.roller
    wrong = OwnSampler(Rollout(temperature=0.5, max_tokens=5), good.stop, good.pad)
    with pytest.raises(ValueError, match="mean ratio"):
        make_trainer(sampler=wrong).collect()


def test_tokens_are_drawn_with_their_probabilities():
    """Inverting the distribution function on a fine grid of u reproduces it; a token of probability 0 never comes."""
    share = torch.tensor([[0.2, 0.0, 0.5, 0.3, 0.0]])
    u = (torch.arange(1000, dtype=torch.float64) + 0.5) / 1000
    token = invert(share.expand(1000, 5), u)
    assert torch.bincount(token, minlength=5).tolist() == [200, 0, 500, 300, 0]
    assert invert(share, torch.tensor([1 - 1e-16], dtype=torch.float64)).item() == 3


def test_a_rollout_depends_on_its_group_alone(make_trainer):
    """The same group in another batch, in another order, or sampled one by one: the same tokens."""
    trainer = make_trainer()
    together = trainer.sample([3, 4, 5])
    for k in (5, 3):
        alone, mine = trainer.sample([k]), together.select(together.group == k)
        width = min(alone.ids.shape[1], mine.ids.shape[1])
        assert torch.equal(alone.ids[:, :width], mine.ids[:, :width])


def test_repeated_prompts_stay_separate_groups(make_trainer):
    """A prompt drawn twice, 2 rollouts each: 4 answers in 2 groups."""
    trainer = make_trainer(**{"data.train_prompts": 1, "train.group_size": 2, "train.prompts": 2, "train.steps": 1})
    batch = trainer.collect()
    assert batch.rollouts.group.tolist() == [0, 0, 1, 1] and batch.rollouts.problem.tolist() == [0] * 4
    assert len(batch.kept) == 2
    start = weights(trainer)
    trainer.learn(batch, trainer.weigh(batch)[1])
    assert torch.isfinite(weights(trainer) - start).all()
