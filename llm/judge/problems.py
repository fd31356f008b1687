"""Problems with unit tests, in one of three forms, as JSON objects.

    stdin   {"tests": [{"input": "4\\n", "output": "5\\n"}]}                   a program, LiveCodeBench style
    call    {"entry": "add", "tests": [{"args": [1, 2], "expected": 3}]}       a function, or method of class Solution
    check   {"entry": "add", "test": "def check(candidate): ...", "setup": ""} HumanEval style

Optional: "id"; "prefix", source in front of every program; "tolerance" of numbers with a fraction. "setup" is
source that the test code needs: it and the tests never meet the program (see inside.py), which is
why a check can compare what a call returns, but not whether it changed its arguments.
"""

import json
import math
from decimal import Decimal
from typing import NamedTuple

from fade_sim.errors import InputError, nearest

_KEYS = ("id", "tests", "entry", "test", "setup", "prefix", "tolerance")


class Problem(NamedTuple):
    """Tests, and how they are put to a program."""

    form: str  # stdin, call or check
    tests: tuple[tuple, ...] = ()  # (input, expected output) or (args, expected value)
    entry: str = ""
    test: str = ""
    setup: str = ""
    prefix: str = ""
    tolerance: float = 0.0
    id: str = ""

    @property
    def size(self) -> int:
        return len(self.tests) or 1


def parse_json(text: str):
    """JSON with integers of any length. Raises ValueError."""
    def integer(digits: str) -> int:
        return int(digits) if len(digits) < 4000 else int(Decimal(digits))  # int() refuses more than 4300

    try:
        return json.loads(text, parse_int=integer)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse(row, where: str) -> Problem:
    """A problem from its JSON object. Raises InputError naming `where` and the key."""
    if not isinstance(row, dict):
        raise InputError(f"{where}: is not an object with 'tests', or with 'entry' and 'test'")
    for key in row:
        if key not in _KEYS:
            raise InputError(f"{where}: unknown key {key!r}{nearest(key, _KEYS)}")
    for key in ("id", "entry", "test", "setup", "prefix"):
        if not isinstance(row.get(key, ""), str):
            raise InputError(f"{where}: {key} is {row[key]!r}, expected a text")
    tolerance = row.get("tolerance", 0.0)
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 <= tolerance < math.inf:
        raise InputError(f"{where}: tolerance is {tolerance!r}, expected a number of at least 0")
    texts = {key: row[key] for key in ("id", "entry", "test", "setup", "prefix") if key in row}
    if "test" in row:
        if "tests" in row or not row.get("entry"):
            raise InputError(f"{where}: 'test' goes with 'entry' and without 'tests'")
        for key in ("setup", "test"):
            try:
                compile(row.get(key, ""), key, "exec", dont_inherit=True)  # read, not run
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise InputError(f"{where}: {key} is not Python ({error})") from None
        return Problem("check", tolerance=float(tolerance), **texts)
    if "setup" in row:
        raise InputError(f"{where}: 'setup' goes with 'test'; source in front of the program is 'prefix'")
    tests = row.get("tests")
    if not isinstance(tests, list) or not tests:  # a problem without tests would be passed by anything
        raise InputError(f"{where}: tests is {tests!r:.40}, expected a list of at least one test")
    form, keys = ("call", ("args", "expected")) if row.get("entry") else ("stdin", ("input", "output"))
    out = []
    for i, test in enumerate(tests):
        if not isinstance(test, dict) or set(test) != set(keys):
            raise InputError(f"{where}: test {i} is not an object of {keys[0]!r} and {keys[1]!r} "
                             f"({'with' if form == 'call' else 'without'} 'entry')")
        one = tuple(test[k] for k in keys)
        if form == "stdin" and not all(isinstance(v, str) for v in one):
            raise InputError(f"{where}: test {i}: input and output must be texts")
        if form == "call" and not isinstance(one[0], list):
            raise InputError(f"{where}: test {i}: args must be a list")
        out.append(one)
    return Problem(form, tuple(out), tolerance=float(tolerance), **texts)
