"""Spectrum of the difference of two safetensors checkpoints of any model, streamed block by block.

Nothing is loaded whole: the squared singular values of a difference D (m, n), m >= n, are the
eigenvalues of D^T D, summed over blocks of rows in float64. Resolution: energies below about 1e-13
of the largest are rounding.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fade_sim.diagnostics import ranks_of_energies
from fade_sim.errors import InputError
from fade_sim.store import to_json, write_atomic

_BLOCK = 2**24  # entries of a difference held at one time
_LARGEST = 20_000  # smaller side of a matrix whose D^T D is formed, 3.2 GB


class Row(NamedTuple):
    """One matrix: NaN ranks where nothing changed."""

    name: str
    shape: tuple[int, int]
    norm: float  # of the difference
    relative: float  # over the norm of the matrix before
    rank1: float  # energy share of the largest singular value, (0, 1]
    stable_rank: float
    effective_rank: float


def compare(before: Path, after: Path, progress=lambda done, total: None) -> tuple[list[Row], list[str]]:
    """(a row per matrix that both have, names that only one has). Raises InputError on unreadable or unlike files."""
    first, second = index(before), index(after)
    shared = [name for name in first if name in second]
    lonely = sorted(set(first) ^ set(second))
    if not shared:
        raise InputError(f"{before} and {after} have no tensor name in common")
    rows = []
    for i, name in enumerate(shared):
        a, b = _open(first[name], name), _open(second[name], name)
        shape = tuple(a.get_shape())
        if shape != tuple(b.get_shape()):
            raise InputError(f"{name} has shape {shape} in {before}, {tuple(b.get_shape())} in {after}")
        if len(shape) == 2 and min(shape) > 0:
            rows.append(_matrix(name, a, b, shape))
        progress(i + 1, len(shared))
    if not rows:
        raise InputError(f"{before}: has no matrix among its {len(shared)} tensors")
    return rows, lonely


def index(path: Path) -> dict[str, Path]:
    """Tensor name -> file, of a .safetensors file or of all in a folder."""
    from safetensors import SafetensorError, safe_open

    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if path.is_dir() and not files and (path / "model").is_dir():
        return index(path / "model")  # a run folder
    if not files:
        raise InputError(f"{path}: no .safetensors file there")
    out = {}
    for file in files:
        try:
            with safe_open(str(file), framework="pt") as opened:
                out |= {name: file for name in opened.keys()}  # noqa: SIM118 (not a dict)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{file}: cannot be read ({error})") from None
    return out


def _open(file: Path, name: str):
    from safetensors import safe_open

    return safe_open(str(file), framework="pt").get_slice(name)


def _matrix(name: str, a, b, shape) -> Row:
    m, n = shape
    wide = m < n
    small, large = min(m, n), max(m, n)
    if small > _LARGEST:
        raise InputError(f"{name} is {m} x {n}: its smaller side is above {_LARGEST}")
    gram, before = np.zeros((small, small)), 0.0
    step = max(_BLOCK // small, 1)
    for start in range(0, large, step):
        cut = (slice(None), slice(start, start + step)) if wide else (slice(start, start + step), slice(None))
        x, y = (t[cut].double().numpy() for t in (a, b))
        d = (y - x).T if wide else y - x
        gram += d.T @ d
        before += float((x**2).sum())
    if not np.isfinite(gram).all():
        raise InputError(f"{name} has non-finite entries")
    energy = np.maximum(np.linalg.eigvalsh(gram), 0.0)
    norm = float(np.sqrt(np.trace(gram)))
    ranks = ranks_of_energies(energy)
    return Row(name, shape, norm, norm / before**0.5 if before else float("nan"), *(float(r) for r in ranks))


def print_spectrum(before: Path, after: Path, json_file: str | None) -> None:
    """The table, and the numbers where asked for."""
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("matrices")
        rows, lonely = compare(before, after, lambda done, total: bar.update(task, completed=done, total=total))
    table = Table(box=None, pad_edge=False)
    for heading in ("matrix", "shape", "change", "rank-1", "stable rank", "effective rank"):
        table.add_column(heading, justify="left" if heading == "matrix" else "right", overflow="fold")
    for row in rows:
        ranks = [f"{v:.3f}" if v == v else "-" for v in (row.rank1, row.stable_rank, row.effective_rank)]
        table.add_row(row.name, f"{row.shape[0]}x{row.shape[1]}", f"{row.relative:.2e}", *ranks)
    Console(highlight=False, width=120).print(table)
    print("change: norm of the difference over that of the matrix before; rank-1: share of its largest singular value")
    if lonely:
        print(f"only in one of the two: {', '.join(lonely[:10])}{' ...' if len(lonely) > 10 else ''}")
    if json_file:
        numbers = {row.name: row._asdict() for row in rows}
        write_atomic(Path(json_file), (to_json({"matrices": numbers, "unmatched": lonely}, indent=1) + "\n").encode())
