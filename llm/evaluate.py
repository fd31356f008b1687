"""pass@k on training and held-out problems, with intervals by prompt; rollouts to be replayed under every rule."""

from collections.abc import Iterator

import numpy as np

from fade_sim.diagnostics import pass_at_k_interval
from llm.data import Problem
from llm.parallel import Ranks
from llm.rollout import Roller
from llm.settings import Data

_STREAM, _RECORD = 0xE7A1, 0x4EC0  # random numbers of evaluation and of recording, apart from those of training
_BLOCK = 16  # problems recorded at a time


def evaluate(policy, roller: Roller, sets: dict[str, list[Problem]], data: Data, ranks: Ranks, seed: int) -> dict:
    """Per set: prompts, rollouts, pass@k as {"mean", "low", "high"} (95%, by prompt), solve rates, answer statistics.

    Every evaluation of a run uses the same random numbers: changes are the policy's.
    """
    out = {}
    for number, (name, problems) in enumerate(sets.items()):
        successes, n, stats = count(policy, roller, problems, data.eval_rollouts, ranks, [seed, _STREAM, number])
        row: dict = {"prompts": len(problems), "rollouts": data.eval_rollouts}
        for k in data.eval_k:
            enough = n >= k  # of some prompt too few rollouts could be judged
            mean, low, high = pass_at_k_interval(successes[enough], n[enough], k)
            row[f"pass@{k}"] = {"mean": mean, "low": low, "high": high}
        skills = sorted({p.skill for p in problems})
        if len(skills) > 1:
            rate = successes / np.maximum(n, 1)
            row["by_skill"] = {s: float(np.mean([r for r, p in zip(rate, problems, strict=True) if p.skill == s]))
                               for s in skills}
        out[name] = row | stats
    return out


def count(policy, roller: Roller, problems: list[Problem], rollouts: int, ranks: Ranks, seed: list[int]):
    """(successes (P,), judged rollouts (P,), statistics): every rank samples its share of the prompts."""
    share = -(-len(problems) // ranks.size)  # equal on all ranks, so that sharded calls match
    mine = [(ranks.rank + i * ranks.size) % len(problems) for i in range(share)]
    got = roller.collect(policy, problems, mine, mine, rollouts, seed, 0)
    rows = {}
    for i, k in enumerate(mine):
        r = slice(i * rollouts, (i + 1) * rollouts)
        rows[k] = (int(got.reward[r].nansum()), float(got.entropy[r].double().sum()), int(got.length[r].sum()),
                   int((~got.finished[r]).sum()), int(got.valid[r].sum()))
    merged: dict = {}
    for part in ranks.gather(rows):
        merged.update(part)
    table = np.array([merged[k] for k in range(len(problems))])
    return table[:, 0].astype(np.int64), table[:, 4].astype(np.int64), {
        "entropy": float(table[:, 1].sum() / table[:, 2].sum()), "length": float(table[:, 2].sum() / table[:, 0].size
                                                                                 / rollouts),
        "truncated": float(table[:, 3].sum() / table[:, 0].size / rollouts),
    }


def record(policy, roller: Roller, problems: list[Problem], group_size: int, seed: int) -> Iterator[dict]:
    """A line of the format of `fade_sim.recordings` per problem: rewards in the order drawn, entropy in nats per token,
    and what a person looks for: prompt, answer, texts. Random numbers depend on the seed and a problem's place alone.
    Rollouts that could not be judged are left out, and a problem without any other.
    """
    for first in range(0, len(problems), _BLOCK):
        block = list(range(first, min(first + _BLOCK, len(problems))))
        got = roller.collect(policy, problems, block, block, group_size, [seed, _RECORD], 0)
        texts = roller.decode(got.ids, got.answer)
        for j, i in enumerate(block):
            rows = slice(j * group_size, (j + 1) * group_size)
            judged = (got.valid[rows].nonzero()[:, 0] + rows.start).tolist()
            if not judged:
                continue
            yield {"prompt_id": i, "task": problems[i].skill,
                   "entropy": float(got.entropy[rows].double().sum() / got.length[rows].sum()),
                   "rewards": [int(r) for r in got.reward[judged].tolist()],
                   "prompt": problems[i].prompt, "answer": problems[i].answer, "texts": [texts[k] for k in judged]}
