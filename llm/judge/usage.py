"""CPU time, memory and waiting time of a process and all below it, from /proc."""

import os
from typing import NamedTuple

_CLOCK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    cpu: float  # seconds, of living processes and of those they waited for
    memory: int  # resident bytes
    waited: float  # seconds ready to run without a CPU, of the one that waited longest; 0 where Linux does not say


def of_tree(pid: int) -> Usage:
    """Usage of the process and everything below it. A process that ends meanwhile counts for nothing."""
    cpu, pages, waited, todo = 0, 0, 0, [pid]
    while todo:
        one = todo.pop()
        try:
            fields = _read(f"/proc/{one}/stat").rpartition(")")[2].split()
            cpu += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
            pages += int(_read(f"/proc/{one}/statm").split()[1])
            for task in os.listdir(f"/proc/{one}/task"):
                todo += map(int, _read(f"/proc/{one}/task/{task}/children").split())
            waited = max(waited, int(_read(f"/proc/{one}/schedstat").split()[1]))
        except (OSError, IndexError, ValueError):
            continue
    return Usage(cpu / _CLOCK, pages * _PAGE, waited / 1e9)


def _read(path: str) -> str:
    with open(path) as f:
        return f.read()
