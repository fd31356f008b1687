"""Tests of a program as an answer object of llm.judge.problems, or the reason why there is none.

Wording is all that most sources say about a checker. It is read on the side of doubt: a problem that
may accept other outputs than the recorded one is dropped, since a right program would be taught to be wrong.
"""

import json
import re
import unicodedata
from collections.abc import Iterable
from datetime import date
from typing import Any, NamedTuple

from fade_sim.errors import InputError
from llm.judge.compare import same_value


class Dropped(Exception):
    """A problem that the judge could not judge rightly; the message is the reason, counted in the summary."""


class Ask(NamedTuple):
    """What a person asked for."""

    tests: int | None = None  # at most so many tests of a problem, the first
    keep_doubtful: bool = False  # also keep what only the wording of its statement speaks against


class Found(NamedTuple):
    """A converted problem."""

    prompt: str
    answer: str | dict
    skill: str
    id: str = ""  # of the source; the second problem of one id is a duplicate
    tests: int = 0
    notes: tuple[str, ...] = ()  # facts that are counted in the summary


def text(row: dict, key: str, where: str, optional: bool = False) -> str:
    """The text of a row under a key. Raises InputError where it is none, or empty and needed."""
    value = row.get(key)
    if optional and value is None:
        return ""
    if not isinstance(value, str) or not (optional or value.strip()):
        known = "" if key in row else f"; the row has: {', '.join(map(str, list(row)[:12]))}"
        raise InputError(f"{where}: {key} is {value!r:.60}, expected a text{known}")
    return value


def day(value: str, where: str) -> date:
    """The day of an ISO date or time. Raises InputError."""
    try:
        return date.fromisoformat(value[:10])
    except ValueError:
        raise InputError(f"{where}: the date is {value!r:.40}, expected YYYY-MM-DD") from None


# --- what a statement says ---------------------------------------------------------------------------

_INTERACTIVE = re.compile(r"\binteractive (?:problem|task)|\bflush (?:the |your )?(?:output|standard output|stdout)|"
                          r"\bfflush\b")
_MANY = r"\b(?:multiple|several|many|more than one|different|various)\b"
_SEVERAL = re.compile("|".join((
    rf"{_MANY}(?! test)[^.]{{0,120}}\b(?:any|arbitrary|either|one of them)\b",  # several solutions, print any of them
    r"\b(?:any|either|one) of (?:them|these|those) (?:(?:is|are|will be|would be|can be) )?(?:accepted|allowed)",
    r"\b(?:print|output|return|report|write|construct) (?:any|an arbitrary)\b(?! number| time)",
    r"\bany (?:valid|correct|possible|suitable|optimal|such) (?:answer|solution|output|one)",
    r"\b(?:print|output|return|report|write|list|display|answers?)\b[^.]{0,100}\bin (?:any|an arbitrary) order",
    r"\bspecial (?:judge|checker)\b",
)))
_ERROR = re.compile(r"\b(?:absolute|relative)\b[^.]{0,40}\b(?:error|difference|precision)|"
                    r"\b(?:error|difference|precision)\b[^.]{0,60}\b(?:absolute|relative|exceed|at most|less than)\b|"
                    r"\bdiffers? (?:from|by)\b[^.]{0,60}\b(?:at most|more than|less than)\b|\bwithin (?:10|1e)\b")
_FRACTION = re.compile(r"\d\.\d")
_POWER = re.compile(r"10\s*(?:\^|\*\*)?\s*\{?\s*\(?\s*[-\u2212\u2013]\s*\{?\s*(\d{1,2})\b|"
                    r"\b1?e-0?(\d{1,2})\b|\b0\.(0*)1\b")  # 10^{-6}, 10 - 6, 1e-6, 0.000001


def refuse_wording(statement: str, ask: Ask) -> None:
    """Raises Dropped where the statement speaks of a dialogue, or of several right outputs."""
    plain = " ".join(statement.casefold().split())
    if ask.keep_doubtful:
        return
    if _INTERACTIVE.search(plain):
        raise Dropped("interactive")
    if _SEVERAL.search(plain):
        raise Dropped("several right outputs")


def tolerance(statement: str, outputs: Iterable) -> float:
    """The error that a statement allows in a number with a fraction; 0 where it speaks of none, or there are none.

    >>> tolerance("Your absolute or relative error must not exceed 10^{-6}.", ["0.5"]), tolerance("Print n.", ["0.5"])
    (1e-06, 0.0)

    Raises Dropped where it allows one that cannot be read.
    """
    plain = " ".join(unicodedata.normalize("NFKC", statement).casefold().replace("$", " ").split())
    spoken = _ERROR.search(plain)
    if spoken is None or not any(_FRACTION.search(str(output)) for output in outputs):
        return 0.0
    power = _POWER.search(plain, max(spoken.start() - 60, 0), spoken.end() + 160)
    if power is None:
        raise Dropped("allows an error that is not understood")
    digits = power[1] or power[2]
    exponent = int(digits) if digits is not None else len(power[3]) + 1
    if not 1 <= exponent <= 18:
        raise Dropped("allows an error that is not understood")
    return float(f"1e-{exponent}")


# --- tests -------------------------------------------------------------------------------------------


def stdin(pairs: Iterable[tuple[str, str]], ask: Ask, prefix: str = "", tolerance: float = 0.0) -> dict:
    """The answer object of (input, output) texts. Raises Dropped."""
    known: dict[str, str] = {}
    for given, expected in pairs:
        if known.setdefault(given, expected).split() != expected.split():
            raise Dropped("one input with two outputs")
    if not known:
        raise Dropped("no tests")
    if not any(output.strip() for output in known.values()):
        raise Dropped("no test expects any output")  # anything would pass
    if not all(encodes(t) for pair in known.items() for t in pair):
        raise Dropped("text that no program can read or print")
    tests = [{"input": given, "output": expected} for given, expected in known.items()][: ask.tests]
    if not any(t["output"].strip() for t in tests):
        raise Dropped("no test expects any output")
    return _answer(tests, prefix=prefix, tolerance=tolerance)


def call(entry: str, pairs: Iterable[tuple[list, Any]], ask: Ask, prefix: str = "", tolerance: float = 0.0) -> dict:
    """The answer object of (arguments, expected value) pairs. Raises Dropped."""
    tests: dict[str, dict] = {}
    for args, expected in pairs:
        test = {"args": args, "expected": expected}
        try:
            written = json.dumps(args), json.dumps(test, ensure_ascii=False)
        except ValueError:  # Python writes no more than 4300 digits
            raise Dropped("an integer that is too long to be written down") from None
        if not encodes(written[1]):
            raise Dropped("text that no program can read or print")
        if not same_value(expected, expected):  # a NaN equals nothing
            raise Dropped("an expected value that nothing equals")
        if not same_value(tests.setdefault(written[0], test)["expected"], expected):
            raise Dropped("one input with two outputs")
    if not tests:
        raise Dropped("no tests")
    kept = list(tests.values())[: ask.tests]
    if all(t["expected"] is None for t in kept):
        raise Dropped("no test expects any output")  # a changed argument, or nothing at all
    return _answer(kept, entry=entry, prefix=prefix, tolerance=tolerance)


def _answer(tests: list[dict], **more) -> dict:
    return {**{k: v for k, v in more.items() if v}, "tests": tests}


def encodes(value: str) -> bool:
    """False for half of a surrogate pair, which is no text outside JSON."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
