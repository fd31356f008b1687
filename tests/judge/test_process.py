"""One process: fed through real pipes, limited, and certainly gone afterwards."""

import time

import pytest
from needs import needs_bwrap

from llm.judge.limits import Limits
from llm.judge.process import run

pytestmark = needs_bwrap
SHORT = Limits(cpu_seconds=0.6, wall_seconds=1.2, memory_mb=300)
BUSY = SHORT._replace(wall_seconds=40)  # on a busy machine .6 s of CPU take longer than 1.2 s


def stdin_run(source, stdin=b"", limits=SHORT):
    return run({"form": "stdin", "source": source}, limits, 0, stdin=stdin)


def test_a_program_reads_its_input_and_prints():
    got = stdin_run("print(int(input()) + 1)", b"4\n")
    assert (got.stdout, got.code, got.killed, got.lost) == (b"5\n", 0, "", "")


def test_input_larger_than_a_pipe_and_unread_input():
    big = b"7 " * 2_000_000
    assert stdin_run("print(len(input().split()))", big).stdout == b"2000000\n"
    assert stdin_run("print(1)", big).stdout == b"1\n"


@pytest.mark.parametrize(("source", "killed", "code"), [
    ("while True: pass", "cpu", None),
    ("import time; time.sleep(60)", "wall", None),
    ("x = bytearray(10**9)", "", 86),
    ("print('x' * 10**8)", "output", None),
    ("import sys; sys.exit(3)", "", 3),
    ("1 / 0", "", 1),
    ("import os; os.abort()", "", 134),
])
def test_ends(source, killed, code):
    got = stdin_run(source, limits=SHORT if killed == "wall" else BUSY)
    assert (got.killed, got.code, got.lost) == (killed, code, "") and got.ready
    assert got.seconds < 30  # nobody waited for the wall limit, or the sixty seconds of sleep


def test_memory_is_counted_over_all_processes():
    """Ten children of 80 MB each, none above the limit of a process, are above it together."""
    source = ("import os, time\nfor _ in range(10):\n    if os.fork() == 0:\n        x = b'x' * (80 << 20)\n"
              "        time.sleep(30)\ntime.sleep(30)")
    assert stdin_run(source).killed == "memory"


def test_a_limit_below_a_second_is_kept():
    """A timer in whole seconds would be off: int(.5) is 0."""
    began = time.monotonic()
    got = stdin_run("while True: pass", limits=BUSY._replace(cpu_seconds=0.5))
    assert got.killed == "cpu" and got.seconds > 0.4 and time.monotonic() - began < 30
    got = stdin_run("import time; time.sleep(60)", limits=SHORT._replace(wall_seconds=0.5))
    assert got.killed == "wall" and 0.4 < got.seconds < 30
