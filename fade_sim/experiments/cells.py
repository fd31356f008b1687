"""Finished pieces of work, kept on disk: each is computed once, whoever asks, however often killed.

A cell is one regime under all its contenders (a `Trace`). Its file name is a hash of the resolved
settings and of the simulator's own text, so a changed simulator never serves old numbers. A lock
beside it makes sure that two processes on one folder never compute the same cell twice.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fade_sim import config, store
from fade_sim.sim import Trace, simulate
from fade_sim.sim.compile import SOURCE_DIGEST

try:
    import fcntl
except ImportError:  # Windows: no lock, so one process at a time
    fcntl = None


class Cells:
    """A folder of finished cells. progress is called with (what, share done in 0..1)."""

    def __init__(self, folder: Path, threads: int | None = None,
                 progress: Callable[[str, float], None] = lambda what, share: None):
        self.folder, self.threads, self.progress = Path(folder), threads, progress
        self.folder.mkdir(parents=True, exist_ok=True)

    def trace(self, raw: dict, what: str) -> Trace:
        """The single regime of a raw config (as in a TOML file) under all its contenders."""
        cfg = config.resolve(raw, {}, what)
        if len(cfg.regimes) != 1:
            raise ValueError(f"{what}: a cell is one regime, got {len(cfg.regimes)}")
        path = self.folder / f"{self.key(cfg)}.npz"
        if not path.exists():
            with self._lock(path):
                if not path.exists():  # another process may have finished it while this one waited
                    self._compute(cfg, path, what)
        self.progress(what, 1.0)
        return _read(path)

    def key(self, cfg: config.Config) -> str:
        """Hash of everything that the numbers depend on."""
        text = json.dumps([cfg.raw, SOURCE_DIGEST], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def _compute(self, cfg, path: Path, what: str) -> None:
        regime = cfg.regimes[0]
        total, done = len(cfg.contenders) * regime.train.seeds * regime.train.steps, 0

        def advance(steps: int) -> None:
            nonlocal done
            done += steps
            self.progress(what, done / total)

        trace = simulate(regime, cfg.contenders, threads=self.threads, progress=advance)
        arrays = {f"values/{name}": array for name, array in trace.values.items()}
        arrays |= {"labels": np.array(trace.labels), "seeds": np.array(trace.seeds), "steps": trace.steps}
        partial = path.with_suffix(".partial")
        store.write_arrays(partial, arrays)
        partial.replace(path)

    @contextmanager
    def _lock(self, path: Path):
        with path.with_suffix(".lock").open("w") as handle:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _read(path: Path) -> Trace:
    with np.load(path) as data:
        values = {name.removeprefix("values/"): data[name] for name in data.files if name.startswith("values/")}
        return Trace(tuple(data["labels"].tolist()), tuple(data["seeds"].tolist()), data["steps"], values)
