"""Compiled building blocks: random numbers, the policy and its head."""

import math

import numpy as np

from fade_sim.sim.compile import kernel, part, product
from fade_sim.sim.simd import add_bilinear, add_scaled, prefetch, set_scaled, softmax_row

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@part
def _mix(x):
    x = (x ^ (x >> _S30)) * _MIX1
    x = (x ^ (x >> _S27)) * _MIX2
    return x ^ (x >> _S31)


@part
def step_key(key, step):
    """Stream of one step (splitmix64)."""
    return _mix(key + np.uint64(step) * _GOLDEN)


@part
def uniform(stream, index):
    """The index-th uniform in [0, 1) of a stream."""
    return float(_mix(stream + np.uint64(index + 1) * _GOLDEN) >> _S11) * (1.0 / 9007199254740992.0)


@part
def copy_matrix(source, target):
    """Numba's own array assignment carries an error message that costs seconds to compile."""
    for i in range(source.shape[0]):
        set_scaled(target, i, 1.0, source, i)


@kernel
def linear_rows(hidden, chosen, first, rows):
    """rows (B, d), from row `first` on: the hidden states of the chosen prompts. Nothing, and compiled to
    nothing, where rows is None (the policy is not linear)."""
    if rows is not None:
        for b in range(first, rows.shape[0]):
            prefetch(hidden, chosen[min(b + 2, rows.shape[0] - 1)])
            set_scaled(rows, b, 1.0, hidden, chosen[b])


@product
def linear_logits(rows, head, first, logits):
    """logits[b] = h_b W for b >= first, with one matrix product; nothing where rows is None."""
    if rows is not None:
        np.dot(rows[first:], head, logits[first:])


@product
def linear_gradient(coef, grad, rows, n):
    """grad (d, K) = sum of h_b coef_b^T over b < n; nothing where rows is None."""
    if rows is not None and n > 0:
        np.dot(rows[:n].T, coef[:n], grad)


@kernel
def policy(own, x, head, use_head, bilinear, token_t, hidden_t, prob, b, ahead):
    """Fill prob[b] (K,) with the policy on prompt x; returns its entropy in nats.

    own[x]: the prompt's logits at W = 0. Bilinear: plus v^T W h. Linear: plus h W, which prob[b]
    holds already. ahead: the prompt to come, whose logits are asked for.
    """
    logits, row = own, x
    if use_head:
        logits, row, ahead = prob, b, b
        if bilinear:
            set_scaled(prob, b, 1.0, own, x)
            add_bilinear(prob, b, head, token_t, hidden_t, x)
        else:
            add_scaled(prob, b, 1.0, own, x, b)
    Z, moment, _ = softmax_row(logits, row, prob, b, ahead)
    scale = 1.0 / Z
    set_scaled(prob, b, scale, prob, b)
    return math.log(Z) - moment * scale
