"""Run folders that appear whole or not at all.

A run writes into `.NAME.partial` beside its final folder, holding a lock, and renames it at the
end. A name is never reused; what a killed run left behind is recognised (its lock is free) and
cleared.
"""

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fade_sim.errors import InputError

try:
    import fcntl
except ImportError:  # no such module on Windows: there a leftover folder has to be removed by hand
    fcntl = None


@contextmanager
def run_folder(out: str | None, name: str) -> Iterator[tuple[Path, Path]]:
    """Yield (folder to write into, final folder); on a clean exit the first becomes the second.

    out: the final folder, refused if it exists; None: runs/<name>-<n> with the next free n.
    """
    final, staging, lock = _claim(out, name)
    try:
        yield staging, final
        (staging / ".lock").unlink()
        if os.path.lexists(final):
            raise InputError(f"{final}: appeared while the run was going on; nothing was overwritten")
        staging.rename(final)
    finally:
        os.close(lock)
        shutil.rmtree(staging, ignore_errors=True)


def _claim(out: str | None, name: str) -> tuple[Path, Path, int]:
    if out is not None:
        final = Path(out)
        if os.path.lexists(final):
            raise InputError(f"{final}: already exists; give another --out, or none for the next free name")
        claimed = _lock(final)
        if claimed is None:
            raise InputError(f"{final}: in use by another run")
        return final, *claimed
    n = 1
    while True:
        final = Path("runs") / f"{name}-{n}"
        if not os.path.lexists(final) and (claimed := _lock(final)) is not None:
            return final, *claimed
        n += 1


def _lock(final: Path) -> tuple[Path, int] | None:
    """(staging folder, open lock), or None when a live run holds it."""
    staging = final.parent / f".{final.name}.partial"
    try:
        if os.path.lexists(staging) and (staging.is_symlink() or not (staging / ".lock").is_file()):
            raise InputError(f"{staging}: is in the way and not of an earlier run; remove it")
        final.parent.mkdir(parents=True, exist_ok=True)
        staging.mkdir(exist_ok=True)
        handle = os.open(staging / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise InputError(f"{final}: cannot be written ({error.strerror or error})") from None
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    for leftover in staging.iterdir():  # of a run that was killed
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover)
        elif leftover.name != ".lock":
            leftover.unlink()
    return staging, handle


def resumable_folder(out: str) -> Path:
    """A folder that is new, empty or of an earlier call of the same kind (it has cells/: finished work)."""
    folder = Path(out)
    try:
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError(f"{folder}: is a file, expected a folder to create or to resume")
        if folder.is_dir() and not (folder / "cells").is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder}: is not of an earlier call (it has no cells/); give another --out")
        (folder / "cells").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None
    return folder


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is either absent, or old, or whole.

    A symbolic link keeps pointing where it points; a pipe or device is written to, not replaced.
    """
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "is a folder")
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                stream.write(data)
            return
        temporary = target.with_name(f".{target.name}.partial")
        try:
            temporary.write_bytes(data)
            temporary.replace(target)
        finally:
            if os.path.lexists(temporary):
                temporary.unlink()
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """An .npz whose bytes depend on the arrays alone (no time stamps)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def plain(value: Any) -> Any:
    """JSON-able copy: NumPy scalars become Python's, NaN becomes null (not applicable), inf the text "inf"."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(v) for v in value]
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    return value


def to_json(value: Any, indent: int | None = None) -> str:
    """Strict JSON of `plain(value)`."""
    return json.dumps(plain(value), indent=indent, allow_nan=False)
