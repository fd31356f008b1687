"""The table of ratios, on the terminal and as a Markdown file."""

import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import timing
from benchmarks.checks import Check
from benchmarks.timing import Row
from fade_sim import store

COLUMNS = ("", "ratio", "min .. max", "goal", "floor", "", "measured")
METHOD = (
    "Process CPU time on one thread, everything in one process, round-robin; compilation and the first call are not "
    "timed. The ratio is the median over rounds of the ratio within a round; \"a / b\" is the time of a over that of "
    "b. Beside it: CPU time, and wall time over CPU time. Float64 unless f32 is said; seed 0. Table policy: FADE, "
    "lr 0, lr_table .25, {shapes} steps from the same untrained start. The contenders take every prompt once per "
    "step, the kernel draws prompts with replacement as `fade-sim run` does: that favours the contenders."
)


class Report(NamedTuple):
    """Everything that a run found out."""

    rows: list[Row]
    checks: list[Check]
    said: list[str]
    rounds: int
    seconds: float | None  # per cell and round; None where a cell is a process that runs to its end
    load_before: float
    load_after: float
    began: float
    title: str = "Speed"
    method: str | None = None  # how it was timed, where that is not METHOD


def console(stderr: bool = False) -> Console:
    wide = Console(stderr=stderr, highlight=False, markup=False)
    return wide if stderr or wide.is_terminal else Console(highlight=False, markup=False, width=170)


def heading(found: Report) -> list[str]:
    """Machine, versions, load, method."""
    date = time.strftime("%Y-%m-%d", time.gmtime(found.began))
    return [
        f"{date}, commit {timing.commit()}, {timing.machine()}",
        timing.versions() + f"; BLAS {timing.blas()}",
        f"load {found.load_before:.2f} at the start, {found.load_after:.2f} at the end (this run is 1 of it); "
        f"{found.rounds} rounds" + (f" of about {found.seconds:g} s per cell" if found.seconds else ""),
    ]


def method(found: Report) -> str:
    if found.method is not None:
        return found.method
    from benchmarks.problem import SHAPES

    return METHOD.format(shapes=", ".join(f"{name} {shape}: the first {shape.steps}" for name, shape in SHAPES.items()))


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table."""

    def number(x: float | None) -> str:
        return "" if x is None else f"{x:.3g}{row.unit}"

    sign = "at least " if row.more_is_better else "at most "
    return (row.what, number(row.median), f"{min(row.ratios):.3g} .. {max(row.ratios):.3g}",
            sign + number(row.goal) if row.goal is not None else "", number(row.floor), row.mark, row.note)


def show(found: Report) -> None:
    """Print it."""
    out = console()
    for line in heading(found):
        out.print(line, soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if 1 <= i <= 4 else "left", no_wrap=1 <= i <= 5)
    section = None
    for row in found.rows:
        if section not in (None, row.section):
            table.add_row()
        section = row.section
        table.add_row(*cells(row))
    out.print(table)
    out.print(method(found), soft_wrap=True)
    out.print(f"{len(found.checks)} checks passed before the timing", soft_wrap=True)


def write(found: Report, path: Path) -> None:
    """The same as Markdown, with the checks."""
    lines = [f"# {found.title}", "", *(f"{line}  " for line in heading(found)), "", method(found), ""]
    lines += ["| " + " | ".join(COLUMNS) + " |", "|---|--:|--:|--:|--:|---|---|"]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in found.rows]
    if found.said:
        lines += ["", *(f"- {line}" for line in found.said)]
    lines += ["", "Checked before the timing:", "", "| check | found |", "|---|---|"]
    lines += [f"| {check.what} | {check.found} |" for check in found.checks]
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_atomic(path, ("\n".join(lines) + "\n").encode())
