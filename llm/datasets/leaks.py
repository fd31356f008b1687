"""`fade-llm overlap`: problems for evaluation inside a training file, without the instruction they all share."""

import json
import sys
from pathlib import Path

from fade_sim.errors import InputError
from fade_sim.overlap import Copy, copies
from llm.data import Problem, read_problems
from llm.datasets.prompts import statement_of
from llm.judge.compare import shown

SHOWN = 20  # rows of the list


def run(train: Path, tests: list[Path], n: int, share: float, clean: Path | None) -> int:
    """Print what was found; 0: nothing, 1: something. `clean`: the training problems without it, a new file."""
    if clean is not None and clean.exists():
        raise InputError(f"{clean}: already exists")
    if clean is not None and clean.suffix != ".jsonl":
        raise InputError(f"--clean is {str(clean)!r}, expected a .jsonl file")
    ours = read_problems(train)
    statements = [statement_of(p.prompt) for p in ours]
    rows, taken = [], set()
    for path in tests:
        theirs = read_problems(path)
        found = copies(statements, [statement_of(p.prompt) for p in theirs], n, share)
        same = sum(copy.share == 1.0 for copy in found)
        print(f"{path}: {len(found)} of {len(theirs)} problems are in {train}: {same} word for word, "
              f"{len(found) - same} near copies")
        rows += [(path, copy, theirs[copy.test]) for copy in found]
        taken |= {copy.train for copy in found}
    if rows:
        _print(rows)
    if clean is not None:
        kept = _without(statements, ours, tests, n, share)
        _write(clean, kept)
        print(f"{len(kept)} of {len(ours)} training problems: {clean}")
    return int(bool(rows))


def _without(statements: list[str], ours: list[Problem], tests: list[Path], n: int, share: float) -> list[Problem]:
    """Training problems of which none is a copy: a test problem may have several, `copies` names the closest."""
    left = list(range(len(ours)))
    while True:
        taken = {copy.train for path in tests for copy in copies(
            [statements[i] for i in left], [statement_of(p.prompt) for p in read_problems(path)], n, share)}
        if not taken:
            return [ours[i] for i in left]
        left = [i for k, i in enumerate(left) if k not in taken]


def _write(path: Path, problems: list[Problem]) -> None:
    from fade_sim.store import write_atomic

    if not problems:
        raise InputError("no training problem is left")
    write_atomic(path, "".join(json.dumps(p._asdict()) + "\n" for p in problems).encode())


def _print(rows: list[tuple[Path, Copy, Problem]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name, side in (("problem", "right"), ("in training", "right"), ("share", "right"), ("of", "left"),
                       ("it begins", "left")):
        table.add_column(name, justify=side, overflow="fold")
    for path, copy, problem in sorted(rows, key=lambda row: -row[1].share)[:SHOWN]:
        table.add_row(str(copy.test + 1), str(copy.train + 1), f"{copy.share:.2f}", path.name,
                      shown(" ".join(statement_of(problem.prompt).split())[:70], 70))
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 110).print(table)
    if len(rows) > SHOWN:
        print(f"... and {len(rows) - SHOWN} more")
