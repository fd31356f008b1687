"""Verifiers: the text of an answer and the right answer in, reward 0 or 1 out, None where it cannot be told."""

import atexit
import re
from collections.abc import Callable

from fade_sim.advantage import load_function
from fade_sim.errors import InputError, nearest
from llm.settings import Reward

Verifier = Callable[[str, str], float | None]

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


def make_verifier(reward: Reward) -> Verifier:
    """The verifier that the settings name; `module:function` of (text, answer) is looked up from the current folder.

    "code", "math" and "gym" have processes of their own, started and tested here, ended with this process.
    """
    if ":" in reward.name:
        return load_function(reward.name)
    if reward.name == "code":
        from llm.code_reward import CodeReward

        verifier = CodeReward(reward)
    elif reward.name == "math":
        from llm.math_reward import MathReward

        verifier = MathReward(reward)
    elif reward.name == "gym":
        from llm.gym_reward import GymReward

        verifier = GymReward(reward)
    elif reward.name in VERIFIERS:
        return VERIFIERS[reward.name]
    else:
        names = [*VERIFIERS, "code", "math", "gym", "module:function"]
        raise InputError(f"unknown reward.name {reward.name!r}{nearest(reward.name, names)}")
    atexit.register(verifier.close)
    return verifier


def check_answers(verifier: Verifier, answers: list[str]) -> None:
    """Raises InputError where the verifier cannot read a right answer: before a run, not in the middle of it."""
    check = getattr(verifier, "check", None)
    for i, answer in enumerate(answers if check is not None else ()):
        check(answer, f"answer {i + 1}")


def judge(verifier: Verifier, texts: list[str], answers: list[str], finished: list[bool]) -> list[float | None]:
    """Reward of each answer; None: not judged, the rollout leaves its group. Cut off at the length limit: a failure.

    Raises InputError where the verifier returns something else: nothing turns into reward 0 in silence.
    """
    out: list[float | None] = [0.0] * len(texts)
    asked = [i for i, done in enumerate(finished) if done]
    pairs = [(texts[i], answers[i]) for i in asked]
    together = getattr(verifier, "batch", None)
    rewards = together(pairs) if together is not None else [verifier(*pair) for pair in pairs]
    for i, reward in zip(asked, rewards, strict=True):
        if reward is not None and reward not in (0, 1):
            raise InputError(f"verifier returned {reward!r} for answer {texts[i]!r}, expected 0 or 1, or None where it "
                             "cannot tell")
        out[i] = None if reward is None else float(reward)
    return out


class Silence:
    """Says, once, that nothing has been rewarded for a while: a broken verifier looks like a hopeless policy."""

    def __init__(self, steps: int = 20):
        self.left = steps

    def says(self, row: dict) -> str:
        """A line for a person after `steps` steps without a single success from the start of the process, else ""."""
        if "solve_rate" not in row or self.left <= 0:
            return ""
        self.left = 0 if row["solve_rate"] > 0 else self.left - 1
        if self.left or row["solve_rate"] > 0:
            return ""
        return "no rollout has been rewarded so far: is the reward right? (reward.name, the form of the answers)"
