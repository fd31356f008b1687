"""Log-probabilities and entropies of tokens, exact over the whole vocabulary, in chunks of tokens.

Shapes: N rollouts of T tokens (prompt left-padded, answer right-padded), M scored tokens (all answers
end to end), V vocabulary. All of it in float32 or wider, whatever the weights are stored in.
"""

from typing import NamedTuple

import torch
from torch.utils.checkpoint import checkpoint


class Scores(NamedTuple):
    """Of each scored token, (M,): log-probability (differentiable) and entropy in nats."""

    logprob: torch.Tensor
    entropy: torch.Tensor


def token_scores(hidden, targets, head, temperature: float, chunk: int, *, entropy_grad: bool = False) -> Scores:
    """Scores of tokens `targets` (M,) from hidden states (M, d) of the positions before them.

    head: the module that maps (m, d) to logits (m, V). Logits of at most `chunk` tokens exist at one
    time, in the forward and in the backward pass (each chunk is recomputed there): peak memory does
    not grow with M. The entropy carries a gradient only if asked to.
    """
    parts = []
    for start in range(0, len(targets), chunk):
        piece = hidden[start : start + chunk], targets[start : start + chunk]
        if torch.is_grad_enabled():
            parts.append(checkpoint(_chunk, *piece, head, temperature, entropy_grad, use_reentrant=False,
                                    preserve_rng_state=False))
        else:
            parts.append(_chunk(*piece, head, temperature, entropy_grad))
    if not parts:  # no answer token at all: keep the graph, so that every parameter gets a zero gradient
        nothing = hidden.float().sum() * 0.0
        return Scores(nothing.expand(0), nothing.detach().expand(0))
    return Scores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _chunk(hidden, targets, head, temperature, entropy_grad):
    logits = head(hidden)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if temperature != 1.0:
        logits = logits / temperature
    logz = torch.logsumexp(logits, dim=-1)
    logprob = logits.gather(-1, targets[:, None])[:, 0] - logz
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        entropy = torch.special.entr(torch.softmax(logits, dim=-1)).sum(dim=-1)  # 0 where a probability is 0
    return logprob, entropy


def scored(mask) -> torch.Tensor:
    """(N, T-1) bool: True where the *next* token is scored. mask: (N, T), True on answer tokens.

    The output at position t is a distribution over token t+1.

    >>> scored(torch.tensor([[0, 0, 1, 1]]).bool()).tolist()
    [[False, True, True]]
    """
    return mask[:, 1:]
