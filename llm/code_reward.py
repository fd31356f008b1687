"""The reward of a program: 1 if it passes every test of its problem, in isolation (see llm.judge)."""

import os
from functools import lru_cache

from llm.judge.limits import Limits
from llm.judge.pool import Judge
from llm.judge.problems import Problem, parse, parse_json
from llm.settings import Reward


def program(text: str, where: str) -> str | None:
    """The program in an answer: the last closed ``` block, or the whole text; None where there is no block.

    >>> program("so:\\n```python\\nprint(1)\\n```\\n", "block")
    'print(1)\\n'
    """
    if where == "text":
        return text
    found, opened = None, None
    lines = text.splitlines(keepends=True)
    for i, line in enumerate(lines):
        if opened is None and line.startswith("```") and "`" not in line[3:]:
            opened = i + 1
        elif opened is not None and line.rstrip() == "```":
            found, opened = "".join(lines[opened:i]), None
    return found


@lru_cache(maxsize=4096)
def problem(answer: str) -> Problem:
    """The problem in the `answer` of a data file. Raises InputError."""
    try:
        row = parse_json(answer)
    except ValueError:
        row = None
    return parse(row, "answer")


class CodeReward:
    """Verifier of programs. Starting it runs the judge's self-test; close() ends it."""

    def __init__(self, reward: Reward):
        self.where = reward.program
        limits = Limits(reward.cpu_seconds, reward.wall_seconds, reward.memory_mb, reward.processes)
        slots = reward.slots or max((os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
        self.judge = Judge(limits, slots, unsafe_local=reward.unsafe_local).__enter__()

    def __call__(self, text: str, answer: str) -> float | None:
        return self.batch([(text, answer)])[0]

    def batch(self, pairs: list[tuple[str, str]]) -> list[float | None]:
        """Rewards of (text, answer) pairs, side by side in the judge's slots; None: infrastructure."""
        sources = [program(text, self.where) for text, _ in pairs]
        jobs = [(problem(answer), source) for (_, answer), source in zip(pairs, sources, strict=True)
                if source is not None]
        verdicts = iter(self.judge.many(jobs))
        return [0.0 if source is None else next(verdicts).reward for source in sources]

    def check(self, answer: str, where: str) -> None:
        """Raises InputError where an answer holds no tests."""
        try:
            row = parse_json(answer)
        except ValueError:
            row = None
        parse(row, where)

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.judge.counts)

    def close(self) -> None:
        self.judge.close()
