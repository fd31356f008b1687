"""A judge of programs: unit tests in isolation, a verdict per program.

    with Judge(Limits(), slots=2) as judge:
        verdict = judge.one(problem, "print(int(input()) + 1)")

What is compared never enters a sandbox: a program sees inputs, and its outputs are compared outside.
"""

from llm.judge.limits import Limits, Verdict
from llm.judge.pool import Judge
from llm.judge.problems import Problem, parse

__all__ = ["Judge", "Limits", "Problem", "Verdict", "parse"]
