"""pass@k on training and held-out problems, with intervals by prompt."""

import numpy as np

from fade_sim.diagnostics import pass_at_k_interval
from llm.data import Problem
from llm.parallel import Ranks
from llm.rollout import Roller
from llm.settings import Data

_STREAM = 0xE7A1  # random numbers of evaluation, apart from those of training


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
