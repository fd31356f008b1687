"""TACO (BAAI): JSONL, JSON, Parquet or the Arrow files of its page; also APPS, which has the same columns.

`input_output` is JSON text of {"inputs", "outputs"} and, for functions, "fn_name", as read by
metrics/testing_util.py of github.com/FlagOpen/TACO (Apache-2.0), which accepts a returned value that equals
the recorded one or its first element: see `_expected`.
"""

from datetime import date as Date

from fade_sim.errors import InputError
from llm.datasets import prompts
from llm.datasets.cases import Ask, Dropped, Found, call, day, refuse_wording, stdin, text, tolerance
from llm.judge.problems import parse_json

COLUMNS = ("question", "input_output", "starter_code", "difficulty", "date", "url")
# What the source's own harness imports before a function that is called.
_PREFIX = ("import sys, time, itertools, collections, math, fractions, random, heapq\n"
           "from itertools import accumulate, product, permutations, combinations\n"
           "from collections import Counter, OrderedDict, deque, defaultdict, ChainMap\n"
           "from functools import lru_cache\nfrom typing import *\nfrom heapq import *\n"
           "from math import sqrt, sin, cos, tan, ceil, fabs, floor, gcd, exp, log, log2\n")


def date(row: dict, where: str) -> Date | None:
    """The day of a problem, where its site told one."""
    given = text(row, "date", where, optional=True)
    return day(given, where) if given.strip() not in ("", "None") else None


def convert(row: dict, where: str, ask: Ask) -> Found:
    """A problem on standard input and output, or of a function. Raises Dropped, InputError."""
    statement = text(row, "question", where)
    tests = text(row, "input_output", where, optional=True)
    skill = (text(row, "difficulty", where, optional=True) or "unknown").lower().removesuffix("_difficulty")
    if not tests.strip():
        raise Dropped("no tests")
    try:
        tests = parse_json(tests)
    except ValueError as error:
        raise InputError(f"{where}: input_output is not JSON ({error})") from None
    ours, theirs = (tests.get(k) if isinstance(tests, dict) else None for k in ("inputs", "outputs"))
    if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
        raise InputError(f"{where}: input_output needs two lists of one length, 'inputs' and 'outputs'")
    refuse_wording(statement, ask)
    entry, starter = tests.get("fn_name"), text(row, "starter_code", where, optional=True)
    if entry is None:
        if "def " in starter:  # rows of GeeksforGeeks: the tests are 'n = 5\narr[] = {1, 2}', for no program to read
            raise Dropped("starter code of a function, tests of a program")
        pairs = [(_lines(a, where), _lines(b, where)) for a, b in zip(ours, theirs, strict=True)]
        answer = stdin(pairs, ask, tolerance=tolerance(statement, theirs))
        prompt = prompts.program(statement)
    else:
        if not isinstance(entry, str) or not entry.isidentifier():
            raise InputError(f"{where}: fn_name is {entry!r:.60}, expected the name of a function")
        if any(map(_lost_keys, (*ours, *theirs))):
            raise Dropped("dictionaries whose keys JSON made texts")
        if not all(isinstance(args, list) for args in ours):
            raise InputError(f"{where}: inputs of the function {entry} must be lists of arguments")
        answer = call(entry, zip(ours, _expected(theirs), strict=True), ask, _PREFIX,
                      tolerance(statement, theirs))
        prompt = prompts.function(statement, starter if starter.strip() else f"# the function is called {entry}")
    notes = ("a tolerance, read from the statement",) * ("tolerance" in answer)
    return Found(prompt, answer, skill, tests=len(answer["tests"]), notes=notes)


def _lines(value, where: str) -> str:
    """A text, or a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: input_output holds {value!r:.40}, expected a text or a list of lines")
    return value


def _expected(outputs: list) -> list:
    """The values that a function must return.

    Most rows put each value in a list of one element, some do not, and no key says which. Wrapped are
    those of a problem whose every output is such a list; a single test could be either, and is dropped.
    """
    if not all(isinstance(value, list) and len(value) == 1 for value in outputs):
        return outputs
    if len(outputs) < 2:
        raise Dropped("one test, and unclear whether its value is in a list")
    return [value[0] for value in outputs]


def _lost_keys(value) -> bool:
    """True where a dictionary has keys of digits: numbers once, since JSON knows texts alone."""
    if isinstance(value, dict):
        return any(k.lstrip("-").isdigit() for k in value) or any(map(_lost_keys, value.values()))
    return isinstance(value, list) and any(map(_lost_keys, value))
