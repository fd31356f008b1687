"""Finished pieces of work, kept on disk: each is computed once, whoever asks, however often killed.

A cell is one regime under all its contenders (a `Trace`). Its file name is a hash of the resolved
settings and of the simulator's own text, so a changed simulator never serves old numbers; names of
regimes do not count, so two experiments that need the same numbers share them. A lock beside it makes
sure that two processes on one folder never compute the same cell twice.
"""

import hashlib
import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fade_sim import config, store
from fade_sim.errors import InputError

try:
    import fcntl
except ImportError:  # Windows: no lock, so one process at a time
    fcntl = None


class Cells:
    """A folder of finished cells. progress is called with (what, share done in 0..1)."""

    def __init__(self, folder: Path, threads: int | None = None,
                 progress: Callable[[str, float], None] = lambda what, share: None):
        self.folder, self.threads, self.progress = Path(folder), threads, progress
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be written ({error.strerror or error})") from None

    def trace(self, raw: dict, what: str, wait: bool = True):
        """The single regime of a raw config (as in a TOML file) under all its contenders, as a `sim.Trace`.

        wait False: None while another process computes it.
        """
        cfg = config.resolve({"name": "cell", **raw}, {}, what)
        if len(cfg.regimes) != 1:
            raise ValueError(f"{what}: a cell is one regime, got {len(cfg.regimes)}")
        rates = _solve_rates(cfg)
        path = self.folder / f"{_key(cfg, rates)}.npz"
        if not path.exists():
            with self._lock(path, wait) as mine:
                if not mine:
                    return None
                if not path.exists():  # another process may have finished it while this one waited
                    self._compute(cfg, rates, path, what)
        self.progress(what, 1.0)
        return _read(path)

    def key(self, raw: dict, what: str = "config") -> str:
        """Hash of everything that the numbers depend on."""
        cfg = config.resolve({"name": "cell", **raw}, {}, what)
        return _key(cfg, _solve_rates(cfg))

    def tidy(self) -> None:
        """Remove what killed processes left: half-written cells, locks that nobody holds."""
        for path in {p.with_suffix(".npz") for suffix in ("lock", "partial") for p in self.folder.glob(f"*.{suffix}")}:
            with self._lock(path, wait=False) as mine:
                if mine:
                    path.with_suffix(".partial").unlink(missing_ok=True)
                    path.with_suffix(".lock").unlink(missing_ok=True)

    def _compute(self, cfg, rates, path: Path, what: str) -> None:
        from fade_sim.sim import simulate

        regime = cfg.regimes[0]
        total, done, counting = len(cfg.contenders) * regime.train.seeds * regime.train.steps, 0, threading.Lock()

        def advance(steps: int) -> None:  # called by every thread
            nonlocal done
            with counting:
                done += steps
                self.progress(what, done / total)

        trace = simulate(regime, cfg.contenders, threads=self.threads, progress=advance, solve_rates=rates)
        arrays = {f"values/{name}": array for name, array in trace.values.items()}
        arrays |= {"labels": np.array(trace.labels), "seeds": np.array(trace.seeds), "steps": trace.steps}
        partial = path.with_suffix(".partial")
        store.write_arrays(partial, arrays)
        with partial.open("rb") as handle:
            os.fsync(handle.fileno())  # a finished name never points at half a file, even after a power cut
        partial.replace(path)

    @contextmanager
    def _lock(self, path: Path, wait: bool) -> Iterator[bool]:
        """Hold the cell's lock: True, or False when another process has it and `wait` is False.

        The lock file goes once the cell is there, so a lock that was waited for may be that of a file that
        is gone: it counts only while it is still the one in the folder.
        """
        lock = path.with_suffix(".lock")
        while True:
            with lock.open("w") as handle:
                try:
                    if fcntl is not None:
                        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                    return
                if not (lock.exists() and os.path.samestat(os.fstat(handle.fileno()), lock.stat())):
                    continue
                yield True
                if path.exists():
                    lock.unlink(missing_ok=True)
                return


def _key(cfg: config.Config, rates) -> str:
    from fade_sim import diagnostics
    from fade_sim.sim.compile import SOURCE_DIGEST

    regime = {k: v for k, v in cfg.raw["regime"][0].items() if k != "name"}
    source = SOURCE_DIGEST, hashlib.sha256(Path(diagnostics.__file__).read_bytes()).hexdigest()
    recorded = None if rates is None else np.asarray(rates).tolist()
    text = json.dumps([cfg.raw["compare"], regime, source, recorded], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _solve_rates(cfg: config.Config):
    from fade_sim import recordings

    path = cfg.regimes[0].world.solve_rates
    return recordings.initial_solve_rates(path) if path else None


def _read(path: Path):
    from fade_sim.sim import Trace

    try:
        with np.load(path) as data:
            values = {name.removeprefix("values/"): data[name] for name in data.files if name.startswith("values/")}
            return Trace(tuple(data["labels"].tolist()), tuple(data["seeds"].tolist()), data["steps"], values)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise InputError(f"{path}: is damaged; remove it and run again") from None
