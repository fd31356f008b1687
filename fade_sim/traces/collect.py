"""Rollouts of any engine to groups: rewards to successes, counts of what was left out, one row per group."""

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fade_sim.errors import InputError
from fade_sim.recordings import Recording

LIMIT = 2**28  # bytes of a line: a longer one is no rollout
UNJUDGED = "rollouts that were not judged"


class Rollout(NamedTuple):
    """One rollout, as far as a rule can see it."""

    prompt: str  # the same over all steps
    success: bool | None  # None: not judged
    step: int | None
    group: tuple | None = None  # None: all rollouts of the prompt within the step
    task: str | None = None
    entropy: float | None = None  # nats
    part_of: tuple | None = None  # several lines in a row with one value are one rollout


class Reading:
    """What was asked of a reader, and what it found that has to be said."""

    def __init__(self, form: str, reward: str | None, threshold: float | None):
        self.form, self.reward, self.threshold = form, reward, threshold
        self.field = reward  # the field that was read
        self.low, self.high = math.inf, -math.inf  # of all rewards read
        self.left = Counter()  # what was left out: why -> how many
        self.notes = []

    def judge(self, name: str, value, others=None) -> bool | None:
        """Success of a reward; None where there was no verdict. Raises InputError on anything that is no reward.

        others: further fields that may hold a verdict, only ever to say so.
        """
        self.field = name
        if value is None or (isinstance(value, float) and math.isnan(value)):
            self.left[UNJUDGED] += 1
            return None
        if not isinstance(value, (int, float)) or not abs(value) < 1e300:
            raise InputError(f"{name} is {show(value)}, expected a finite number (null or NaN: not judged)")
        self.low, self.high = min(self.low, value), max(self.high, value)
        if self.threshold is not None:
            return value >= self.threshold
        if value in (0, 1):
            return value == 1
        binary = [key for key, other in (others or {}).items()
                  if key != name and isinstance(other, (int, float)) and other in (0, 1)]
        hint = f", or read another field: --reward {' or '.join(binary[:3])}" if binary else ""
        raise InputError(f"{name} is {show(value)}, expected 0 or 1; "
                         f"--threshold T makes a reward of at least T a success{hint}")

    def rollouts(self, path: Path, parse, rows):
        """Rollouts of (line number, row) pairs; lines that are part of one rollout become one, judged by the last."""
        held = None
        for number, row in rows:
            try:
                rollout = parse(row)
            except InputError as error:
                raise InputError(f"{path}: line {number}: {error}") from None
            except RecursionError:
                raise InputError(f"{path}: line {number}: is nested too deeply") from None
            if rollout is None:
                continue
            if held is not None and held.part_of is not None and held.part_of == rollout.part_of:
                self.left["earlier outputs of a rollout with several"] += 1
                self.left[UNJUDGED] -= held.success is None
                rollout = rollout._replace(prompt=held.prompt)
            elif held is not None:
                yield held
            held = rollout
        if held is not None:
            yield held

    def lines(self, path: Path):
        """(number, object) of each line of a JSONL file. A last line without its end is left out and noted."""
        with open(path, "rb") as stream:
            number = 0
            while line := stream.readline(LIMIT):
                number += 1
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    if len(line) == LIMIT:
                        raise InputError(f"{path}: line {number}: is longer than {LIMIT} bytes") from None
                    if not line.endswith(b"\n"):
                        self.notes.append(f"{path}: line {number}, the last, is cut off (a killed run?): left out")
                        return
                    raise InputError(f"{path}: line {number}: is not valid JSON, expected one object a line") from None
                if not isinstance(row, dict):
                    raise InputError(f"{path}: line {number}: is {show(row)}, expected an object {{...}}")
                yield number, row
        if not number:
            self.notes.append(f"{path}: is empty (a killed run?)")


class Groups:
    """Collects rollouts: what stays of them is a row per group."""

    def __init__(self):
        self.rows = {}  # key -> [prompt, step, successes, attempts, entropy sum, entropies, task]
        self.emptied = set()  # groups none of whose rollouts was judged, so far
        self.by_prompt = False
        self.over_steps = set()

    def add(self, rollout: Rollout) -> None:
        key = rollout.group
        if key is None:
            key, self.by_prompt = (rollout.step, rollout.prompt), True
        if rollout.success is None:
            if key not in self.rows:
                self.emptied.add(key)
            return
        self.emptied.discard(key)
        row = self.rows.get(key)
        if row is None:
            row = self.rows[key] = [rollout.prompt, rollout.step, 0, 0, 0.0, 0, rollout.task]
        elif row[1] != rollout.step:
            self.over_steps.add(key)
            row[1] = max(row[1], rollout.step)
        row[2] += rollout.success
        row[3] += 1
        if rollout.entropy is not None:
            row[4] += rollout.entropy
            row[5] += 1

    def recording(self, source: str, reading: Reading, files: int) -> Recording:
        """All rows, by step. Raises InputError where there is none."""
        if not self.rows:
            why = "; ".join([f"{what}: {number}" for what, number in reading.left.items() if number] + reading.notes)
            raise InputError(f"{source}: holds no judged rollouts" + (f" ({why})" if why else ""))
        rows = sorted(self.rows.values(), key=lambda row: -1 if row[1] is None else row[1])
        notes = [f"read as {reading.form}: {files} file{'s' * (files != 1)}, reward from {reading.field}"]
        if reading.threshold is not None:
            notes.append(f"{reading.field} is from {reading.low:g} to {reading.high:g}: "
                         f"at least {reading.threshold:g} is a success")
        sizes = np.array([row[3] for row in rows])
        if self.by_prompt:
            notes.append("no group id is recorded: rollouts of one prompt within a step are one group")
            usual = int(np.median(sizes))
            if usual > 1 and (twice := int((sizes >= 2 * usual).sum())):
                notes.append(f"groups of at least twice the usual {usual} rollouts (a prompt more than once in a "
                             f"step?): {twice}")
        if self.over_steps:
            notes.append(f"groups that came in over several steps, counted at their last: {len(self.over_steps)}")
        notes += [f"{what}, left out: {number}" for what, number in reading.left.items() if number]
        if self.emptied:
            notes.append(f"groups that are gone, no rollout of theirs was judged: {len(self.emptied)}")
        counted, known = int(sizes.sum()), sum(row[5] for row in rows)
        if 0 < known < counted:
            notes.append(f"entropy is recorded for {known} of {counted} rollouts: not used")
        tasks = tuple(row[6] for row in rows)
        return Recording(
            source=source,
            prompt_id=tuple(row[0] for row in rows),
            successes=np.array([row[2] for row in rows], dtype=np.int64),
            attempts=sizes.astype(np.int64),
            step=None if rows[0][1] is None else np.array([row[1] for row in rows], dtype=np.int64),
            entropy=np.array([row[4] / row[5] for row in rows]) if known == counted else None,
            task=tasks if None not in tasks and len(set(tasks)) > 1 else None,
            notes=(*notes, *reading.notes),
        )


# --- fields -------------------------------------------------------------------------------------------


def take(row: dict, name: str, form: str):
    """A field that every line has. Raises InputError that names those found."""
    if name in row:
        return row[name]
    names = ", ".join(str(key) for key in list(row)[:8])[:120] or "nothing"
    raise InputError(f"no {name}, expected a line of {form}; found {names}")


def whole(name: str, value) -> int:
    """A step or an index: an integer in [0, 2^62]."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**62:
        return value
    raise InputError(f"{name} is {show(value)}, expected an integer of at least 0 and at most 2^62")


def entropy(row: dict) -> float | None:
    """Entropy of a rollout in nats, if its line has one."""
    value = row.get("entropy", row.get("mean_token_entropy"))
    if value is None:
        return None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    raise InputError(f"entropy is {show(value)}, expected a non-negative number of nats")


def digest(value) -> str:
    """A short name for a prompt: a text, or messages or tokens as JSON."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def show(value) -> str:
    """A value as JSON writes it, short."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def first_line(path: Path):
    """The object on the first line of a file, its first four bytes if it is Parquet, else None."""
    if not path.is_file():
        return None  # a pipe: what is read is gone
    with open(path, "rb") as stream:
        if stream.peek(4)[:4] == b"PAR1":
            return b"PAR1"
        line = b"\n"
        while line and not line.strip():
            line = stream.readline(LIMIT)
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
