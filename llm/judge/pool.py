"""Slots in which programs are judged side by side, and what came of it, counted."""

import os
import queue
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

from fade_sim.errors import InputError
from llm.judge import sandbox, seccomp
from llm.judge.forms import Slot, judge
from llm.judge.limits import Limits, Verdict
from llm.judge.problems import Problem


class Judge:
    """Judges programs, `slots` at a time. Starting it runs the self-test; without isolation it must be asked for."""

    def __init__(self, limits: Limits | None = None, slots: int = 0, *, unsafe_local: bool = False, retries: int = 2):
        self.limits, self.isolate = limits or Limits(), not unsafe_local
        self.slots, self.retries = slots or os.cpu_count() or 1, retries
        self.counts: Counter[str] = Counter()  # verdicts by kind, and "retries"
        self._free: queue.Queue[int] = queue.Queue()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Judge":
        from llm.judge.selftest import selftest

        if self.isolate:
            sandbox.find_bwrap()
            if not seccomp.supported():
                raise InputError("the judge has no system-call filter for this machine's processor: --unsafe-local "
                                 "runs programs without isolation")
        self._free = queue.Queue()
        for number in range(self.slots):
            self._free.put(number)
        self._pool = ThreadPoolExecutor(self.slots, thread_name_prefix="judge")
        try:
            selftest(self)
        except BaseException:
            self.close()
            raise
        self.counts.clear()
        return self

    def __exit__(self, *error) -> None:
        self.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def submit(self, problem: Problem, source: str) -> "Future[Verdict]":
        """The verdict to come of one program."""
        if self._pool is None:
            raise InputError("the judge is not running: use it in a `with` statement")
        return self._pool.submit(self._judge, problem, source)

    def one(self, problem: Problem, source: str) -> Verdict:
        return self.many([(problem, source)])[0]

    def many(self, jobs: Iterable[tuple[Problem, str]], done: Callable[[], None] | None = None) -> list[Verdict]:
        """Verdicts in the order of the jobs. `done` is called after each, in whatever order they come."""
        futures = [self.submit(*job) for job in jobs]
        for _ in as_completed(futures) if done is not None else ():
            done()
        verdicts = [future.result() for future in futures]
        for verdict in verdicts:
            self.counts[verdict.kind] += 1
            self.counts["retries"] += verdict.retries
        return verdicts

    def _judge(self, problem: Problem, source: str) -> Verdict:
        number = self._free.get()
        try:
            return judge(problem, source, Slot(number, self.limits, self.isolate, self.retries))
        finally:
            self._free.put(number)
