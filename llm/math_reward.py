"""The reward of a mathematical answer: in the last box, and equal to the right one.

Compared in this order: as numbers, exactly; as text; as expressions (math-verify, in a process of its
own). Where both are numbers the first decides. An answer that is a number must be one: 12+5 is not 17.
"""

import json
import os
import re
import selectors
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress

from fade_sim.errors import InputError
from llm.math_answer import answer_of, bold, clean, last_box, number
from llm.settings import Reward

_START = 60.0  # seconds for the worker to import its libraries
_LONGEST = 400  # characters of an expression: longer ones are no answer
# What LaTeX mathematics is written in. No quotes, underscores in pairs or statements: math-verify never sees them.
# Possessive, so that no text makes the search go back and forth.
_LATEX = re.compile(r"(?:[A-Za-z0-9\s+\-*/^=<>()\[\]{}|,.:!&%]|\\[A-Za-z]++|\\[{}\\,;:!|%$ ]|_(?!_)|[\u03b1-\u03c9])++")


class MathReward:
    """Verifier of mathematical answers. Starting it runs a self-test; close() ends its worker."""

    def __init__(self, reward: Reward):
        self.reward = reward
        self.counts: Counter[str] = Counter()  # of symbolic comparisons: "same", "different", "timeout", "lost"
        self._worker: Worker | None = Worker(reward.symbolic_seconds) if reward.symbolic else None
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
        verdict = self._worker.compare(gold, given)
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


class Worker:
    """The process that compares expressions, started again when a comparison had to be ended."""

    def __init__(self, seconds: float):
        self.seconds, self.lock = seconds, threading.Lock()
        self.process: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        """Raises InputError where math-verify is missing or does not start."""
        kept = ("PATH", "PYTHONPATH", "HOME", "LANG", "VIRTUAL_ENV")
        environment = {k: v for k, v in os.environ.items() if k in kept}
        self.process = subprocess.Popen([sys.executable, "-m", "llm.math_worker"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
                                        start_new_session=True)
        said = self._read(_START)
        if said is None or "ready" not in said:
            self.stop()
            if said is not None and "missing" in said:
                raise InputError("reward.symbolic needs the package math-verify: pip install 'fade-rlvr[tasks]', or "
                                 "set reward.symbolic = false")
            raise InputError("the process that runs math-verify did not start")

    def compare(self, gold: str, answer: str) -> str:
        """"same", "different", "timeout" (the expression's own doing, as is a crash), or "lost" (the worker is)."""
        with self.lock:
            for _ in range(2):
                try:
                    if self.process is None:
                        self.start()
                    self.process.stdin.write(json.dumps({"gold": gold, "answer": answer}).encode() + b"\n")
                    self.process.stdin.flush()
                except (OSError, InputError):  # it died between two comparisons
                    self.stop()
                    continue
                said = self._read(self.seconds)
                if said is None or "same" not in said:
                    self.stop()
                    return "timeout"
                return "same" if said["same"] else "different"
            return "lost"

    def _read(self, seconds: float) -> dict | None:
        """The next line, or None: too late, or the process has ended. It writes whole lines."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        try:
            return json.loads(self.process.stdout.readline())
        except ValueError:
            return None

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                with suppress(OSError):  # what could not be written is lost with it
                    pipe.close()
            self.process = None
