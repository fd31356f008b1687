"""Lambda of stale updates, over all trained parameters, from gradients of single rollouts.

A step adds lr * sum_i A_i w_i s_i to the parameters, s_i = grad log pi of rollout i (summed over its
tokens) and w_i the factor of the loss's denominator. With rollouts `age` updates old the feedback
matrix is E_x[(m_F - m_S)(x) E[N w_i s_i s_i^T | x]] (`fade_sim.theory.stability`), so each score is
scaled by sqrt(N w_i). AdamW: by the square root of its step per unit gradient too; its momentum is
left out. The head alone is a lower bound, and a poor one. The exact feedback matrix is
E[A Hess log pi], equal to this one if the curvature does not depend on the sampled rollout: for a
rule with m_S = m_F this form is 0 and the exact one is not.
"""

import numpy as np
import torch
from torch.func import functional_call, grad, vmap

from fade_sim.diagnostics import expected_masses, stability, subset_probabilities
from fade_sim.errors import InputError
from fade_sim.spectral import coordinates
from llm.batch import Rollouts
from llm.curvature import answer_logprob, causal_bias, feedback_eigenvalues
from llm.loss import Totals, token_weights

_STREAM = 0x1A3B  # random numbers of the probe's rollouts
_LIMIT = 4 * 2**30  # bytes of gradients held at one time


def measure_stability(trainer, table, age: float) -> dict:
    """Lambda, growth per step, safe delta and alarm at the current weights, cross-validated and in-sample.

    Samples fresh rollouts, 2 G of each of probe.rollouts/(2 G) training prompts: their masses under the
    step's table are then unbiased. age: of the rollouts learned from, in updates.
    """
    s, G = trainer.settings, trainer.train.group_size
    if trainer.ranks.size > 1:
        raise InputError("probe.stability needs the gradients of single rollouts: run it in one process")
    each = 2 * G
    prompts = max(s.probe.rollouts // each, 2)
    order = np.random.default_rng([trainer.train.seed, _STREAM, trainer.step])
    index = order.integers(len(trainer.split.train), size=prompts).tolist()
    rollouts = trainer.roller.collect(trainer.policy, trainer.split.train, index, list(range(prompts)), each,
                                      [trainer.train.seed, _STREAM, trainer.step], trainer.step)
    judged = rollouts.valid.view(prompts, each).all(dim=1)
    if not judged.all():  # a prompt with a rollout that could not be judged is no fair sample
        rollouts, prompts = rollouts.select(judged.repeat_interleave(each)), int(judged.sum())
    if prompts < 2:
        return {}
    weight = token_weights(rollouts.length, Totals(int(rollouts.length.sum()), len(rollouts), len(rollouts)),
                           s.loss.denominator, s.loss.constant_length or s.rollout.max_tokens)
    grams = score_grams(trainer, rollouts, (weight.double() * len(rollouts)).sqrt())
    successes = rollouts.reward.view(prompts, each).sum(dim=1).numpy().astype(np.int64)
    chance = subset_probabilities(successes, np.full(prompts, each), G)
    m_S, m_F = expected_masses(table, chance)
    lag, out = round(age), {}
    for name, gram in grams.items():
        rows = np.split(coordinates(gram), prompts)
        for suffix, crossed in (("", True), ("_in_sample", False)):
            got = stability(rows, successes / each, m_S, m_F, s.model.lr, lag, cross_validate=crossed)
            out[f"Lambda{name}{suffix}"] = got.Lambda
            if not name:
                out[f"growth{suffix}"], out[f"delta_safe{suffix}"] = got.growth, got.delta_min
    if s.probe.exact:
        row = successes_of_halves(rollouts, G)
        advantage = torch.from_numpy(table)[row, (1 - rollouts.reward).long()]
        ends = feedback_eigenvalues(trainer.policy, rollouts, advantage * weight * len(rollouts), G,
                                    s.rollout.temperature, adam_metric(trainer.optimiser))
        out["Lambda_exact"], out["Lambda_exact_in_sample"] = (s.model.lr * lag * v for v in ends)
    out["alarm"] = bool(max(out["Lambda"], out.get("Lambda_exact", 0.0)) > 1.0)
    return out


def successes_of_halves(rollouts: Rollouts, group_size: int) -> torch.Tensor:
    """(N,) successes of the group of `group_size` that a rollout belongs to, 2 groups a prompt."""
    return rollouts.reward.view(-1, group_size).sum(dim=1).long().repeat_interleave(group_size)


def score_grams(trainer, rollouts: Rollouts, scale: torch.Tensor) -> dict[str, np.ndarray]:
    """Inner products (N, N) of the scaled scores, over all trained parameters ("") and over the head ("_head").

    scale: (N,). Raises InputError where the gradients do not fit in memory.
    """
    policy, parameters = trainer.policy, trainer.policy.trainable()
    size = sum(p.numel() for p in parameters.values())
    if 4 * size * len(rollouts) > _LIMIT:
        raise InputError(f"probe.stability holds {len(rollouts)} gradients of {size} parameters, "
                         f"{4 * size * len(rollouts) / 2**30:.0f} GiB; lower probe.rollouts or train with LoRA")
    metric = adam_metric(trainer.optimiser)
    head = policy.head.weight if getattr(policy.head, "weight", None) is not None else None
    blocks = rollout_gradients(policy, rollouts, trainer.settings.rollout.temperature)
    grams = {"": np.zeros((len(rollouts), len(rollouts)))}
    for name, rows in blocks.items():
        rows = rows.reshape(len(rollouts), -1) * scale[:, None].to(rows.dtype)
        if metric is not None:
            rows = rows * metric[name].reshape(1, -1).to(rows.dtype)
        gram = (rows @ rows.T).double().numpy()
        grams[""] += gram
        if parameters[name] is head:
            grams["_head"] = gram
    return grams


def adam_metric(optimiser) -> dict[str, torch.Tensor] | None:
    """Square root of AdamW's step per unit gradient, by name; None for SGD."""
    if not isinstance(optimiser.torch, torch.optim.AdamW):
        return None
    out = {}
    for name, p in optimiser.master.items():
        state = optimiser.torch.state[p]
        if not float(state["step"]):
            raise InputError("probe.stability under adam needs a step taken: train.record must be at least 1")
        second = state["exp_avg_sq"] / (1.0 - 0.999 ** float(state["step"]))
        out[name] = (1.0 / (second.sqrt() + 1e-8)).sqrt().cpu()
    return out


def rollout_gradients(policy, rollouts: Rollouts, temperature: float, chunk: int = 64) -> dict[str, torch.Tensor]:
    """Gradient of the summed log-probability of each rollout, by parameter name, (N, *shape) float32 on the CPU."""
    parameters = {name: p.detach() for name, p in policy.trainable().items()}
    device = policy.device
    bias, position = causal_bias(rollouts, next(iter(parameters.values())).dtype)

    def total(parameters, ids, bias, position, answer):
        named = {f"model.{name}": p for name, p in parameters.items()}
        inputs = {"ids": ids[None], "bias": bias[None, None], "position": position[None]}
        logits = functional_call(policy, named, ("logits",), inputs)
        return answer_logprob(logits, ids[None], answer[None], temperature)[0]

    each = vmap(grad(total), in_dims=(None, 0, 0, 0, 0))
    out = {name: torch.empty((len(rollouts), *p.shape), dtype=torch.float32) for name, p in parameters.items()}
    policy.checkpointing, checkpointing = False, policy.checkpointing
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # the kernel that vmap can batch
        for start in range(0, len(rollouts), chunk):
            rows = slice(start, start + chunk)
            inputs = (x[rows].to(device) for x in (rollouts.ids, bias, position, rollouts.answer))
            for name, g in each(parameters, *inputs).items():
                out[name][rows] = g
    policy.checkpointing = checkpointing
    return out
