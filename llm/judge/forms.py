"""A program against the tests of a problem: the runs of each form, and the verdict on what was seen."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from llm.judge import values
from llm.judge.compare import difference, same_value, shown
from llm.judge.limits import Limits, Verdict
from llm.judge.problems import Problem
from llm.judge.process import Run, run


class Slot(NamedTuple):
    """Where programs run, one at a time."""

    number: int
    limits: Limits
    isolate: bool = True
    retries: int = 2  # of a run that the infrastructure lost, or that waited for a CPU most of its time


def judge(problem: Problem, source: str, slot: Slot) -> Verdict:
    """Run the tests in order, each in a fresh sandbox with the limits to itself, up to the first that does not pass."""
    began, retries = time.monotonic(), 0
    source = problem.prefix + source
    for i in range(problem.size):
        for attempt in range(slot.retries + 1):
            try:
                got, again = _TEST[problem.form](problem, i, source, slot)
            except OSError as error:  # no process, no pipe, no memory: ours, not the program's
                got, again = Verdict("infrastructure", why=str(error)), True
            if not again or attempt == slot.retries:
                break
            retries += 1
        if got.kind != "pass":
            return got._replace(test=i, tests=problem.size, seconds=time.monotonic() - began, retries=retries,
                                expected=shown(got.expected), got=shown(got.got))
    return Verdict("pass", time.monotonic() - began, tests=problem.size, retries=retries)


def _stdin(problem: Problem, i: int, source: str, slot: Slot) -> tuple[Verdict, bool]:
    text, expected = problem.tests[i]
    got = run({"form": "stdin", "source": source}, slot.limits, slot.number, stdin=text.encode(), isolate=slot.isolate)
    if (bad := ended_badly(got, slot.limits)) is not None:
        return bad
    differs = difference(got.stdout.decode("utf-8", "replace"), expected, problem.tolerance)
    return (Verdict("pass") if differs is None else Verdict("fail", expected=differs[0], got=differs[1])), False


def _call(problem: Problem, i: int, source: str, slot: Slot) -> tuple[Verdict, bool]:
    args, expected = problem.tests[i]
    got = run({"form": "call", "source": source, "entry": problem.entry, "args": values.dump(args)},
              slot.limits, slot.number, isolate=slot.isolate)
    if (bad := ended_badly(got, slot.limits)) is not None:
        return bad
    reply = _message(got, 0)
    if "memory" in reply:
        return Verdict("memory", why="MemoryError"), False
    if "raised" in reply:
        return Verdict("crash", why=f"{reply['raised']}: {reply.get('says', '')}"[:300]), False
    if "value" not in reply:
        return Verdict("crash", why="ended without returning a value"), False
    try:
        value = values.load(json.dumps(reply["value"]))
    except (ValueError, RecursionError):
        return Verdict("crash", why="returned something that is not a value"), False
    try:
        same = same_value(value, expected, problem.tolerance)
    except RecursionError:
        same = False
    if same:
        return Verdict("pass"), False
    call = f"{problem.entry}({', '.join(shown(a, 40) if not isinstance(a, str) else shown(repr(a), 40) for a in args)})"
    return Verdict("fail", expected=shown(expected, 200), got=shown(value, 200), why=call), False


def _check(problem: Problem, i: int, source: str, slot: Slot) -> tuple[Verdict, bool]:
    """The test code in one sandbox, the program in another: calls and values pass between them, nothing else."""
    requests, replies, end = os.pipe(), os.pipe(), os.pipe()
    seen: list[Run | OSError] = []

    def program() -> None:
        job = {"form": "serve", "source": source, "entry": problem.entry}
        try:
            seen.append(run(job, slot.limits, slot.number, channel=(requests[0], replies[1]), second=True,
                            isolate=slot.isolate, stop=end[0]))
        except OSError as error:
            seen.append(error)

    thread = threading.Thread(target=program)
    thread.start()
    job = {"form": "test", "setup": problem.setup, "test": problem.test, "entry": problem.entry}
    longer = slot.limits._replace(wall_seconds=slot.limits.wall_seconds + 5)  # the program's own limit comes first
    try:
        tester = run(job, longer, slot.number, channel=(requests[1], replies[0]), isolate=slot.isolate)
    finally:
        os.close(end[1])
        thread.join()
        os.close(end[0])
    if isinstance(seen[0], OSError):
        raise seen[0]
    return _check_verdict(tester, seen[0], slot.limits)


def _check_verdict(tester: Run, program: Run, limits: Limits) -> tuple[Verdict, bool]:
    lost = tester.lost or (program.lost if not (program.killed == "stop" and tester.ready) else "")
    if lost:
        return Verdict("infrastructure", why=lost), True
    loaded, end = _message(tester, 0), _message(tester, 1)
    if not loaded.get("loaded"):  # no word has been exchanged with the program yet
        return Verdict("infrastructure", why=f"the tests do not load: {loaded.get('broken', 'ended early')}"), False
    if end.get("passed"):
        return Verdict("pass"), False
    if "failed" in end:
        return Verdict("fail", expected=str(end["failed"]), got=str(end.get("got", "")), why=str(end["says"])), False
    if "crashed" in end:
        return Verdict("crash", why=str(end["crashed"])), False
    if end.get("lost") == "memory":
        return Verdict("memory", why="MemoryError"), False
    for one in (program, tester):
        if one.killed not in ("", "stop"):
            return ended_badly(one, limits)
    bad = ended_badly(program._replace(killed=""), limits)
    return bad if bad is not None else (Verdict("crash", why="ended while it was called"), False)


_TEST: dict[str, Callable[[Problem, int, str, Slot], tuple[Verdict, bool]]] = {
    "stdin": _stdin, "call": _call, "check": _check}


def ended_badly(got: Run, limits: Limits) -> tuple[Verdict, bool] | None:
    """(verdict, whether another try might tell more) of a run that gives nothing to compare."""
    if got.lost:
        return Verdict("infrastructure", why=got.lost), True
    if got.killed in ("wall", "cpu"):
        what = f"{limits.cpu_seconds:g} s of CPU" if got.killed == "cpu" else f"{limits.wall_seconds:g} s"
        return Verdict("timeout", why=f"more than {what}"), got.starved
    if got.killed == "memory" or got.code == 86:
        return Verdict("memory", why=f"more than {limits.memory_mb} MB"), False
    if got.killed == "output":
        return Verdict("fail", why=f"more than {limits.output_kb} kB of output", got=_start(got.stdout)), False
    if got.code == 128 + 24:  # SIGXCPU, should the clock outside have been late
        return Verdict("timeout", why=f"more than {limits.cpu_seconds:g} s of CPU"), False
    if got.code != 0:
        return Verdict("crash", why=_reason(got)), False
    return None


def _reason(got: Run) -> str:
    lines = got.stderr.decode("utf-8", "replace").strip().splitlines()
    code = got.code or 0
    ended = f"signal {code - 128}" if 128 < code < 160 else f"exit code {code}"
    return f"{ended}: {lines[-1][:300]}" if lines else ended


def _start(data: bytes) -> str:
    return data[:200].decode("utf-8", "replace")


def _message(got: Run, i: int) -> dict:
    """JSON line i that came out beside standard output; {} where there is none."""
    with contextlib.suppress(IndexError, ValueError, RecursionError):
        message = json.loads(got.lines[i])
        return message if isinstance(message, dict) else {}
    return {}
