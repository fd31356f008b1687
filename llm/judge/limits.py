"""What a program may use, per test, and what it was found to be."""

from typing import Literal, NamedTuple

Kind = Literal["pass", "fail", "timeout", "memory", "crash", "infrastructure"]


class Limits(NamedTuple):
    """Of one test. CPU and wall time are separate: a busy machine uses up the second alone."""

    cpu_seconds: float = 6.0  # of all processes of the program; LiveCodeBench allows 6 s
    wall_seconds: float = 15.0
    memory_mb: int = 1024  # address space of a process, and resident memory of all of them together
    processes: int = 16  # and threads, of the program
    output_kb: int = 8192  # standard output; as much for a returned value
    files_mb: int = 64  # of the program's /tmp, its only writable folder; files there count as memory


class Verdict(NamedTuple):
    """Of a program on the tests of a problem. `infrastructure`: nothing is known about the program."""

    kind: Kind
    seconds: float = 0.0  # wall time over all tests that were run
    test: int | None = None  # index of the first test that did not pass
    tests: int = 0
    expected: str = ""  # of that test, shortened
    got: str = ""
    why: str = ""
    retries: int = 0  # runs that were repeated: lost to the infrastructure, or starved of CPU

    @property
    def reward(self) -> float | None:
        """1 if every test passes, 0 if one does not, None if unknown: such a rollout leaves its group."""
        return None if self.kind == "infrastructure" else float(self.kind == "pass")
