"""torch: eager, or one compiled function per step (torch.compile), float32, on one thread."""

from functools import partial

import numpy as np

from benchmarks.problem import ALPHA_MAX, DELTA_MIN, LR, RATE, Gains, Problem

VARIANTS = ("multinomial", "search")


def load() -> None:
    """Import torch with one thread."""
    import torch

    torch.set_num_threads(1)


def compiled(problem: Problem, say):
    """`start` through torch.compile, or None with a message where that needs a C++ compiler that is not there."""
    try:
        advance = start(problem, "search", compile=True)
        advance(2)
    except Exception as error:  # whatever the compiler raises, the others are still timed
        say(f"torch.compile is left out: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
        return None
    return advance


def _gains(torch):
    """FADE's controller on tensors, for a step that is compiled whole: update(averages, ...) -> new ones and gains."""

    def update(averages, solve_rate, entropy):
        phat, hhat, h0 = averages
        h0, hhat = torch.where(h0 < 0, entropy, h0), torch.where(hhat < 0, entropy, hhat)
        phat, hhat = phat + RATE * (solve_rate - phat), hhat + RATE * (entropy - hhat)
        alpha = (1.5 * (1 - phat) / phat).clamp(1.0, ALPHA_MAX)
        return (phat, hhat, h0), alpha, (1.0 + hhat - 0.5 * h0).clamp(DELTA_MIN, 1.0)

    return update, lambda: (torch.tensor(0.5), torch.tensor(-1.0), torch.tensor(-1.0))


def _float_gains(gains, solve_rate, entropy):
    """The same in plain floats, which is faster in eager mode."""
    return gains, *gains.update(float(solve_rate), float(entropy))


def start(problem: Problem, variant: str, compile: bool = False):
    """advance(n) -> logits (P, K) after the first n steps."""
    import torch

    (P, K), G = problem.bias.shape, problem.group_size
    bias = torch.tensor(problem.bias, dtype=torch.float32)
    success = torch.tensor(problem.success)
    update, averages = _gains(torch) if compile else (_float_gains, Gains)

    def step(z, u, averages):
        log_pi = torch.log_softmax(z, dim=1)
        pi = log_pi.exp()
        entropy = -(pi * log_pi).sum(dim=1).mean()
        if u is None:
            arms = torch.multinomial(pi, G, replacement=True)
        else:
            cdf = pi.cumsum(dim=1)
            arms = torch.searchsorted(cdf, u * cdf[:, -1:], right=True).clamp_(max=K - 1)
        r = success.gather(1, arms).to(z.dtype)
        p = r.mean(dim=1, keepdim=True)
        averages, alpha, delta = update(averages, p.mean(), entropy)
        d = r - p
        advantage = (1 - p) ** (alpha - 1) * torch.where(d > 0, d, d / delta) * (LR / G)
        return (z - advantage.sum(dim=1, keepdim=True) * pi).scatter_add(1, arms, advantage), averages

    one = torch.compile(step, dynamic=False) if compile else step
    draw = partial(torch.rand, P, G) if variant == "search" else lambda generator: None

    @torch.no_grad()
    def advance(steps: int) -> np.ndarray:
        generator = torch.Generator().manual_seed(problem.seed)
        torch.manual_seed(problem.seed)  # multinomial takes this one
        z, state = bias, averages()
        for _ in range(steps):
            z, state = one(z, draw(generator=generator), state)
        return z.double().numpy()

    return advance
