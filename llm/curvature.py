"""The exact feedback of old rollouts: eigenvalues of E[A Hess log pi], by Lanczos with Hessian-vector products.

With rollouts of an older policy and no importance ratio the update is lr sum_i A_i w_i grad log pi_i;
its derivative along the parameters is lr H, H = sum_i A_i w_i Hess log pi_i. The Fisher form
(`stability`) replaces the Hessian by its mean, which removes all of it for a rule with m_S = m_F.
"""

import numpy as np
import torch

from llm.batch import Rollouts
from llm.logprob import scored

_STEPS = 30  # of Lanczos: the top eigenvalue to about 1%


def feedback_eigenvalues(policy, rollouts: Rollouts, coefficient: torch.Tensor, group_size: int, temperature: float,
                         metric: dict | None) -> tuple[float, float]:
    """(cross-validated, in-sample) largest eigenvalue of mean_i coefficient_i Hess log pi_i.

    coefficient: (N,). The rollouts come in groups, two of a prompt one after the other: an eigenvector is
    fitted on the first group of every prompt and judged on the second, and the other way round.
    metric: square root of the optimiser's step per unit gradient by parameter name, None for SGD.
    """
    half = torch.arange(len(rollouts)) // group_size % 2
    halves = [Product(policy, rollouts.select(half == i), coefficient[half == i], temperature, metric)
              for i in (0, 1)]
    crossed, own = [], []
    for fit, judge in (halves, halves[::-1]):
        value, vector = lanczos(fit, fit.size)
        own.append(value)
        crossed.append(float(vector @ judge(vector)))
    return max(float(np.mean(crossed)), 0.0), max(float(np.mean(own)), 0.0)


def lanczos(product, size: int, steps: int = _STEPS) -> tuple[float, torch.Tensor]:
    """(largest eigenvalue, unit eigenvector) of a symmetric matrix given by its products; float64, reorthogonalised."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(size, generator=generator, dtype=torch.float64)
    basis, alpha, beta = [q / q.norm()], [], []
    for _ in range(min(steps, size)):
        w = product(basis[-1])
        alpha.append(float(w @ basis[-1]))
        for _ in range(2):
            for b in basis:
                w = w - (w @ b) * b
        beta.append(float(w.norm()))
        if beta[-1] < 1e-10 * max(map(abs, alpha)) or beta[-1] == 0.0:
            break
        basis.append(w / beta[-1])
    n = len(alpha)
    value, vector = np.linalg.eigh(np.diag(alpha) + np.diag(beta[: n - 1], 1) + np.diag(beta[: n - 1], -1))
    top = sum(c * b for c, b in zip(vector[:, -1].tolist(), basis[:n], strict=True))
    return float(value[-1]), top / top.norm()


class Product:
    """v -> H v over all trained parameters, flat; the graph of the gradient is built once and kept."""

    def __init__(self, policy, rollouts: Rollouts, coefficient: torch.Tensor, temperature: float, metric: dict | None):
        self.parameters = policy.trainable()
        rows = rollouts.to(policy.device)
        bias, position = causal_bias(rows, next(iter(self.parameters.values())).dtype)
        policy.checkpointing, checkpointing = False, policy.checkpointing
        with torch.enable_grad(), torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            logits = policy("logits", ids=rows.ids, bias=bias[:, None], position=position)
            total = answer_logprob(logits, rows.ids, rows.answer, temperature)
            value = (total * coefficient.to(total)).mean()
            self.gradient = torch.autograd.grad(value, list(self.parameters.values()), create_graph=True)
        policy.checkpointing = checkpointing
        self.metric = None if metric is None else torch.cat([metric[k].flatten().double() for k in self.parameters])
        self.size = sum(p.numel() for p in self.parameters.values())

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        vector = vector if self.metric is None else vector * self.metric
        pieces = torch.split(vector, [g.numel() for g in self.gradient])
        along = sum((g * v.view_as(g).to(g)).sum() for g, v in zip(self.gradient, pieces, strict=True))
        out = torch.autograd.grad(along, list(self.parameters.values()), retain_graph=True, allow_unused=True)
        flat = torch.cat([(torch.zeros_like(p) if o is None else o).flatten().double().cpu()
                          for o, p in zip(out, self.parameters.values(), strict=True)])
        return flat if self.metric is None else flat * self.metric


def causal_bias(rollouts: Rollouts, dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """(attention bias (N, T, T): 0 or the smallest number, positions (N, T)): nothing left for the model to decide."""
    real, T = rollouts.attention.bool(), rollouts.ids.shape[1]
    kind = {"dtype": torch.bool, "device": real.device}
    allowed = (real[:, None, :] & torch.ones(T, T, **kind).tril()) | torch.eye(T, **kind)
    bias = torch.zeros(allowed.shape, dtype=dtype, device=real.device)
    position = (rollouts.attention.cumsum(dim=1) - 1).clamp(min=0)
    return bias.masked_fill(~allowed, torch.finfo(dtype).min), position


def answer_logprob(logits, ids, answer, temperature: float) -> torch.Tensor:
    """(N,) summed log-probability of the answer tokens; logits (N, T, V) of all positions."""
    logprob = torch.log_softmax(logits[:, :-1].float() / temperature, dim=-1)
    return (logprob.gather(-1, ids[:, 1:, None])[..., 0] * scored(answer)).sum(dim=1)
