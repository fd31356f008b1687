"""Run folders of the trainer: they exist from the first step on, can be resumed, and are never overwritten.

A folder appears with its config.toml inside, or not at all. metrics.jsonl grows by a line a step and
is cut back to the last checkpoint on resume; summary.json appears when the run is complete.
"""

import os
from pathlib import Path

from fade_sim.errors import InputError
from fade_sim.store import to_json

try:
    import fcntl
except ImportError:  # no such module on Windows: two resumes of one run are not kept apart there
    fcntl = None


def create(out: str | None, name: str, config: bytes) -> Path:
    """A new folder holding config.toml. out None: runs/<name>-<n>, the next free n. Refuses an existing one."""
    n = 1
    while True:
        final = Path(out) if out is not None else Path("runs") / f"{name}-{n}"
        staging = final.parent / f".{final.name}.{os.getpid()}.partial"
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            if not os.path.lexists(final):
                staging.mkdir()
                (staging / "config.toml").write_bytes(config)
                try:
                    os.rename(staging, final)  # fails if another run has taken the name and filled it
                    return final
                finally:
                    if staging.exists():
                        (staging / "config.toml").unlink()
                        staging.rmdir()
        except OSError as error:
            if out is not None or not os.path.lexists(final):
                raise InputError(f"{final}: cannot be written ({error.strerror or error})") from None
        if out is not None:
            raise InputError(f"{final}: already exists; give another --out, or --resume {final} to continue it")
        n += 1


def claim(folder: Path) -> int:
    """Hold a run for this process until it ends; refuses one that another process is running."""
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise InputError(f"{folder}: in use by another run") from None
    return handle


def resumable(path: str) -> Path:
    """The folder of an unfinished run."""
    folder = Path(path)
    if not (folder / "config.toml").is_file():
        raise InputError(f"{folder}: is no run folder (it has no config.toml)")
    if (folder / "summary.json").is_file():
        raise InputError(f"{folder}: this run is complete; nothing to resume")
    return folder


class Metrics:
    """metrics.jsonl: one JSON object a line, no times, the same bytes whether a run was interrupted or not."""

    def __init__(self, folder: Path, keep_bytes: int):
        self.stream = (folder / "metrics.jsonl").open("ab")
        if self.stream.tell() < keep_bytes:
            raise InputError(f"{folder / 'metrics.jsonl'}: is shorter than its checkpoint says; it was edited")
        self.stream.truncate(keep_bytes)

    def write(self, row: dict) -> None:
        self.stream.write((to_json(row) + "\n").encode())
        self.stream.flush()

    def sync(self) -> int:
        """Put it on disk; returns its length in bytes."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        return self.stream.seek(0, os.SEEK_END)
