"""Verifiers: the text of an answer and the right answer in, reward 0 or 1 out."""

import re
from collections.abc import Callable

from fade_sim.advantage import load_function
from fade_sim.errors import InputError, nearest

Verifier = Callable[[str, str], float]

_NUMBER = re.compile(r"\s*([+-]?)0*([0-9]+)\s*", re.ASCII)


def integer(text: str, answer: str) -> float:
    """1 if the whole text is the integer `answer`, in any spelling (sign, leading zeros, blanks around it).

    >>> integer("+007", "7"), integer("7 apples", "7")
    (1.0, 0.0)
    """
    match = _NUMBER.fullmatch(text)
    return float(match is not None and int(match[1] + match[2]) == int(answer))


def exact(text: str, answer: str) -> float:
    """1 if the texts are equal but for blanks at the ends."""
    return float(text.strip() == answer.strip())


VERIFIERS: dict[str, Verifier] = {"integer": integer, "exact": exact}


def make_verifier(name: str) -> Verifier:
    """A verifier by name, or `module:function` of (text, answer), looked up from the current folder."""
    if ":" in name:
        return load_function(name)
    if name not in VERIFIERS:
        raise InputError(f"unknown reward.name {name!r}{nearest(name, [*VERIFIERS, 'module:function'])}")
    return VERIFIERS[name]


def judge(verifier: Verifier, texts: list[str], answers: list[str], finished: list[bool]) -> list[float]:
    """Reward of each answer. An answer cut off at the length limit is a failure.

    Raises InputError where the verifier returns something else than 0 or 1: nothing turns into reward 0 in silence.
    """
    out = []
    for text, answer, done in zip(texts, answers, finished, strict=True):
        reward = verifier(text, answer) if done else 0.0
        if reward not in (0, 1):
            raise InputError(f"verifier returned {reward!r} for answer {text!r}, expected 0 or 1")
        out.append(float(reward))
    return out
