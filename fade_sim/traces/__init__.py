"""Rollouts that training engines write, as recordings: verl, TRL, prime-rl, open-instruct.

The engine is recognised by the names of a folder's files or by the first line of a file. Every file is
read as a stream, steps in numeric order; what stays in memory is one row per group.

>>> sorted(ENGINES)
['open-instruct', 'prime-rl', 'trl', 'verl']
"""

import math
from pathlib import Path

from fade_sim import recordings
from fade_sim.errors import InputError, nearest
from fade_sim.recordings import Recording
from fade_sim.traces.collect import Groups, Reading, first_line
from fade_sim.traces.engines import ENGINES

__all__ = ["ENGINES", "FORMATS", "load"]

FORMATS = (*ENGINES, "rollouts")


def load(path: str | Path, form: str | None = None, reward: str | None = None,
         threshold: float | None = None) -> Recording:
    """Read the rollouts of a run: a folder or a file of an engine, or whatever `recordings.load` reads.

    form: one of FORMATS (default: recognised). reward: the field or column that holds the reward
    (default: the engine's own). threshold: rewards of at least this are successes (default: rewards
    are 0 or 1, anything else is refused). A rollout whose reward is null or NaN was not judged: it leaves
    its group and is counted in the notes. A last line that a killed run left cut off is left out, with a note.

    Raises InputError, one line: file, line or row, what, and what was expected.
    """
    if form is not None and form not in FORMATS:
        raise InputError(f"--format {form}: unknown{nearest(form, FORMATS)}")
    if threshold is not None and not math.isfinite(threshold):
        raise InputError(f"--threshold is {threshold}, expected a finite number")
    try:
        path = _where(path)
        form, files = _recognise(path, form)
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be read ({error.strerror or error})") from None
    if form == "rollouts":
        for name, given in (("reward", reward), ("threshold", threshold)):
            if given is not None:
                raise InputError(f"--{name} is for rollouts of an engine; {path} has rewards of 0 and 1 (--format?)")
        return recordings.load(path)
    reading = Reading(form, reward, threshold)
    groups = Groups()
    try:
        for rollout in ENGINES[form].read(files, reading):
            groups.add(rollout)
    except OSError as error:
        raise InputError(f"{error.filename or path}: cannot be read ({error.strerror or error})") from None
    return groups.recording(str(path), reading, len(files))


def _where(path) -> Path:
    """An existing path, a shipped recording, or FOLDER/RUN: the shards of one run in a shared folder."""
    given = Path(path)
    if not given.exists() and ENGINES["open-instruct"].files(given):
        return given
    return recordings.find(path)


def _recognise(path: Path, form: str | None) -> tuple[str, list[Path]]:
    if path.is_dir() or not path.exists():
        if form == "rollouts":
            raise InputError(f"{path}: is a directory, expected a JSONL or CSV file")
        found = {name: files for name in ([form] if form else ENGINES) if (files := ENGINES[name].files(path))}
        if len(found) > 1:
            raise InputError(f"{path}: holds files of {' and '.join(found)}: choose with --format")
        if not found:
            what = "; ".join(f"{name}: {ENGINES[name].layout}" for name in ([form] if form else ENGINES))
            raise InputError(f"{path}: holds no rollouts, expected {what}")
        return found.popitem()
    if form is not None:
        return form, [path]
    row = first_line(path)
    if row == b"PAR1":
        return "trl", [path]
    fits = [name for name, engine in ENGINES.items() if isinstance(row, dict) and engine.fits(row)]
    if len(fits) > 1:
        raise InputError(f"{path}: may be of {' or '.join(fits)}: choose with --format")
    return (fits[0], [path]) if fits else ("rollouts", [path])
