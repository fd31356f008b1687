"""`fade-llm judge FILE`: a person's own programs on their problems, as a table."""

import json
import sys
from importlib import resources
from pathlib import Path
from typing import NamedTuple, get_args

from fade_sim.errors import InputError
from llm.judge.compare import shown
from llm.judge.limits import Kind, Limits, Verdict
from llm.judge.pool import Judge
from llm.judge.problems import Problem, parse, parse_json
from llm.waiting import bar


class Entry(NamedTuple):
    """A program and the problem it should solve."""

    name: str
    problem: Problem
    source: str


def read(path: Path) -> list[Entry]:
    """JSONL: a problem a line (see llm.judge.problems) with "solution", a program, or "solutions", a list of them.

    Raises InputError naming the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    out = []
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}: line {i}"
        try:
            row = parse_json(line)
        except ValueError as error:
            raise InputError(f"{where}: is not JSON ({error})") from None
        if not isinstance(row, dict):
            raise InputError(f"{where}: is not an object")
        given = [row.pop(key) for key in ("solution", "solutions") if key in row]
        programs = given[0] if given and isinstance(given[0], list) else given
        if len(given) != 1 or not programs or not all(isinstance(p, str) for p in programs):
            raise InputError(f"{where}: needs 'solution', a program, or 'solutions', a list of programs")
        problem = parse(row, where)
        name = problem.id or f"line {i}"
        out += [Entry(name if len(programs) == 1 else f"{name} #{k}", problem, p) for k, p in enumerate(programs, 1)]
    if not out:
        raise InputError(f"{path}: has no problems")
    return out


def run(path: Path, limits: Limits, slots: int, *, unsafe_local: bool, dry_run: bool, out: str | None) -> int:
    """Print the report; 0: every program passes, 1: one does not, 2 (InputError) if they cannot be judged."""
    if limits.wall_seconds < limits.cpu_seconds:
        raise InputError(f"--wall-seconds is {limits.wall_seconds:g}, expected at least --cpu-seconds, "
                         f"{limits.cpu_seconds:g}")
    example = Path(str(resources.files("llm.judge") / "example.jsonl"))
    entries = read(example if str(path) == "example" and not path.exists() else path)
    judge = Judge(limits, slots, unsafe_local=unsafe_local)
    tests = sum(entry.problem.size for entry in entries)
    print(f"{len(entries)} programs, {tests} tests, {judge.slots} at a time; per test {limits.cpu_seconds:g} s of CPU, "
          f"{limits.wall_seconds:g} s, {limits.memory_mb} MB, {limits.processes} processes; "
          f"{'WITHOUT isolation' if unsafe_local else 'isolated'}")
    if dry_run:
        return 0
    if unsafe_local:
        print("warning: programs run with your rights: they can do what you can", file=sys.stderr)
    with judge:
        with bar("judging", len(entries)) as done:
            verdicts = judge.many([(entry.problem, entry.source) for entry in entries], done)
        counts = judge.counts
    table(entries, verdicts)
    kinds = ", ".join(f"{counts[kind]} {kind}" for kind in get_args(Kind) if counts[kind])
    retried = f"; {counts['retries']} runs repeated" if counts["retries"] else ""
    print(f"{kinds}{retried}")
    if out:
        rows = ({"name": entry.name, **verdict._asdict()} for entry, verdict in zip(entries, verdicts, strict=True))
        Path(out).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if counts["infrastructure"]:
        raise InputError(f"{counts['infrastructure']} programs could not be judged: "
                         + next(v.why for v in verdicts if v.kind == "infrastructure"))
    return int(any(verdict.kind != "pass" for verdict in verdicts))


def table(entries: list[Entry], verdicts: list[Verdict]) -> None:
    """A row per program: verdict, seconds, and the first test that does not pass."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    out = Table(box=None, pad_edge=False)
    for name, side in (("program", "left"), ("verdict", "left"), ("s", "right"), ("test", "right"),
                       ("expected", "left"), ("got", "left")):
        out.add_column(name, justify=side, overflow="fold")
    for entry, v in zip(entries, verdicts, strict=True):
        at = "" if v.test is None else f"{v.test + 1} of {v.tests}"
        got = " | ".join(part for part in (v.got, v.why) if part)
        out.add_row(*(Text(shown(cell, 80)) for cell in (entry.name, v.kind, f"{v.seconds:.2f}", at, v.expected, got)))
    Console(highlight=False, width=None if sys.stdout.isatty() else 140).print(out)
