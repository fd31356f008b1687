"""What each engine writes, read in its source, and a reader for it.

verl 0.9.1 (PyPI), `trainer.rollout_data_dir`: `_write_generations` of trainer/ppo/ray_trainer.py and of
    trainer/ppo/v1/trainer_base.py. N.jsonl per step: input, output, gts, score, step, and the reward's extra
    fields; V1 adds uid = "{uid}_{session}_{output}", all outputs of a session with the session's reward,
    and lines that only fill the batch up, whose uid starts with "pad".
TRL 1.16.0 (PyPI), `log_completions`: `log` of trainer/grpo_trainer.py. completions/completions_NNNNN.parquet: step,
    prompt, completion, a column per reward function, extra columns, advantage. A file is the last rollouts, as
    many as a generation brings: they come again where several steps share them, and an evaluation takes the
    place of the older ones (not to be told apart). There is no JSON form.
prime-rl, 0.6.0 to August 2026 (commit 559b447) with verifiers (commit a60a606): `FileMonitor.log_episodes` and
    `Episode.to_record`. rollouts/step_N/train/{all,effective}/traces.jsonl, an episode with its traces a line;
    0.7 and 0.8.0: a trace a line; 0.6: rollouts/step_N/train_rollouts.jsonl. The file is that of the step at which
    a rollout arrived: a group may lie in two.
open-instruct, August 2026 (commit e6c3044), `--save_traces`: `RolloutRecord` of rl_utils.py.
    RUN_rollouts_NNNNNN.jsonl: step, sample_idx, prompt_idx, prompt_tokens, reward, dataset, ... By default uniform
    groups were dropped before, and prompt_idx = sample_idx // n is wrong where truncated rollouts were.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fade_sim.errors import InputError
from fade_sim.traces.collect import UNJUDGED, Reading, Rollout, digest, entropy, show, take, whole

_STEP = r"(0|[1-9][0-9]{0,17})"


class Engine(NamedTuple):
    layout: str  # of a folder, in words
    files: Callable[[Path], list[Path]]  # of a folder, in order of steps; [] where it is another engine's
    fits: Callable[[dict], bool]  # is a line one of this engine's?
    read: Callable[[list[Path], Reading], Iterator[Rollout]]


def _numbered(folder: Path, pattern: str) -> list[Path]:
    """Entries of a folder whose whole name matches, by the number in the first group."""
    if not folder.is_dir():
        return []
    found = ((re.fullmatch(pattern, path.name), path) for path in folder.iterdir())
    return [path for _, path in sorted((int(match[1]), path) for match, path in found if match)]


# --- verl ---------------------------------------------------------------------------------------------


def _verl(files, reading):
    for path in files:
        named = int(path.stem) if re.fullmatch(_STEP, path.stem) else None

        def parse(row, named=named):
            step = whole("step", take(row, "step", "verl"))
            if named is not None and step != named:
                raise InputError(f"step is {step}, expected {named} as in the file's name")
            group = part_of = None
            if "uid" in row:
                uid = str(row["uid"])
                key = re.fullmatch(r"(.+)_(\d+)_\d+", uid)
                if key and re.fullmatch(r"pad[0-9a-f]{32}", key[1]):
                    reading.left["lines that only fill up a batch"] += 1
                    return None
                group = (step, key[1] if key else uid)
                part_of = (*group, key[2]) if key else None
            name = reading.reward or "score"
            reward = take(row, name, "verl")
            if isinstance(reward, str):  # json.dumps(default=str) of a NumPy scalar
                reward = {"True": True, "False": False}.get(reward, _number(reward))
            extra = {key: value for key, value in row.items() if key not in ("input", "output", "gts", "score", "step")}
            success = reading.judge(name, reward, extra)
            return Rollout(digest(take(row, "input", "verl")), success, step, group, None, entropy(row), part_of)

        yield from reading.rollouts(path, parse, reading.lines(path))


def _number(text: str):
    try:
        return float(text)
    except ValueError:
        return text


# --- TRL ----------------------------------------------------------------------------------------------


def _trl_files(path):
    for folder in (path, path / "completions"):
        if found := _numbered(folder, r"completions_(\d{1,18})\.parquet"):
            return found
    return []


def _trl(files, reading):
    reading.notes.append("TRL writes evaluations into the same files: where one ran, its rollouts are among these")
    before = {}
    for path in files:
        groups = {}
        for rollout, content in _trl_file(path, reading, last=path == files[-1] and len(files) > 1):
            groups.setdefault(rollout.prompt, []).append((rollout, content))
        for prompt, rows in groups.items():
            old = [content for _, content in before.get(prompt, ())]
            if old[-len(rows):] == [content for _, content in rows]:  # an evaluation pushes the first ones out
                reading.left["groups that were in the file before as well"] += 1
                reading.left[UNJUDGED] -= sum(rollout.success is None for rollout, _ in rows)
            else:
                yield from (rollout for rollout, _ in rows)
        before = groups


def _trl_file(path, reading, last):
    """(rollout, its completion and verdict) of each row."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InputError(f"{path}: is a Parquet file and needs pyarrow: pip install pyarrow") from None
    if last and not _whole_parquet(path):
        reading.notes.append(f"{path}: the last file is cut off (a killed run?): left out")
        return
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError):
        raise InputError(f"{path}: is not a whole Parquet file") from None
    with file:
        name, columns = _trl_columns(path, file.schema_arrow, reading)
        number = 0
        try:
            for batch in file.iter_batches(batch_size=256, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    try:
                        rollout = Rollout(digest(row["prompt"]), reading.judge(name, row[name]),
                                          whole("step", row["step"]), entropy=entropy(row))
                    except InputError as error:
                        raise InputError(f"{path}: row {number}: {error}") from None
                    yield rollout, (digest(row["completion"]), rollout.success)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError):
            raise InputError(f"{path}: row {number + 1}: cannot be read (a damaged file?)") from None


def _whole_parquet(path) -> bool:
    with open(path, "rb") as stream:
        stream.seek(max(0, path.stat().st_size - 4))
        return stream.read(4) == b"PAR1"


def _trl_columns(path, schema, reading):
    """(the reward's column, all columns to read)"""
    import pyarrow

    def numeric(field):
        return (pyarrow.types.is_floating(field.type) or pyarrow.types.is_integer(field.type)
                or pyarrow.types.is_boolean(field.type))

    for name in ("step", "prompt", "completion"):
        if name not in schema.names:
            raise InputError(f"{path}: no column {name}, expected completions of TRL; found "
                             f"{', '.join(schema.names[:8])}")
    extra = [name for name in ("entropy", "mean_token_entropy") if name in schema.names]
    rewards = [field.name for field in schema
               if numeric(field) and field.name not in ("step", "advantage", "entropy", "mean_token_entropy")]
    name = reading.reward or (rewards[0] if len(rewards) == 1 else None)
    if name is None:
        what = f"has {len(rewards)} columns that may be the reward ({', '.join(rewards[:6])})"
        raise InputError(f"{path}: {what if rewards else 'has no column of rewards'}, expected one: --reward NAME")
    if name not in schema.names:
        raise InputError(f"{path}: no column {name}; found {', '.join(schema.names[:8])}")
    return name, [*dict.fromkeys(("step", "prompt", "completion", name, *extra))]


# --- prime-rl -----------------------------------------------------------------------------------------


def _prime_files(path):
    path = path.absolute()
    for folder in (path, path / "rollouts"):
        steps = _numbered(folder, rf"step_{_STEP}") or [folder] * bool(re.fullmatch(rf"step_{_STEP}", folder.name))
        for name in ("train/all/traces.jsonl", "train/effective/traces.jsonl", "train_rollouts.jsonl"):
            if found := [file for step in steps if (file := step / name).is_file()]:
                return found
    return []


def _prime(files, reading):
    if any(path.absolute().parent.name == "effective" for path in files):
        reading.notes.append("effective rollouts only: those that failed, were stale or not admitted are not in them")
    for path in (path.absolute() for path in files):
        step = next((int(part[5:]) for part in reversed(path.parts) if re.fullmatch(rf"step_{_STEP}", part)), None)

        def parse(row, step=step):
            return _prime_episode(row, step, reading)

        yield from reading.rollouts(path, parse, reading.lines(path))


def _prime_episode(row, step, reading):
    """A line: an episode with its traces (0.8.1), a trace (0.7, 0.8.0), or a flat rollout (0.6)."""
    if "example_id" in row and "traces" not in row:
        env, group = row.get("env_name") or row.get("task"), row.get("group_id")
        failed = row.get("error") is not None
        name = reading.reward or "reward"
        value = row["metrics"].get(name) if name != "reward" and isinstance(row.get("metrics"), dict) else row.get(name)
        if value is None and not failed:
            value = take(row, name, "prime-rl")
        prompt = digest([env, row["example_id"]])
    else:
        task = take(row, "task", "prime-rl")
        trace, failed = row, False
        if "traces" in row:
            traces = row["traces"] if isinstance(row["traces"], list) else []
            trained = [one for one in traces if isinstance(one, dict) and _part(one, "agent").get("trainable", True)]
            if len(trained) > 1:
                raise InputError(f"has {len(trained)} trained traces, expected one (agents that learn together?)")
            trace = trained[0] if trained else {"rewards": {}, "ok": False}
        elif not _part(row, "agent").get("trainable", True):
            reading.left["traces of agents that are not trained"] += 1
            return None
        info = _part(row, "info")
        env = _part(row, "env").get("name") or row.get("env_name") or info.get("env_name")
        group = _part(row, "group").get("id") or row.get("group_id") or info.get("group_id")
        failed = not trace["ok"] if "ok" in trace else bool(trace.get("errors"))
        name, value = _prime_reward(trace, failed, reading)
        prompt = digest([env, task.get("data", task) if isinstance(task, dict) else task])
    success = reading.judge(name, None if failed else value)
    return Rollout(prompt, success, step, None if group is None else (str(group),),
                   None if env is None else str(env), entropy(row))


def _prime_reward(trace, failed, reading):
    """(name, value): the weighted sum of a trace's rewards, or the one that was asked for."""
    rewards = take(trace, "rewards", "prime-rl")
    if not isinstance(rewards, dict):
        raise InputError(f"rewards is {show(rewards)}, expected an object of named rewards")
    name = reading.reward
    if name is not None:
        named = rewards.get(name, _part(trace, "metrics").get(name))
        if named is None and not failed and name not in rewards:
            raise InputError(f"no reward {name}; found {', '.join(rewards)[:120] or 'none'}")
        return name, named.get("score") if isinstance(named, dict) else named
    values = []
    for key, one in rewards.items():
        weight = one.get("weight", 1.0) if isinstance(one, dict) else 1.0
        score = one.get("score") if isinstance(one, dict) else one
        if score is None:
            return "the sum of rewards", None
        for number in (score, weight):
            if not isinstance(number, (int, float)) or abs(number) > 1e300:
                raise InputError(f"rewards.{key} is {show(number)}, expected a finite number")
        values.append(float(score) * float(weight))
    return "the sum of rewards", sum(values) if values else None


def _part(row, name) -> dict:
    value = row.get(name) if isinstance(row, dict) else None
    return value if isinstance(value, dict) else {}


def _fits_prime(row) -> bool:
    return ("task" in row and (isinstance(row.get("traces"), list) or isinstance(row.get("rewards"), dict))) or (
        "example_id" in row and "reward" in row and "prompt_id" not in row)


# --- open-instruct ------------------------------------------------------------------------------------

_SHARD = r"(.+)_rollouts_(\d{6,18})\.jsonl"


def _open_instruct_files(path):
    """Shards of a folder, or of FOLDER/RUN."""
    folder = path if path.is_dir() else path.parent
    runs = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        if (match := re.fullmatch(_SHARD, file.name)) and (path.is_dir() or match[1] == path.name):
            runs.setdefault(match[1], []).append((int(match[2]), file))
    if len(runs) > 1:
        named = ", ".join(sorted(runs)[:4]) + (", ..." if len(runs) > 4 else "")
        raise InputError(f"{path}: holds rollouts of {len(runs)} runs ({named}): choose one, {path}/RUN")
    return [file for shards in runs.values() for _, file in sorted(shards)]


def _open_instruct(files, reading):
    started = set()

    def parse(row):
        step = whole("step", take(row, "step", "open-instruct"))
        if whole("sample_idx", take(row, "sample_idx", "open-instruct")) == 0:
            if step in started:
                raise InputError(f"step {step} is recorded a second time (a resumed run?): keep one of the two")
            started.add(step)
        name = reading.reward or "reward"
        success = reading.judge(name, take(row, name, "open-instruct"))
        task = row.get("dataset")
        task = " ".join(map(str, task)) if isinstance(task, list) else task if task is None else str(task)
        return Rollout(digest(take(row, "prompt_tokens", "open-instruct")), success, step, None, task, entropy(row))

    for path in files:
        yield from reading.rollouts(path, parse, reading.lines(path))


ENGINES = {
    "verl": Engine("N.jsonl per step", lambda path: _numbered(path, rf"{_STEP}\.jsonl"),
                   lambda row: {"input", "output", "score", "step"} <= row.keys(), _verl),
    "trl": Engine("completions_N.parquet, in it or in completions/", _trl_files, lambda row: False, _trl),
    "prime-rl": Engine("rollouts/step_N/train/all/traces.jsonl", _prime_files, _fits_prime, _prime),
    "open-instruct": Engine("RUN_rollouts_N.jsonl", _open_instruct_files,
                            lambda row: {"prompt_idx", "sample_idx", "reward", "prompt_tokens"} <= row.keys(),
                            _open_instruct),
}
