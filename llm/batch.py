"""Rollouts as padded tensors: joined, cut into micro-batches, counted.

Shapes: N rollouts, T tokens. Prompts are padded on the left, answers on the right, so that all
answers of a batch start in one column.
"""

from dataclasses import dataclass, fields

import torch


@dataclass(frozen=True)
class Rollouts:
    """Sampled and judged answers; tensors with N rows. Columns before `width` belong to prompts."""

    ids: torch.Tensor  # (N, T) int64 tokens
    prompt: torch.Tensor  # (N, T) bool, prompt tokens
    answer: torch.Tensor  # (N, T) bool, answer tokens, the end token included
    logprob: torch.Tensor  # (N, T) float32 of answer tokens under the policy that sampled them, else 0
    entropy: torch.Tensor  # (N, T) float32 nats of that policy where it chose an answer token, else 0
    group: torch.Tensor  # (N,) int64, number of the group in the whole run
    problem: torch.Tensor  # (N,) int64, index of the problem
    finished: torch.Tensor  # (N,) bool, False where the length limit cut the answer off
    reward: torch.Tensor  # (N,) float64, 0 or 1; NaN where the verifier could not tell
    born: torch.Tensor  # (N,) int64, number of updates the sampling policy had seen

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def attention(self) -> torch.Tensor:
        """(N, T) int64, 0 on left padding only: what follows an answer is never attended from it."""
        return (self.prompt.cumsum(dim=1) > 0).long()

    @property
    def length(self) -> torch.Tensor:
        """(N,) tokens of each answer."""
        return self.answer.sum(dim=1)

    @property
    def valid(self) -> torch.Tensor:
        """(N,) False where the verifier could not tell: such a rollout leaves its group, it is no failure."""
        return ~self.reward.isnan()

    def select(self, rows) -> "Rollouts":
        """Some rows (slice, index or mask), cut to the columns they use."""
        taken = {f.name: getattr(self, f.name)[rows] for f in fields(self)}
        used = (taken["prompt"] | taken["answer"]).any(dim=0).nonzero()
        if len(used):
            low, high = int(used[0]), int(used[-1]) + 1
            taken = {k: v[:, low:high] if v.ndim == 2 else v for k, v in taken.items()}
        return Rollouts(**taken)

    def to(self, device) -> "Rollouts":
        return Rollouts(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})

    def tensors(self) -> dict[str, torch.Tensor]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


def concat(parts: list[Rollouts]) -> Rollouts:
    """All rows of several batches, padded to a common answer column and width."""
    starts = [_width(p) for p in parts]
    left = max(starts)
    right = max(p.ids.shape[1] - s for p, s in zip(parts, starts, strict=True))
    out = {}
    for f in fields(Rollouts):
        rows = [getattr(p, f.name) for p in parts]
        if rows[0].ndim == 2:
            rows = [torch.nn.functional.pad(x, (left - s, right - (x.shape[1] - s)))
                    for x, s in zip(rows, starts, strict=True)]
        out[f.name] = torch.cat(rows)
    return Rollouts(**out)


def _width(rollouts: Rollouts) -> int:
    """Columns before the first answer."""
    used = rollouts.prompt.any(dim=0).nonzero()
    return int(used[-1]) + 1 if len(used) else 0


def micro_batches(rows: int, size: int, ranks) -> list[tuple[slice, bool]]:
    """(slice of at most `size` rows, True); as many on every process: who has fewer repeats row 0 with False.

    Sharded calls are collective. A piece marked False takes part, and counts for nothing.
    """
    own = [(slice(i, min(i + size, rows)), True) for i in range(0, rows, size)]
    return own + [(slice(0, 1), False)] * (int(ranks.max(len(own))) - len(own))
