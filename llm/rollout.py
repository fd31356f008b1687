"""Sampling: prompts in, answers with log-probabilities and entropies out.

The randomness of a rollout depends on the key of its group alone: not on the batch it is sampled
in, nor on the number of processes, nor on what was sampled before a restart.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from fade_sim.errors import InputError
from llm.batch import Rollouts
from llm.data import Problem
from llm.reward import Verifier, judge
from llm.settings import Rollout


class Answers(NamedTuple):
    """What a sampler returns, a row per rollout, groups one after the other; L columns of answer tokens."""

    ids: torch.Tensor  # (N, L) int64
    mask: torch.Tensor  # (N, L) bool, True up to and including the end token
    finished: torch.Tensor  # (N,) bool
    logprob: torch.Tensor  # (N, L) float32 under softmax(z / temperature), 0 where masked
    entropy: torch.Tensor | None  # (N, L) float32 nats; None where the engine does not give it


class Sampler(Protocol):
    """Own sampler, vLLM, or a fake in tests."""

    def sample(self, policy, prompts: list[list[int]], group_size: int, keys: list[list[int]]) -> Answers:
        """`group_size` answers to each prompt (token ids); keys: the seed sequence of each group."""
        ...


@dataclass(frozen=True)
class OwnSampler:
    """Batched sampling with a key-value cache, token by token, by inverting the distribution function."""

    settings: Rollout
    stop: tuple[int, ...]  # tokens that end an answer
    pad: int
    agree: Callable[[bool], bool] = lambda done: done  # True when every process is done

    @torch.no_grad()
    def sample(self, policy, prompts, group_size, keys) -> Answers:
        rows = [prompt for prompt in prompts for _ in range(group_size)]
        uniform = torch.from_numpy(np.concatenate([
            np.random.default_rng(key).random((group_size, self.settings.max_tokens)) for key in keys]))
        parts = [self._sample(policy, rows[i : i + self.settings.batch], uniform[i : i + self.settings.batch])
                 for i in range(0, len(rows), self.settings.batch)]
        return Answers(*(torch.cat(column) for column in zip(*parts, strict=True)))

    def _sample(self, policy, rows, uniform) -> Answers:
        from transformers import DynamicCache

        device, steps = policy.device, self.settings.max_tokens
        distinct = {row: i for i, row in enumerate(dict.fromkeys(map(tuple, rows)))}  # the answers share a prompt
        of = torch.tensor([distinct[tuple(row)] for row in rows], device=device)
        ids, prompt = pad_left(list(distinct), self.pad, device)
        attention = prompt.long()
        padded = not bool(prompt.all())
        position = (attention.cumsum(dim=1) - 1).clamp(min=0)
        cache = DynamicCache(config=policy.config)
        stop = torch.tensor(self.stop, device=device)
        alive = torch.ones(len(rows), dtype=torch.bool, device=device)
        columns = []
        for t in range(steps):
            z = policy.next_logits(ids, attention if padded else None, position, cache) / self.settings.temperature
            if t == 0:  # from a row per prompt to a row per answer
                z, attention, position = z[of], attention[of], position[of]
                cache.batch_select_indices(of)
            share = torch.softmax(z, dim=-1)
            token = invert(share, uniform[:, t].to(device))
            logprob = torch.log_softmax(z, dim=-1).gather(-1, token[:, None])[:, 0]
            token = torch.where(alive, token, self.pad)
            columns.append((token, alive, torch.where(alive, logprob, 0.0),
                            torch.where(alive, torch.special.entr(share).sum(dim=-1), 0.0)))
            alive = alive & ~torch.isin(token, stop)
            if t + 1 == steps or self.agree(not bool(alive.any())):
                break
            ids, position = token[:, None], position[:, -1:] + 1
            attention = torch.cat([attention, torch.ones_like(ids)], dim=1)
        out = [torch.stack(column, dim=1).cpu() for column in zip(*columns, strict=True)]
        out = [torch.nn.functional.pad(x, (0, steps - x.shape[1]), value=self.pad if i == 0 else 0)
               for i, x in enumerate(out)]
        return Answers(out[0], out[1], ~alive.cpu(), out[2], out[3])


def invert(share, uniform) -> torch.Tensor:
    """(N,) tokens: the first whose cumulative probability exceeds u; never one of probability 0."""
    total = share.cumsum(dim=-1, dtype=torch.float64)
    token = torch.searchsorted(total, (uniform * total[:, -1])[:, None], right=True)[:, 0]
    last = (share.shape[-1] - 1) - (share > 0).long().flip(-1).argmax(dim=-1)  # rounding at u just below 1
    return torch.minimum(token, last)


def pad_left(rows: list, pad: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids, True where real), both (N, longest); rows: N lists or tuples of tokens."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows], dtype=torch.long, device=device)
    real = torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in rows], device=device)
    return ids, real


@dataclass(frozen=True)
class Roller:
    """Everything between the number of a group and its judged rollouts."""

    sampler: Sampler
    tokenizer: object
    verifier: Verifier
    stop: tuple[int, ...]
    pad: int

    def collect(self, policy, problems: list[Problem], index: list[int], groups: list[int], group_size: int,
                seed: list[int], born: int) -> Rollouts:
        """Rollouts of `groups`; group i answers problems[index[i]]. seed + [group]: its seed sequence."""
        prompts = self.encode([problems[i].prompt for i in index])
        answers = self.sampler.sample(policy, prompts, group_size, [[*seed, k] for k in groups])
        check_answers(answers, len(prompts) * group_size)
        texts = self.decode(answers.ids, answers.mask)
        expected = [problems[i].answer for i in index for _ in range(group_size)]
        reward = judge(self.verifier, texts, expected, answers.finished.tolist())
        ids, real = pad_left([p for p in prompts for _ in range(group_size)], self.pad, "cpu")
        blank = torch.zeros_like(real)
        repeat = torch.tensor([[k, i] for k, i in zip(groups, index, strict=True)]).repeat_interleave(group_size, 0)
        entropy = answers.entropy if answers.entropy is not None else torch.full_like(answers.logprob, torch.nan)
        return Rollouts(
            ids=torch.cat([ids, answers.ids], 1), prompt=torch.cat([real, torch.zeros_like(answers.mask)], 1),
            answer=torch.cat([blank, answers.mask], 1), logprob=torch.cat([blank.float(), answers.logprob], 1),
            entropy=torch.cat([blank.float(), entropy], 1), group=repeat[:, 0], problem=repeat[:, 1],
            finished=answers.finished,
            reward=torch.tensor([torch.nan if r is None else r for r in reward], dtype=torch.float64),
            born=torch.full((len(reward),), born),
        )

    def encode(self, prompts: list[str]) -> list[list[int]]:
        ids = self.tokenizer(prompts)["input_ids"]  # one call: each costs more than the tokens of a short prompt
        for prompt, tokens in zip(prompts, ids, strict=True):
            if not tokens:
                raise InputError(f"prompt {prompt!r} has no tokens")
        return ids

    def decode(self, ids, mask) -> list[str]:
        """Text of the tokens (N, T) where mask is True, end tokens left out."""
        keep = mask & ~torch.isin(ids, torch.tensor(self.stop))
        return self.tokenizer.batch_decode([row[k].tolist() for row, k in zip(ids, keep, strict=True)])


def check_answers(answers: Answers, rows: int) -> None:
    """The contract of a sampler, checked on what it returned."""
    lengths = answers.mask.sum(dim=1)
    prefix = (answers.mask == (torch.arange(answers.mask.shape[1]) < lengths[:, None])).all()
    if len(answers.ids) != rows or not prefix or (lengths < 1).any():
        raise InputError(f"the sampler returned {len(answers.ids)} answers for {rows} asked, or one with holes or "
                         "without a token")
    if not torch.isfinite(answers.logprob).all() or (answers.logprob > 1e-6).any():
        raise InputError("the sampler returned log-probabilities that are not finite or above 0")


def stop_tokens(policy, tokenizer, stop: str) -> tuple[int, ...]:
    """Ids that end an answer: the tokenizer's, the generation config's, and that of the text `stop`."""
    found = {tokenizer.eos_token_id}
    declared = getattr(getattr(policy.model, "generation_config", None), "eos_token_id", None)
    found |= set(declared) if isinstance(declared, (list, tuple)) else {declared}
    if stop:
        ids = tokenizer(stop, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            raise InputError(f"rollout.stop is {stop!r}, which is {len(ids)} tokens here, expected one")
        found |= set(ids)
    found.discard(None)
    if not found:
        raise InputError("the tokenizer has no end token: give rollout.stop")
    return tuple(sorted(found))


def make_sampler(settings, stop: tuple[int, ...], pad: int, ranks=None) -> Sampler:
    """The sampler that the settings name."""
    if settings.rollout.sampler == "vllm":
        from llm.vllm import VLLMSampler

        return VLLMSampler(settings.model.path, settings.rollout, stop, pad)
    return OwnSampler(settings.rollout, stop, pad, *([ranks.all] if ranks is not None else []))
