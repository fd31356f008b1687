"""`fade-llm overlap`: problems for evaluation inside a training file, without the instruction they all share.

Files are read row by row and prompts alone are kept: tests can be large.
"""

import json
import sys
from pathlib import Path

from fade_sim.errors import InputError
from fade_sim.overlap import Copy, copies
from llm.datasets import files
from llm.datasets.cases import text
from llm.datasets.prompts import statement_of

SHOWN = 20  # rows of the list


def run(train: Path, tests: list[Path], n: int, share: float, clean: Path | None) -> int:
    """Print what was found; 0: nothing, 1: something. `clean`: the training problems without it, a new file."""
    if clean is not None and clean.suffix != ".jsonl":
        raise InputError(f"--clean is {str(clean)!r}, expected a .jsonl file")
    if clean is not None and clean.exists():
        raise InputError(f"{clean}: already exists")
    ours, rows = _statements(train), []
    left = set(range(len(ours)))
    for path in tests:
        theirs = _statements(path)
        found = copies(ours, theirs, n, share)
        same = sum(copy.share == 1.0 for copy in found)
        print(f"{path}: {len(found)} of {len(theirs)} problems are in {train}: {same} word for word, "
              f"{len(found) - same} near copies")
        rows += [(path, copy, theirs[copy.test]) for copy in found]
        while clean is not None and found:  # `copies` names the closest one alone
            left -= {copy.train for copy in found}
            rest = sorted(left)
            found = [c._replace(train=rest[c.train]) for c in copies([ours[i] for i in rest], theirs, n, share)]
    if rows:
        _print(rows)
    if clean is not None:
        _write(clean, train, left)
        print(f"{len(left)} of {len(ours)} training problems: {clean}")
    return int(bool(rows))


def _statements(path: Path) -> list[str]:
    found = [statement_of(text(row, "prompt", where)) for where, row in files.read(path)]
    if not found:
        raise InputError(f"{path}: has no problems")
    return found


def _write(out: Path, train: Path, kept: set[int]) -> None:
    if not kept:
        raise InputError("no training problem is left")
    files.write(out, (json.dumps(row) for i, (_, row) in enumerate(files.read(train)) if i in kept))


def _print(rows: list[tuple[Path, Copy, str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name, side in (("problem", "right"), ("in training", "right"), ("share", "right"), ("of", "left"),
                       ("it begins", "left")):
        table.add_column(name, justify=side, overflow="fold")
    for path, copy, statement in sorted(rows, key=lambda row: -row[1].share)[:SHOWN]:
        table.add_row(str(copy.test + 1), str(copy.train + 1), f"{copy.share:.2f}", path.name,
                      " ".join(statement.split())[:50])
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 110).print(table)
    if len(rows) > SHOWN:
        print(f"... and {len(rows) - SHOWN} more")
