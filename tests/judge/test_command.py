"""fade-llm judge: the file, the report, the exit codes."""

import contextlib
import json
import os
import pty
import subprocess
import sys

import pytest
from needs import needs_bwrap

from llm import cli
from llm.judge.problems import parse

GOOD = {"id": "next", "tests": [{"input": "4\n", "output": "5\n"}, {"input": "9\n", "output": "10\n"}],
        "solution": "print(int(input()) + 1)"}
CALL = {"entry": "add", "tests": [{"args": [1, 2], "expected": 3}], "solution": "def add(a, b): return a * b"}
CHECK = {"id": "he", "entry": "add", "test": "def check(candidate):\n    assert candidate(1, 2) == 3",
         "solutions": ["def add(a, b): return a + b", "def add(a, b): return a - b", "def add(a, b): 1 / 0"]}


def write(tmp_path, *rows):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n\n")
    return str(path)


@needs_bwrap
def test_the_report(tmp_path, capsys):
    file = write(tmp_path, GOOD, {**GOOD, "solution": "print(5)"}, CALL, CHECK)
    assert cli.main(["judge", file, "--json", str(tmp_path / "v")]) == 1
    lines = capsys.readouterr().out.splitlines()
    row = {line.split("  ")[0]: " ".join(line.split()) for line in lines}
    assert "6 programs, 8 tests" in lines[0] and "isolated" in lines[0]
    assert row["line 3"].endswith("1 of 1 3 2 | add(1, 2)") and " fail " in row["line 3"]
    assert row["next"].endswith("2 of 2 10 5") and " pass " in row["he #1"] and "ZeroDivisionError" in row["he #3"]
    assert "assert candidate(1, 2) == 3 -1 | AssertionError" in row["he #2"]
    assert lines[-1] == "2 pass, 3 fail, 1 crash"
    kept = [json.loads(line) for line in (tmp_path / "v").read_text().splitlines()]
    assert [r["kind"] for r in kept] == ["pass", "fail", "fail", "pass", "fail", "crash"]


@needs_bwrap
def test_exit_codes(tmp_path, capsys):
    assert cli.main(["judge", write(tmp_path, GOOD)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 pass"
    broken = {**CHECK, "test": "def chek(candidate): pass"}
    assert cli.main(["judge", write(tmp_path, broken)]) == 2
    assert "the tests do not load" in capsys.readouterr().err


@needs_bwrap
@pytest.mark.parametrize(("terminal", "silent", "shown"), [(True, 0.05, True), (True, 60, False), (False, 0.05, False)])
def test_a_bar_for_a_person_who_waits(tmp_path, terminal, silent, shown):
    """After a while, on standard error, and only where that is a terminal; standard output is the same."""
    slow = {**GOOD, "solution": "import time; time.sleep(.4); print(int(input()) + 1)"}
    code = (f"import sys\nfrom llm import cli\nfrom llm import waiting\nwaiting.SILENT = {silent}\n"
            "sys.exit(cli.main(['judge', sys.argv[1], '--slots', '2']))")
    ours, theirs = pty.openpty() if terminal else os.pipe()
    done = subprocess.run([sys.executable, "-c", code, write(tmp_path, slow, slow)], stdout=subprocess.PIPE,
                          stderr=theirs, text=True, timeout=120)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while data := os.read(ours, 65536):
            seen += data
    os.close(ours)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "2 pass"
    assert (b"judging" in seen and b"2/2" in seen) if shown else seen == b"", seen


def test_a_dry_run_judges_nothing(tmp_path, capsys, monkeypatch):
    from llm.judge import process

    monkeypatch.setattr(process.subprocess, "Popen", None)
    assert cli.main(["judge", write(tmp_path, GOOD, CHECK), "--dry-run", "--cpu-seconds", "0.5", "--slots", "3"]) == 0
    assert "4 programs, 5 tests, 3 at a time; per test 0.5 s of CPU" in capsys.readouterr().out


def test_without_isolation_only_when_asked(tmp_path, capsys):
    """A harmless program of our own: the only ones that are ever run so here."""
    assert cli.main(["judge", write(tmp_path, GOOD), "--unsafe-local"]) == 0
    got = capsys.readouterr()
    assert "WITHOUT isolation" in got.out and "with your rights" in got.err


@pytest.mark.parametrize(("rows", "says"), [
    (["{"], "line 1: is not JSON"), (["3"], "line 1: is not an object"), ([], "has no problems"),
    ([{"tests": GOOD["tests"]}], "needs 'solution'"), ([{**GOOD, "solutions": ["1"]}], "needs 'solution'"),
    ([{**GOOD, "solution": 3}], "needs 'solution'"), ([{**GOOD, "solution": []}], "needs 'solution'"),
    ([GOOD, {**GOOD, "test": "x"}], "line 2: 'test' goes with 'entry' and without 'tests'"),
    ([{**GOOD, "tets": 1}], "unknown key 'tets'; did you mean 'test"), ([{**GOOD, "tests": []}], "at least one test"),
    ([{**GOOD, "tests": [{"input": "1"}]}], "test 0 is not an object of 'input' and 'output' (without 'entry')"),
    ([{**GOOD, "entry": "f"}], "test 0 is not an object of 'args' and 'expected' (with 'entry')"),
    ([{**GOOD, "tests": [{"input": 1, "output": "1"}]}], "input and output must be texts"),
    ([{**CALL, "tests": [{"args": 1, "expected": 1}]}], "args must be a list"),
    ([{**GOOD, "tolerance": -1}], "tolerance is -1"), ([{**GOOD, "tolerance": True}], "tolerance is True"),
    ([{**CHECK, "test": "def check(:"}], "line 1: test is not Python"),
    ([{**GOOD, "setup": "x"}], "'setup' goes with 'test'"), ([{**GOOD, "id": 3}], "id is 3, expected a text"),
    (["[" * 100_000], "line 1: is not JSON"),
])
def test_bad_files_end_in_one_line(tmp_path, capsys, rows, says):
    assert cli.main(["judge", write(tmp_path, *rows)]) == 2
    err = capsys.readouterr().err.strip()
    assert says in err and err.startswith("fade-llm: error:") and "\n" not in err


@pytest.mark.parametrize(("argv", "says"), [
    (["judge", "/nonexistent"], "cannot be read"), (["judge"], "required: file"),
    (["judge", "x", "--cpu-seconds", "0"], "above 0"), (["judge", "x", "--cpu-seconds", "nan"], "above 0"),
    (["judge", "x", "--cpu-seconds", "99"], "--wall-seconds is 15"), (["judge", "x", "--unsafe"], "--unsafe-local"),
])
def test_bad_options_end_in_one_line(capsys, argv, says):
    assert cli.main(argv) == 2
    assert says in capsys.readouterr().err


def test_help_is_immediate():
    code = ("import sys\nfrom llm import cli\ntry:\n    cli.main(['judge', '--help'])\nexcept SystemExit:\n    pass\n"
            "print([m for m in ('numpy', 'torch', 'rich', 'msgspec', 'llm.judge') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().splitlines()[-1] == "[]" and '"solution": "print(int(input()) + 1)"' in done.stdout


def test_long_integers_are_read():
    problem = parse({"entry": "f", "tests": [{"args": [1], "expected": 2}]}, "x")
    assert problem.form == "call" and problem.tests == (([1], 2),)
    from llm.judge.problems import parse_json

    assert parse_json("[" + "7" * 5000 + "]")[0] == (7 * (10**5000 - 1)) // 9
