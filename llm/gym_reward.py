"""The reward of a generated problem (reasoning-gym): its own scorer's score, 1 from a threshold on.

Scores lie between 0 and 1, and some scorers give part of it for a wrong answer that has the right form
(.01 to .5), which a rule for rewards of 0 and 1 cannot use: below the threshold is 0.
"""

import json
from collections import Counter

from fade_sim.errors import InputError
from llm.settings import Reward
from llm.worker import Worker

_MISSING = "reward.name = 'gym' needs the package reasoning-gym: pip install 'fade-rlvr[tasks]'"


def tagged(text: str) -> str | None:
    """The text between the last <answer> and the </answer> after it; None without both.

    >>> tagged("<answer>3</answer>, no: <answer>\\n4 </answer>"), tagged("<answer>3")
    ('4', None)
    """
    before, closing, _ = text.rpartition("</answer>")
    _, opening, answer = before.rpartition("<answer>")
    return answer.partition("</answer>")[0].strip() if closing and opening else None


class GymReward:
    """Verifier of generated problems. Starting it runs a self-test; close() ends its worker."""

    def __init__(self, reward: Reward):
        self.threshold, self.scorer_error = reward.threshold, reward.scorer_error
        self.counts: Counter[str] = Counter()  # "pass", "fail", "no answer", "timeout", "raised", "lost"
        self._worker = Worker("llm.gym_worker", reward.scorer_seconds, _MISSING)
        try:
            self._selftest()
        except BaseException:
            self.close()
            raise

    def __call__(self, text: str, answer: str) -> float | None:
        """1.0 or 0.0; None where the scorer raised (unless scorer_error is "fail") or could not be asked."""
        given = tagged(text)
        if given is None:
            self.counts["no answer"] += 1
            return 0.0
        said = self._worker.ask({**json.loads(answer), "answer": given})
        if "score" not in said:
            kind = next(k for k in ("lost", "timeout", "raised") if k in said)
            self.counts[kind] += 1
            wrong = kind == "timeout" or (kind == "raised" and self.scorer_error == "fail")
            return 0.0 if wrong else None
        reward = float(said["score"] >= self.threshold)
        self.counts["pass" if reward else "fail"] += 1
        return reward

    def check(self, answer: str, where: str) -> None:
        """Raises InputError where an answer is no generated problem, or the installed package does not know it."""
        try:
            row = json.loads(answer)
        except ValueError:
            row = None
        if not isinstance(row, dict) or set(row) != {"gym", "config", "entry"} or not isinstance(row["config"], dict):
            raise InputError(f"{where}: is no generated problem (fade-llm data reasoning-gym writes them)")
        said = self._worker.ask({**row, "answer": None})
        if not said.get("known"):
            raise InputError(f"{where}: {said.get('raised', 'the problem is not whole')}")

    def _selftest(self) -> None:
        entry = {"d": [["question", "1 + 1?"], ["answer", "2"], ["metadata", {"d": []}]]}
        problem = json.dumps({"gym": "chain_sum", "config": {}, "entry": entry})
        for text, expected in (("<answer>2</answer>", 1.0), ("<answer>3</answer>", 0.0), ("2", 0.0)):
            if (got := self(text, problem)) != expected:
                raise InputError(f"self-test of the gym reward: {text!r} against '2' gave {got}, expected {expected}")
        self.counts.clear()

    def close(self) -> None:
        self._worker.stop()
