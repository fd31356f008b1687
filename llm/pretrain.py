"""The first rung: a small transformer from scratch, to partial competence on arithmetic.

It sees problems of every skill except the prompts that reinforcement learning trains or evaluates
on, each answer in one of its correct spellings, and stops when the mean solve rate of the training
prompts reaches the target: their solve rates are then spread over 0..1.
"""

from collections.abc import Callable

import numpy as np
import torch

from fade_sim.errors import InputError
from llm.data import Problem, Split, make_tokenizer, pretraining_batch
from llm.evaluate import count
from llm.parallel import Ranks
from llm.policy import Policy
from llm.rollout import Roller, pad_left
from llm.settings import Data, Pretrain

_CHECK_ROLLOUTS = 4


def new_policy(settings: Pretrain) -> tuple[Policy, object]:
    """(untrained policy, its tokenizer): a Llama of the given sizes with an untied head.

    Embeddings start at an RMS of 1: the usual .02 makes the scores of a small model four times larger.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    if settings.hidden % settings.heads:
        raise InputError(f"pretrain.hidden is {settings.hidden}, expected a multiple of pretrain.heads = "
                         f"{settings.heads}")
    tokenizer = make_tokenizer()
    torch.manual_seed(settings.seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=settings.hidden, intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers, num_attention_heads=settings.heads, num_key_value_heads=settings.heads,
        max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    ))
    torch.nn.init.normal_(model.get_input_embeddings().weight)
    model.eval()
    return Policy(model), tokenizer


def supervised(problems: list[Problem], roller: Roller) -> dict[str, torch.Tensor]:
    """Inputs of `Policy.forward("score")`: prompts padded on the left, answers with their end token on the right."""
    ids, real = pad_left(roller.encode([p.prompt for p in problems]), roller.pad, "cpu")
    end = [roller.tokenizer.eos_token_id]
    answers = roller.tokenizer([p.answer for p in problems], add_special_tokens=False)["input_ids"]
    answers = [row + end for row in answers]
    width = max(map(len, answers))
    right = torch.tensor([row + [roller.pad] * (width - len(row)) for row in answers])
    mask = torch.tensor([[True] * len(row) + [False] * (width - len(row)) for row in answers])
    return {
        "ids": torch.cat([ids, right], dim=1), "mask": torch.cat([torch.zeros_like(real), mask], dim=1),
        "attention": torch.cat([real, torch.ones_like(mask)], dim=1).long(),
    }


def pretrain(settings: Pretrain, data: Data, split: Split, policy: Policy, roller: Roller, chunk: int,
             progress: Callable[[int, float, float], None] = lambda step, loss, rate: None) -> dict:
    """Train `policy` in place; returns {"steps", "loss", "solve_rate", "solve_rates"} of the training prompts.

    progress(steps done, loss, solve rate) is called after each check. The learning rate warms up over
    50 steps and stays.
    """
    exclude = frozenset(p.prompt for problems in (split.train, *split.evaluation.values()) for p in problems)
    rng = np.random.default_rng([settings.seed, 0x93E7])
    optimiser = torch.optim.AdamW(policy.parameters(), lr=settings.lr, weight_decay=0.01)
    step, loss_value, rates = 0, float("nan"), np.zeros(1)
    while step < settings.steps and rates.mean() < settings.solve_rate:
        for _ in range(min(settings.check_every, settings.steps - step)):
            batch = supervised(pretraining_batch(data, exclude, settings.batch, rng), roller)
            loss = -policy("score", **batch, temperature=1.0, chunk=chunk, entropy_grad=False).logprob.mean()
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            step += 1
            optimiser.param_groups[0]["lr"] = settings.lr * min(1.0, step / 50)
            optimiser.step()
            loss_value = float(loss.detach())
        successes, _, _ = count(policy, roller, split.train, _CHECK_ROLLOUTS, Ranks(), [settings.seed, 0xC4EC])
        rates = successes / _CHECK_ROLLOUTS
        progress(step, loss_value, float(rates.mean()))
    return {"steps": step, "loss": loss_value, "solve_rate": float(rates.mean()), "solve_rates": rates.tolist()}
