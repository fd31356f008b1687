"""Recorded rollouts from a file: JSONL or CSV in, arrays out, and one line for whatever is wrong.

A line is one of
    {prompt_id, reward}               one rollout; lines with one prompt_id (and step) are a group
    {prompt_id, rewards: [0, 1, ...]} one group
    {prompt_id, successes, attempts}  one group, counted
with optional step (integer), entropy or mean_token_entropy (nats) and task (a name). Other keys are
ignored. CSV has the same names in its header; `rewards` is then a cell such as "0 1 1" or [0, 1, 1].
"""

import csv
import difflib
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fade_sim.errors import InputError, nearest

DATA = Path(__file__).parent / "data"
_SUFFIXES = (".jsonl", ".csv")
_FORMS = (("reward",), ("rewards",), ("successes", "attempts"))
_OPTIONAL = ("step", "entropy", "task")
_LIMIT = 10**9  # of attempts: anything above is a torn number
# Names that other tools use: only ever to say what was probably meant, never read silently.
_ALIASES = {
    "prompt_id": ("id", "uid", "prompt_idx", "index", "problem_id", "question_id", "group", "group_id"),
    "reward": ("score", "scores", "correct", "passed", "success"),
    "rewards": ("scores", "results"),
    "successes": ("num_correct", "num_passed", "n_correct", "solved", "correct", "c"),
    "attempts": ("num_samples", "n_samples", "samples", "total", "trials", "n"),
}


@dataclass(frozen=True, eq=False)
class Recording:
    """Recorded rollouts; row i is one group: the rollouts of one prompt (at one step)."""

    source: str  # file it came from
    prompt_id: tuple  # (P,) integers or strings
    successes: np.ndarray  # (P,) int64, 0 <= successes <= attempts
    attempts: np.ndarray  # (P,) int64, at least 1
    rewards: tuple[np.ndarray, ...] | None = None  # (P,) of int8 (attempts,), in file order; None if counted
    step: np.ndarray | None = None  # (P,) int64 >= 0
    entropy: np.ndarray | None = None  # (P,) nats; mean over the rollouts of a row
    task: tuple[str, ...] | None = None  # (P,)
    pooled: bool = False  # one line per rollout and no step: a prompt's rollouts are one group
    notes: tuple[str, ...] = ()  # what was left out or assumed on the way

    def __len__(self) -> int:
        return len(self.prompt_id)

    @property
    def solve_rate(self) -> np.ndarray:
        """successes / attempts, (P,) in [0, 1]."""
        return self.successes / self.attempts


# --- where --------------------------------------------------------------------------------------------


def shipped() -> tuple[str, ...]:
    """Names of the recordings that come with the package."""
    return tuple(sorted(path.stem for path in DATA.glob("*") if path.suffix in _SUFFIXES))


def find(name_or_path: str | Path) -> Path:
    """The file meant: an existing path first, else a shipped recording of that name.

    Raises InputError, with the nearest shipped name, where there is neither.

    >>> find("smollm2_135m_arithmetic").name
    'smollm2_135m_arithmetic.jsonl'
    """
    path = Path(name_or_path)
    try:
        if path.is_file():
            return path
        for inside in DATA.iterdir():
            if inside.suffix in _SUFFIXES and str(name_or_path) in (inside.name, inside.stem):
                return inside
        if path.exists():
            return path  # a directory or a pipe: load says which
    except OSError as error:
        raise InputError(f"{name_or_path}: cannot be read ({error.strerror})") from None
    hint = nearest(path.stem, shipped())
    raise InputError(f"{name_or_path}: no such file, nor a recording that comes with the package{hint}")


# --- read ---------------------------------------------------------------------------------------------


def load(path: str | Path) -> Recording:
    """Read recorded rollouts from a JSONL or CSV file, or by the name of a shipped recording.

    .csv is CSV, .jsonl, .ndjson and .json are JSON lines, anything else is told by its first
    character. Blank lines are skipped. Rewards are 0, 1, 0.0, 1.0 or booleans: an unscored rollout
    (null, NaN) is refused and never read as 0. All lines have the form, and the optional keys, of
    the first. In the two forms that hold a whole group a prompt_id may come once per step: a second
    line is refused, because it could be a repeat or a later step, and these are different things.

    Raises InputError, one line: file, line number, what, and what was expected.
    """
    path = find(path)
    if path.is_dir():
        raise InputError(f"{path}: is a directory, expected a JSONL or CSV file")
    text = _decode(path)
    if not text.strip():
        raise InputError(f"{path}: is empty, expected recorded rollouts, one JSON object or CSV row a line")
    if path.suffix.lower() == ".csv":
        rows, is_csv = _csv_rows(path, text), True
    elif path.suffix.lower() in (".jsonl", ".ndjson", ".json") or text.lstrip()[0] in "{[":
        rows, is_csv = _json_rows(path, text), False
    else:
        rows, is_csv = _csv_rows(path, text), True
    groups = _Groups(path)
    for number, row in rows:
        groups.add(number, row, is_csv)
    return groups.recording()


def initial_solve_rates(path: str | Path) -> np.ndarray:
    """Solve rates (n,) from which the simulator starts, (c + 1/2)/(n + 1) per recorded group: never 0 or 1.

    Raises InputError as `load` does, and on fewer than 3 groups (a third is held out).
    """
    recording = load(path)
    if len(recording.attempts) < 3:
        raise InputError(f"{path}: {len(recording.attempts)} prompts, expected at least 3 (a third is held out)")
    return (recording.successes + 0.5) / (recording.attempts + 1.0)


def _decode(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    try:
        text = data.decode("utf-8-sig")
        junk = text.find("\0")
        line = text.count("\n", 0, junk) + 1
    except UnicodeDecodeError as error:
        junk, line = error.start, data.count(b"\n", 0, error.start) + 1
    if data[:2] == b"\x1f\x8b":
        raise InputError(f"{path}: is compressed with gzip, expected plain JSONL or CSV: unpack it first")
    if junk >= 0:
        raise InputError(f"{path}: line {line}: is not UTF-8 text (binary data?), expected a JSONL or CSV file")
    return text


def _no_repeats(pairs):
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [key for key, _ in pairs]
        raise InputError(f"has {next(key for key in names if names.count(key) > 1)!r} twice")
    return row


def _json_rows(path, text):
    # Not splitlines: strings inside JSON may hold U+2028 and its kin.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=_no_repeats)
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}: line {number}: is not valid JSON ({error.msg} at column {error.colno}), "
                + ("expected one object a line, not one document over many lines" if line.strip() in ("[", "{")
                   else "expected one object a line (is the line torn?)")
            ) from None
        except InputError as error:
            raise InputError(f"{path}: line {number}: {error}") from None
        except (ValueError, RecursionError):  # a number of thousands of digits, brackets by the thousand
            raise InputError(f"{path}: line {number}: is not valid JSON, expected one object a line") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}: line {number}: is {_show(row)}, expected an object {{...}}")
        yield number, {key: value for key, value in row.items() if value is not None or key in ("reward", "rewards")}


def _csv_rows(path, text):
    head = next(line for line in text.splitlines() if line.strip())
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count), strict=True)
    names, start = None, 1
    try:
        for cells in reader:
            number, start = start, reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            cells = [cell.strip() for cell in cells]
            if names is None:
                names = cells
                twice = [name for name in names if name and names.count(name) > 1]
                if twice:
                    raise InputError(f"{path}: line {number}: column {twice[0]!r} comes twice")
                continue
            if len(cells) != len(names):
                expected = f"expected {len(names)} as in the header"
                raise InputError(f"{path}: line {number}: has {len(cells)} cells, {expected}")
            row = dict(zip(names, cells, strict=True))
            yield number, {key: cell for key, cell in row.items() if cell or key in ("reward", "rewards")}
    except csv.Error as error:
        raise InputError(f"{path}: line {start}: is not valid CSV ({error})") from None


# --- lines to groups ----------------------------------------------------------------------------------


class _Groups:
    """Collects lines; holds what the first one fixed."""

    def __init__(self, path):
        self.path = path
        self.form = None  # keys that carry the outcome
        self.has = None  # optional keys of the first line
        self.first = 0  # its number
        self.id_type = None
        self.rows = {}  # (prompt_id, step) -> [line, successes, attempts, rewards or None, entropy sum, lines, task]

    def add(self, number, row, is_csv):
        try:
            self._add(number, row, is_csv)
        except InputError as error:
            raise InputError(f"{self.path}: line {number}: {error}") from None

    def _add(self, number, row, is_csv):
        form = _form(row)
        has = tuple(name for name in _OPTIONAL if name in row or (name == "entropy" and "mean_token_entropy" in row))
        if self.form is None:
            self.form, self.has, self.first = form, has, number
        if form != self.form:
            raise InputError(f"has {' and '.join(form)}, expected {' and '.join(self.form)} as on line {self.first}")
        for name in _OPTIONAL:
            if (name in has) != (name in self.has):
                this = "has" if name in has else "has no"
                raise InputError(f"{this} {name}, unlike line {self.first}, expected on all lines or none")
        prompt = self._prompt_id(row["prompt_id"], is_csv)
        step = _integer("step", row["step"], 0, is_csv) if "step" in has else None
        entropy = _entropy(row, is_csv) if "entropy" in has else None
        task = str(row["task"]) if "task" in has else None
        successes, attempts, rewards = _outcome(form, row, is_csv)

        old = self.rows.get((prompt, step))
        if old is None:
            self.rows[prompt, step] = [number, successes, attempts, rewards, entropy, 1, task]
            return
        if form != ("reward",):
            when = "" if step is None else f" of step {step}"
            hint = "expected once" if step is not None else "expected once, or a step that tells the two apart"
            raise InputError(f"prompt_id {_show(prompt)}{when} was on line {old[0]} already, {hint}")
        if task != old[6]:
            raise InputError(f"prompt_id {_show(prompt)} has task {_show(task)}, and {_show(old[6])} on line {old[0]}")
        old[1] += successes
        old[2] += 1
        old[3] += rewards
        old[5] += 1
        if entropy is not None:
            old[4] += entropy

    def _prompt_id(self, value, is_csv):
        if is_csv:
            return value  # typed at the end, when all are known
        if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
            raise InputError(f"prompt_id is {_show(value)}, expected an integer or a string")
        if self.id_type is None:
            self.id_type = type(value)
        if type(value) is not self.id_type:
            kinds = {int: "an integer", str: "a string"}
            raise InputError(f"prompt_id is {_show(value)}, expected {kinds[self.id_type]} as on line {self.first}")
        return value

    def recording(self) -> Recording:
        if not self.rows:
            raise InputError(f"{self.path}: has a header but no rollouts")
        rows = list(self.rows.values())
        ids = [prompt for prompt, _ in self.rows]
        if self.id_type is None and all(_is_plain_integer(text) for text in ids):
            ids = [int(text) for text in ids]
        counted = self.form == ("successes", "attempts")
        return Recording(
            source=str(self.path),
            prompt_id=tuple(ids),
            successes=np.array([row[1] for row in rows], dtype=np.int64),
            attempts=np.array([row[2] for row in rows], dtype=np.int64),
            rewards=None if counted else tuple(np.array(row[3], dtype=np.int8) for row in rows),
            step=np.array([step for _, step in self.rows], dtype=np.int64) if "step" in self.has else None,
            pooled=self.form == ("reward",) and "step" not in self.has,
            entropy=np.array([row[4] / row[5] for row in rows]) if "entropy" in self.has else None,
            task=tuple(row[6] for row in rows) if "task" in self.has else None,
        )


def _form(row) -> tuple[str, ...]:
    """Which of the three forms a line has; a missing key is named together with what it may be called here."""
    if "prompt_id" not in row:
        raise _missing("prompt_id", row)
    forms = [form for form in _FORMS if all(key in row for key in form)]
    if len(forms) > 1:
        raise InputError(f"has both {' and '.join(forms[0])} and {' and '.join(forms[1])}, expected one of them")
    if forms:
        return forms[0]
    for here, missing in (("successes", "attempts"), ("attempts", "successes")):
        if here in row:
            raise _missing(missing, row)
    lower = {str(name).lower() for name in row}
    for key in sorted(("reward", "rewards", "successes"), key=lambda key: key not in lower):  # an exact match first
        if _near(key, row):
            raise _missing(key, row)
    raise InputError(f"no outcome, expected reward, rewards, or successes and attempts; found {_keys(row)}")


def _missing(key, row) -> InputError:
    near = _near(key, row)
    return InputError(f"no {key}" + (f"; found {near!r}, is it meant?" if near else f"; found {_keys(row)}"))


def _near(key, row) -> str | None:
    """The key of a line that is probably meant by a missing one."""
    known = ("prompt_id", "reward", "rewards", "successes", "attempts", *_OPTIONAL)
    lower = {str(name).lower(): str(name) for name in row if name not in known}
    close = [a for a in (key, *_ALIASES[key]) if a in lower] or difflib.get_close_matches(key, lower, n=1, cutoff=0.7)
    return lower[close[0]] if close else None


def _keys(row) -> str:
    names = ", ".join(name if name.isprintable() else repr(name) for name in list(row)[:8]) or "nothing"
    return names[:120] + (", ..." if len(row) > 8 or len(names) > 120 else "")


def _outcome(form, row, is_csv):
    """(successes, attempts, rewards or None) of a line."""
    if form == ("reward",):
        reward = _reward("reward", row["reward"], is_csv)
        return reward, 1, [reward]
    if form == ("rewards",):
        rewards = _reward_list(row["rewards"], is_csv)
        return sum(rewards), len(rewards), rewards
    attempts = _integer("attempts", row["attempts"], 1, is_csv)
    successes = _integer("successes", row["successes"], 0, is_csv)
    if successes > attempts:
        raise InputError(f"successes is {successes}, expected at most attempts = {attempts}")
    return successes, attempts, None


def _reward_list(value, is_csv) -> list[int]:
    cells = value
    if is_csv and value.startswith("["):
        try:
            cells, is_csv = json.loads(value), False
        except (ValueError, RecursionError):
            raise InputError(f"rewards is {_show(value)}, expected a list of 0 and 1") from None
    elif is_csv:
        cells = value.replace(",", " ").replace(";", " ").split()
    if not isinstance(cells, list):
        raise InputError(f"rewards is {_show(value)}, expected a list of 0 and 1")
    if not cells:
        raise InputError("rewards is empty, expected at least one reward")
    return [_reward(f"rewards[{i}]", cell, is_csv) for i, cell in enumerate(cells)]


def _reward(name, value, is_csv) -> int:
    number = {"true": 1, "false": 0}.get(value.lower(), value) if is_csv else value
    if is_csv and isinstance(number, str):
        number = _number(number)
    if isinstance(number, (int, float)) and number in (0, 1):
        return int(number)
    missing = value is None or value == "" or (isinstance(number, float) and math.isnan(number))
    hint = " (leave out a rollout that was not scored)" if missing else ""
    raise InputError(f"{name} is {_show(value)}, expected 0 or 1{hint}")


def _integer(name, value, low, is_csv) -> int:
    number = _number(value) if is_csv else value
    numeric = isinstance(number, (int, float)) and not isinstance(number, bool)
    limit = 2**62 if name == "step" else _LIMIT  # a step may be a time stamp
    if numeric and low <= number <= limit and number == int(number):
        return int(number)
    most = f" and at most {limit}" if numeric and number > limit else ""
    raise InputError(f"{name} is {_show(value)}, expected an integer of at least {low}{most}")


def _entropy(row, is_csv) -> float:
    if {"entropy", "mean_token_entropy"} <= row.keys() and row["mean_token_entropy"] != row["entropy"]:
        raise InputError("has entropy and mean_token_entropy, and they differ")
    name = "entropy" if "entropy" in row else "mean_token_entropy"
    number = _number(row[name]) if is_csv else row[name]
    if isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number < 1e9:
        return float(number)
    raise InputError(f"{name} is {_show(row[name])}, expected a non-negative number of nats")


def _number(text):
    """A float from a CSV cell, or the cell itself where it is none."""
    try:
        return float(text) if "_" not in text else text
    except ValueError:
        return text


def _is_plain_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0") and len(digits) < 19


def _show(value) -> str:
    """A value as JSON writes it, short."""
    if isinstance(value, (list, dict)):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
