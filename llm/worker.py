"""A process apart that answers questions: a JSON line in, a JSON line out, ended when one takes too long."""

import json
import os
import selectors
import subprocess
import sys
import threading
from contextlib import suppress

from fade_sim.errors import InputError

_START = 60.0  # seconds to import libraries
_KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "VIRTUAL_ENV")  # of the environment


class Worker:
    """A module of ours in its own process, started again after a question that had to be ended.

    It says {"ready": true} or {"missing": true} first, then one object per question.
    """

    def __init__(self, module: str, seconds: float, missing: str):
        self.module, self.seconds, self.missing = module, seconds, missing
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None
        self.start()

    def start(self) -> None:
        """Raises InputError, `missing`, where its package is not installed, or where it does not start."""
        self.process = subprocess.Popen([sys.executable, "-m", self.module], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        env={k: v for k, v in os.environ.items() if k in _KEPT}, start_new_session=True)
        said = self._read(_START)
        if said is None or "ready" not in said:
            self.stop()
            raise InputError(self.missing if said is not None and "missing" in said else
                             f"the process {self.module} did not start")

    def ask(self, question: dict) -> dict:
        """Its answer; {"timeout": true}: too late, or it ended, by the question's doing; {"lost": true}: it is gone."""
        with self.lock:
            for _ in range(2):
                try:
                    if self.process is None:
                        self.start()
                    self.process.stdin.write(json.dumps(question).encode() + b"\n")
                    self.process.stdin.flush()
                except (OSError, InputError):  # it died between two questions
                    self.stop()
                    continue
                said = self._read(self.seconds)
                if said is None:
                    self.stop()
                    return {"timeout": True}
                return said
            return {"lost": True}

    def _read(self, seconds: float) -> dict | None:
        """The next line, or None: too late, or the process has ended. It writes whole lines."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(seconds):
                return None
        try:
            return json.loads(self.process.stdout.readline())
        except ValueError:
            return None

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                with suppress(OSError):  # what could not be written is lost with it
                    pipe.close()
            self.process = None
