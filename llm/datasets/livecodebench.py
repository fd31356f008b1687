"""LiveCodeBench, code generation: test.jsonl to test6.jsonl of its page (v1 to v6), or Parquet made of them.

Each file holds the problems its version added; release_v6 is all six of them. Fields as in
lcb_runner/benchmarks/code_generation.py of github.com/LiveCodeBench/LiveCodeBench (MIT): public tests are JSON
text, private ones JSON text or base64 of zlib of a pickle of JSON text (see pickled.py); `metadata` JSON text
with "func_name" where a function is called, whose tests are a line of JSON per argument.
"""

import re
from datetime import date as Date
from datetime import datetime

from fade_sim.errors import InputError
from llm.datasets import prompts
from llm.datasets.cases import Ask, Dropped, Found, call, day, refuse_wording, stdin, text
from llm.datasets.pickled import unpack
from llm.judge.problems import parse_json

COLUMNS = ("question_title", "question_content", "question_id", "contest_date", "starter_code", "difficulty",
           "platform", "public_test_cases", "private_test_cases", "metadata")
# What its harness imports in front of every program (lcb_runner/evaluation/testing_util.py).
_MODULES = ("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
            "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing")
PREFIX = "".join([*(f"from {name} import *\n" for name in _MODULES),
                  f"import {', '.join(m for m in _MODULES if m not in ('builtins', 'typing'))}\n",
                  "sys.setrecursionlimit(50000)\n"])
# Its ERRATA.md: problems whose recorded tests are not what the problem asks.
_ERRATA = {"interactive": ("abc337_e", "abc355_e"), "wrong tests, says its errata": ("abc350_c",),
           "several right outputs": ("abc311_c", "abc326_d", "abc327_b", "abc333_e", "abc343_e", "abc362_c",
                                     "find-words-containing-character", "find-the-peaks",
                                     "generate-binary-strings-without-adjacent-zeros")}


def date(row: dict, where: str) -> Date:
    """The day of the contest."""
    given = row.get("contest_date")
    return given.date() if isinstance(given, datetime) else day(text(row, "contest_date", where), where)


def convert(row: dict, where: str, ask: Ask) -> Found:
    """A problem on standard input and output, or of a method. Raises Dropped, InputError."""
    statement, name = text(row, "question_content", where), text(row, "question_id", where)
    title = re.sub(r"[^a-z0-9]+", "-", text(row, "question_title", where, optional=True).lower()).strip("-")
    for reason, names in _ERRATA.items():
        if not ask.keep_doubtful and (name in names or title in names):
            raise Dropped(reason)
    refuse_wording(statement, ask)
    entry = _object(row.get("metadata") or "{}", where).get("func_name")
    tests = [*_tests(row, "public_test_cases", where), *_tests(row, "private_test_cases", where)]
    kinds = {test["testtype"] for test in tests}
    if kinds - {"functional" if entry else "stdin"}:
        raise InputError(f"{where}: testtype is {sorted(kinds)} where func_name is {entry!r}")
    skill = " ".join(filter(None, (text(row, key, where, optional=True) for key in ("platform", "difficulty"))))
    if entry is None:
        answer = stdin([(test["input"], test["output"]) for test in tests], ask, PREFIX)
        prompt = prompts.program(statement)
    else:
        pairs = [([_value(line, where) for line in test["input"].split("\n")], _value(test["output"], where))
                 for test in tests]
        answer = call(entry, pairs, ask, PREFIX)
        prompt = prompts.function(statement, text(row, "starter_code", where))
    return Found(prompt, answer, skill or "unknown", name, tests=len(answer["tests"]))


def _tests(row: dict, key: str, where: str) -> list[dict]:
    """Tests under a key, in any of its layouts; a list where a tool has read the JSON already."""
    given = row.get(key)
    if not isinstance(given, list):
        given = text(row, key, where, optional=True).strip()
        try:
            given = parse_json(given if given[:1] == "[" else unpack(given)) if given else []
        except ValueError as error:
            raise InputError(f"{where}: {key}: {error}") from None
    tests = given
    for i, test in enumerate(tests if isinstance(tests, list) else [None]):
        if not isinstance(test, dict) or not all(isinstance(test.get(k), str) for k in ("input", "output", "testtype")):
            raise InputError(f"{where}: {key}: test {i} has no texts 'input', 'output' and 'testtype'")
    return tests


def _object(given, where: str) -> dict:
    value = _value(given, f"{where}: metadata") if isinstance(given, str) else given
    if not isinstance(value, dict):
        raise InputError(f"{where}: metadata is {given!r:.40}, expected an object")
    return value


def _value(given: str, where: str):
    try:
        return parse_json(given)
    except ValueError as error:
        raise InputError(f"{where}: {given!r:.40} is not JSON ({error})") from None
