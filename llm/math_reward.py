"""The reward of a mathematical answer: in the last box, and equal to the right one.

Compared in this order: as numbers, exactly; as text; as expressions (math-verify, in a process of its
own). Where both are numbers the first decides. An answer that is a number must be one: 12+5 is not 17.
"""

import re
from collections import Counter

from fade_sim.errors import InputError
from llm.math_answer import answer_of, bold, clean, last_box, number
from llm.settings import Reward
from llm.worker import Worker

_MISSING = ("reward.symbolic needs the package math-verify: pip install 'fade-rlvr[tasks]', or set "
            "reward.symbolic = false")
_LONGEST = 400  # characters of an expression: longer ones are no answer
# What LaTeX mathematics is written in. No quotes, underscores in pairs or statements: math-verify never sees them.
# Possessive, so that no text makes the search go back and forth.
_LATEX = re.compile(r"(?:[A-Za-z0-9\s+\-*/^=<>()\[\]{}|,.:!&%]|\\[A-Za-z]++|\\[{}\\,;:!|%$ ]|_(?!_)|[\u03b1-\u03c9])++")


class MathReward:
    """Verifier of mathematical answers. Starting it runs a self-test; close() ends its worker."""

    def __init__(self, reward: Reward):
        self.reward = reward
        self.counts: Counter[str] = Counter()  # of symbolic comparisons: "same", "different", "timeout", "lost"
        self._worker: Worker | None = (
            Worker("llm.math_worker", reward.symbolic_seconds, _MISSING) if reward.symbolic else None)
        try:
            self._selftest()
        except BaseException:
            self.close()
            raise

    def __call__(self, text: str, answer: str) -> float | None:
        """1.0 or 0.0; None where the worker could not be started again."""
        given = last_box(text)
        if given is None and self.reward.answer == "box_or_bold":
            given = bold(text)
        if given is None:
            return 0.0
        got = self.equal(given, answer_of(answer))
        return None if got is None else float(got)

    def equal(self, given: str, gold: str) -> bool | None:
        """Is a given answer the right one? None: the worker is gone."""
        given, gold = clean(given), clean(gold)
        ours, theirs = number(gold), number(given)
        if ours is not None and theirs is not None:
            return self._same_number(ours, theirs)
        if given == gold:
            return True
        if self._worker is None or max(len(given), len(gold)) > _LONGEST or not _LATEX.fullmatch(given):
            return False
        said = self._worker.ask({"gold": gold, "answer": given})
        verdict = next((k for k in ("lost", "timeout") if k in said), "same" if said.get("same") else "different")
        self.counts[verdict] += 1
        return None if verdict == "lost" else verdict == "same"

    def _same_number(self, gold, given) -> bool:
        if given.computed and not gold.computed:
            return False
        if gold.value == given.value:
            return True
        tolerance = self.reward.tolerance
        return bool(tolerance) and (gold.decimal or given.decimal) and (
            abs(given.value - gold.value) <= abs(gold.value) * tolerance)

    def check(self, answer: str, where: str) -> None:
        """Raises InputError on a right answer that no text could match, such as one spoilt on its way into the file."""
        bad = next((c for c in answer if ord(c) < 32 and c not in "\n\r"), None)
        if bad is not None:
            raise InputError(f"{where}: {answer!r} holds the control character {bad!r}: LaTeX that lost a backslash, "
                             r"as '\frac' does in JSON or Python without a second one ('\f' is a form feed)")
        if not answer_of(answer):
            raise InputError(f"{where}: {answer!r} holds no answer")

    def _selftest(self) -> None:
        cases = [(r"so \boxed{8}", "8", 1.0), (r"so \boxed{9}", "8", 0.0), ("so 8", "8", 0.0)]
        if self._worker is not None:
            cases += [(r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1.0), (r"\boxed{2\sqrt{3}}", r"\sqrt{8}", 0.0)]
        for text, answer, expected in cases:
            if (got := self(text, answer)) != expected:
                raise InputError(f"self-test of the math reward: {text!r} against {answer!r} gave {got}, "
                                 f"expected {expected}")
        self.counts.clear()

    def close(self) -> None:
        if self._worker is not None:
            self._worker.stop()

