"""CodeContests (DeepMind): Parquet of the data set's page, or JSON of its repository's own converter.

Fields as in contest_problem.proto of github.com/google-deepmind/code_contests (Apache-2.0; the data CC BY 4.0):
public, private and generated tests, each {"input": [...], "output": [...]} in Parquet or a list of
{"input", "output"} in JSON; `source` a number of the enum; no checkers and no dates.
"""

from collections.abc import Iterator

from fade_sim.errors import InputError
from llm.datasets import prompts
from llm.datasets.cases import Ask, Dropped, Found, refuse_wording, stdin, text, tolerance

_TESTS = ("public_tests", "private_tests", "generated_tests")
COLUMNS = ("name", "description", *_TESTS, "source", "time_limit", "input_file", "output_file",
           "is_description_translated")
_SITES = ("unknown", "codechef", "codeforces", "hackerearth", "codejam", "", "atcoder", "aizu")
LIMIT = 6  # seconds of CPU that reward.cpu_seconds allows by default


def convert(row: dict, where: str, ask: Ask) -> Found:
    """A problem on standard input and output. Raises Dropped, InputError."""
    statement = text(row, "description", where)
    for key in ("input_file", "output_file"):
        if text(row, key, where, optional=True) not in ("", "stdin", "stdout"):
            raise Dropped("reads or writes a file")
    refuse_wording(statement, ask)
    pairs = [pair for key in _TESTS for pair in _pairs(row.get(key), key, where)]
    answer = stdin(pairs, ask, tolerance=tolerance(statement, (output for _, output in pairs)))
    notes = ["a description that was translated by machine"] * (row.get("is_description_translated") is True)
    notes += ["pictures that the text leaves out"] * ("<image>" in statement)
    notes += [f"a time limit above {LIMIT} s"] * (_seconds(row.get("time_limit"), where) > LIMIT)
    notes += ["a tolerance, read from the statement"] * ("tolerance" in answer)
    return Found(prompts.program(statement), answer, _site(row.get("source"), where), tests=len(answer["tests"]),
                 notes=tuple(notes))


def _pairs(tests, key: str, where: str) -> Iterator[tuple[str, str]]:
    """(input, output) of either layout; None: there are none."""
    if isinstance(tests, dict):
        ours, theirs = tests.get("input"), tests.get("output")
        if not isinstance(ours, list) or not isinstance(theirs, list) or len(ours) != len(theirs):
            raise InputError(f"{where}: {key} needs two lists of one length, 'input' and 'output'")
        tests = [{"input": a, "output": b} for a, b in zip(ours, theirs, strict=True)]
    if not isinstance(tests, list | None):
        raise InputError(f"{where}: {key} is {tests!r:.40}, expected tests")
    for i, test in enumerate(tests or ()):
        pair = tuple(test.get(k) for k in ("input", "output")) if isinstance(test, dict) else ()
        if not pair or not all(isinstance(v, str) for v in pair):
            raise InputError(f"{where}: {key}: test {i} has no texts 'input' and 'output'")
        yield pair


def _site(source, where: str) -> str:
    if isinstance(source, str):
        return source.lower() or "unknown"
    if source is None:
        return "unknown"
    if isinstance(source, bool) or not isinstance(source, int) or not 0 <= source < len(_SITES):
        raise InputError(f"{where}: source is {source!r:.40}, expected a number from 0 to {len(_SITES) - 1}")
    return _SITES[source] or "unknown"


def _seconds(limit, where: str) -> float:
    """Of {"seconds", "nanos"}, or of the text that the converter writes: 'seconds: 2 nanos: 500000000'."""
    if isinstance(limit, str):
        words = limit.replace(":", " ").split()
        limit = dict(zip(words[::2], words[1::2], strict=False))
    if limit is None:
        return 0.0
    try:
        return float(limit.get("seconds") or 0) + float(limit.get("nanos") or 0) / 1e9
    except (AttributeError, ValueError, TypeError):
        raise InputError(f"{where}: time_limit is {limit!r:.60}, expected seconds and nanos") from None
