"""How things are timed: round-robin in one process, CPU time, ratios within a round."""

import importlib.metadata
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
QUIET = 0.2  # load average below which a ratio of wall times means something


class Timing(NamedTuple):
    """Seconds per call, one entry per round."""

    cpu: list[float]
    wall: list[float]


@dataclass
class Row:
    """One ratio of the table."""

    section: str
    what: str
    ratios: list[float]  # one per round
    goal: float | None = None
    floor: float | None = None  # must hold
    more_is_better: bool = False
    note: str = ""  # times beside the ratio
    unit: str = ""  # of what is no ratio
    judged: bool = field(default=True)  # False: the machine was too busy for this one

    @property
    def median(self) -> float:
        return median(self.ratios)

    @property
    def mark(self) -> str:
        """ok, below goal, below floor; nothing without a goal."""
        if self.goal is None:
            return ""
        if not self.judged:
            return "not judged"
        sign = 1 if self.more_is_better else -1
        if sign * self.median >= sign * self.goal:
            return "ok"
        return "below goal" if sign * self.median >= sign * self.floor else "below floor"


def one_thread() -> None:
    """Hold BLAS, OpenMP and XLA at one thread; before any of them is imported."""
    for name in THREADS:
        os.environ[name] = "1"


def interleave(cells: dict[str, Callable[[], object]], rounds: int, seconds: float) -> dict[str, Timing]:
    """Time every cell in every round, about `seconds` each; the first call of a cell is not timed."""
    repeats = {}
    for name, call in cells.items():
        call()  # compiles, fills caches
        began = time.perf_counter()
        call()
        repeats[name] = max(1, math.ceil(seconds / max(time.perf_counter() - began, 1e-9)))
    timings = {name: Timing([], []) for name in cells}
    for _ in range(rounds):
        for name, call in cells.items():
            cpu, wall = time.process_time(), time.perf_counter()
            for _ in range(repeats[name]):
                call()
            timings[name].cpu.append((time.process_time() - cpu) / repeats[name])
            timings[name].wall.append((time.perf_counter() - wall) / repeats[name])
    return timings


def ratios(over: Timing, under: Timing) -> list[float]:
    """CPU time of one over that of the other, round by round."""
    return [a / b for a, b in zip(over.cpu, under.cpu, strict=True)]


def said(timing: Timing, calls: int = 1) -> str:
    """CPU time per call and how much wall time went by meanwhile."""
    cpu = median(timing.cpu) / calls
    unit, scale = ("us", 1e6) if cpu < 1e-3 else ("ms", 1e3) if cpu < 1 else ("s", 1.0)
    return f"{cpu * scale:.3g} {unit} CPU, wall {median(timing.wall) / median(timing.cpu):.2f} x"


def blas() -> str:
    """Library and processor-specific code that NumPy's matrix products run."""
    from threadpoolctl import threadpool_info

    found = {f"{one['internal_api']} {one['version']} ({one.get('architecture', '?')})" for one in threadpool_info()
             if one["user_api"] == "blas"}
    return ", ".join(sorted(found)) or "unknown"


def load() -> float:
    """Load average of the last minute; NaN where there is none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan


def busy() -> Callable[[], float]:
    """Call the result to learn how many cores others kept busy since now; NaN where /proc/stat is missing."""

    def used() -> float:
        try:
            ticks = [int(x) for x in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        except OSError:
            return math.nan
        idle = ticks[3] + ticks[4]
        return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - time.process_time()

    since, before = time.perf_counter(), used()
    return lambda: max(used() - before, 0.0) / (time.perf_counter() - since)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine() -> str:
    """Processor, cores, memory, system."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields = dict(line.split(":", 1) for line in cpuinfo.read_text().split("\n\n")[0].splitlines() if ":" in line)
        fields = {key.strip(): value.strip() for key, value in fields.items()}
        wide = [name for name in ("avx512f", "avx2") if name in fields.get("flags", "").split()][:1]
        model = " ".join([fields.get("model name", model), *(f"({name})" for name in wide)])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else math.nan
    return f"{model}, {cores()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def versions() -> str:
    """Of everything that is timed."""
    found = [f"Python {platform.python_version()}"]
    for name in ("numpy", "numba", "llvmlite", "scipy", "torch", "jax"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def commit() -> str:
    """Short hash of the source, with a + where files differ from it."""
    root = Path(__file__).resolve().parent
    try:
        name, changed = (subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=True).stdout
                         for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "-uno"]))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.strip() + ("+" if changed.strip() else "")
