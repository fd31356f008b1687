"""How kernels are compiled: without the GIL, with a cache that no edit can make stale.

Numba's cache notices a change in a function's own file only. The kernels call arithmetic of the
advantage core, so the cache folder is keyed by the text of every file they depend on.
"""

import hashlib
import os
from pathlib import Path

from numba import config as numba_config
from numba import njit

_PACKAGE = Path(__file__).resolve().parent.parent
_SOURCES = sorted([*_PACKAGE.glob("sim/*.py"), *_PACKAGE.glob("advantage/*.py")])
# Fused multiply-add only. `reassoc` would vectorise sums, but a freshly compiled kernel and the same
# kernel from the cache then differ in the last bit; loops are written so that lanes are independent.
_FASTMATH = {"contract"}


SOURCE_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:16]


def _cache_dir() -> str | None:
    """A writable folder for this exact source, or None."""
    root = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "fade-sim" / SOURCE_DIGEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


_CACHE_DIR = _cache_dir()


def _compile(function, **options):
    before = numba_config.CACHE_DIR
    numba_config.CACHE_DIR = _CACHE_DIR or before
    # Kernels own no memory (_nrt): counting references to their arrays took a fifth of a small step.
    options = {"_nrt": False, "nogil": True, "cache": _CACHE_DIR is not None, "fastmath": _FASTMATH} | options
    try:
        return njit(**options)(function)
    finally:
        numba_config.CACHE_DIR = before


INNER = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # Python never calls it


def entry(function):
    """A kernel that Python calls. Compiled on the first call; threads may run it at the same time."""
    return _compile(function, no_cfunc_wrapper=True)


def kernel(function):
    """A function that kernels call, always inlined: handing over arrays would cost more than most of them do."""
    return _compile(function, forceinline=True, **INNER)


def part(function):
    """A part of a kernel with a name of its own: its text is put where it is called. For the smallest functions,
    and for those that take whole records: each would otherwise cost up to a third of a second of compilation."""
    return _compile(function, inline="always")


def product(function):
    """A kernel that calls BLAS, whose wrappers in Numba count references."""
    return _compile(function, _nrt=True, **INNER)
