"""Judges of programs: faults that people reported, and the right verdict."""

import threading
import time
from pathlib import Path

import pytest
from needs import SMALL, call, check, needs_bwrap, running_judge, stdin

from fade_sim.advantage import advantages, make
from llm.judge import Judge, Limits, forms
from llm.judge.process import Run
from llm.reward import Silence

pytestmark = needs_bwrap
ENDED = Run(True, 0, "", b"", b"", [], 0.1, False, "")  # a run that printed nothing


@pytest.fixture(scope="module")
def judge():
    yield from running_judge()


def test_binary_standard_input(judge):
    """RWC-03: a mocked standard input has no buffer, so fast-input solutions fail."""
    source = "import sys\nprint(int(sys.stdin.buffer.read()) + 1)"
    assert judge.one(stdin(("4", "5")), source).kind == "pass"


def test_standard_input_is_a_real_pipe(judge):
    """RWC-04: a mocked byte stream replays its first line, or keeps a cursor apart from the text stream."""
    twice = "import sys\nprint(sys.stdin.buffer.readline(), sys.stdin.buffer.readline())"
    assert judge.one(stdin(("2\n5\n6\n", r"b'2\n' b'5\n'")), twice).kind == "pass"
    mixed = "import sys\nprint((sys.stdin.readline(), sys.stdin.buffer.read()))"
    assert judge.one(stdin(("2\n5\n6\n", r"('2\n', b'')")), mixed).kind == "pass"  # the text layer has read ahead
    device = "print(open('/dev/stdin').read().split(), end='')"
    assert judge.one(stdin(("2 5", "['2', '5']")), device).kind == "pass"


@pytest.mark.parametrize("broken", ["sandbox.python_command", "forms.difference"])
def test_a_judge_that_does_not_work_says_so(monkeypatch, broken):
    """RWC-05: an error inside the harness scores every program 0, and none is shown."""
    from llm.judge import sandbox

    if broken == "forms.difference":  # calls everything equal
        monkeypatch.setattr(forms, "difference", lambda *_: None)
    else:
        monkeypatch.setattr(sandbox, "python_command", lambda *_: ["/usr/bin/false"])
    with pytest.raises(ValueError, match="self-test of the judge"), Judge(SMALL, 1):
        pass


def test_a_program_in_one_long_call_is_killed_from_outside():
    """RWC-06: an alarm inside the process is served only when the call returns; memory must have a limit."""
    with Judge(SMALL._replace(cpu_seconds=0.2, memory_mb=300), 1) as quick:
        began = time.monotonic()
        got = quick.one(stdin(("", "1")), "print(sum(range(10**11)))")
        assert got.kind == "timeout" and time.monotonic() - began < 30  # the call takes an hour
        assert quick.one(stdin(("", "1")), "x = bytearray(2 * 10**9)\nprint(1)").kind == "memory"
        assert quick.one(stdin(("", "1")), "x = [0] * (2 * 10**9)\nprint(1)").kind == "memory"


def test_a_busy_machine_is_not_a_slow_program(monkeypatch):
    """RWC-07: limits of milliseconds, of wall time alone, fail correct programs under load."""
    assert Limits().wall_seconds > Limits().cpu_seconds >= 1
    runs = [ENDED._replace(code=None, killed="wall", starved=True), ENDED._replace(stdout=b"5\n")]
    monkeypatch.setattr(forms, "run", lambda *_, **__: runs.pop(0))
    got = forms.judge(stdin(("4", "5")), "", forms.Slot(0, SMALL))
    assert (got.kind, got.retries) == ("pass", 1)
    monkeypatch.setattr(forms, "run", lambda *_, **__: ENDED._replace(code=None, killed="wall", starved=False))
    got = forms.judge(stdin(("4", "5")), "", forms.Slot(0, SMALL))
    assert (got.kind, got.retries) == ("timeout", 0)


def test_waiting_for_a_cpu_is_seen(monkeypatch):
    """RWC-07: what was waited for a CPU comes from the kernel; here it says that all of the time went by so."""
    from llm.judge import process, usage

    real = usage.of_tree
    monkeypatch.setattr(usage, "of_tree", lambda pid: real(pid)._replace(waited=60.0))
    job = {"form": "stdin", "source": "import time; time.sleep(9)"}
    got = process.run(job, SMALL._replace(wall_seconds=0.7), 0)
    assert got.killed == "wall" and got.starved
    monkeypatch.setattr(usage, "of_tree", real)
    got = process.run(job, SMALL._replace(wall_seconds=0.7), 0)
    assert got.killed == "wall" and not got.starved


def test_an_error_is_no_empty_output(judge):
    """RWC-08: a wrapper swallows the exception, and nothing printed equals nothing expected."""
    assert judge.one(stdin(("", "")), "raise ValueError").kind == "crash"
    assert judge.one(stdin(("", "")), "pass").kind == "pass"
    assert judge.one(call("f", ([], None)), "def f(): raise ValueError").kind == "crash"
    assert judge.one(call("f", ([], None)), "def f(): pass").kind == "pass"
    assert judge.one(call("f", ([], "")), "def f(): return None").kind == "fail"


def test_a_hang_is_a_timeout_whatever_is_expected(judge):
    """RWC-09: a broad except before the timeout's own counts a hang as a correct rejection."""
    loop = "while True: pass"
    assert judge.one(stdin(("", "reject")), loop).kind == "timeout"
    swallow = ("import signal\nfor s in (14, 15, 24): signal.signal(s, lambda *_: None)\nwhile True:\n    try:\n"
               "        while True: pass\n    except BaseException: pass")
    assert judge.one(stdin(("", "reject")), swallow).kind == "timeout"
    rejects = check("f", "try:\n        candidate(1)\n    except Exception:\n        pass")
    assert judge.one(rejects, "def f(x): raise ValueError").kind == "pass"
    assert judge.one(rejects, "def f(x):\n    while True: pass").kind == "timeout"
    assert judge.one(rejects, "import os\ndef f(x): os._exit(0)").kind == "crash"


def test_grandchildren_end_with_the_program(judge):
    """RWC-10: killing the child alone leaves its children; one in a session of its own escapes the process group."""
    name = f"judge-orphan-{time.monotonic_ns()}"
    source = f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.execv('/bin/sleep', ['{name}', '100'])\n" \
             "time.sleep(.8)\nprint('done')"

    def read(path: Path) -> bytes:
        try:
            return path.read_bytes().split(b"\0")[0]
        except OSError:
            return b""

    def alive() -> bool:
        return any(name.encode() in read(p) for p in Path("/proc").glob("[0-9]*/cmdline"))

    seen = []
    thread = threading.Thread(target=lambda: seen.append(judge.one(stdin(("", "done")), source)))
    thread.start()
    while thread.is_alive() and not alive():
        time.sleep(0.02)
    assert alive()  # the check sees it while it runs
    thread.join()
    assert seen[0].kind == "pass" and not alive()
    killed = judge.one(stdin(("", "done")), source.replace(".8", "60"))
    assert killed.kind == "timeout" and not alive()


def test_limits_are_per_test():
    """RWC-11: one limit for all tests, instead of one for each, changes the score."""
    slow = "import time\ntime.sleep(.3)\nprint(input())"
    with Judge(SMALL._replace(wall_seconds=1.1), 1) as one:
        got = one.one(stdin(*[(str(i), str(i)) for i in range(5)]), slow)
    assert got.kind == "pass" and got.seconds > 1.5


def test_reward_is_binary(judge):
    """RWC-12: a second pass over the tests yields a fractional reward."""
    tests = [(str(i), str(i)) for i in range(12)]
    got = judge.one(stdin(*tests), "n = int(input())\nprint(n if n != 11 else 0)")
    assert (got.kind, got.reward, got.test, got.tests) == ("fail", 0.0, 11, 12)
    assert (got.expected, got.got) == ("11", "0")


def test_integers_of_any_length(judge):
    """RWC-13: Python refuses to print more than 4300 digits."""
    big = "1" + "0" * 5000
    assert judge.one(stdin(("", big)), "print(10**5000)").kind == "pass"
    assert judge.one(stdin((big, big)), "print(int(input()))").kind == "pass"
    assert judge.one(stdin(("", big)), "print(10**5000 + 1)").kind == "fail"
    assert judge.one(call("f", ([10**5000], 10**5000 + 1)), "def f(x): return x + 1").kind == "pass"
    assert judge.one(call("f", ([10**5000], 10**5000 + 1)), "def f(x): return x").kind == "fail"


def test_a_limit_below_a_second_is_armed():
    """RWC-14: an alarm in whole seconds is switched off by int(.5)."""
    with Judge(SMALL._replace(cpu_seconds=0.5, wall_seconds=0.5), 1) as quick:
        got = quick.one(stdin(("", "1")), "import time\ntime.sleep(60)")
    assert got.kind == "timeout" and 0.4 < got.seconds < 30


def test_a_grader_that_fails_is_no_wrong_answer(monkeypatch):
    """RWC-15: any failure of the sandbox becomes reward 0. Of rewards [?, 1, 0, 1] the others get [1/3, -2/3, 1/3]."""
    calls = []

    def fails(*_, **__):
        calls.append(1)
        raise ConnectionError("sandbox is down")

    monkeypatch.setattr(forms, "run", fails)
    got = forms.judge(stdin(("4", "5")), "print(5)", forms.Slot(0, SMALL, retries=2))
    assert (got.kind, got.reward, got.retries, len(calls)) == ("infrastructure", None, 2, 3)
    rewards, valid = [0.0, 1.0, 0.0, 1.0], [False, True, True, True]
    assert advantages(rewards, [0] * 4, make("dr_grpo"), valid=valid).tolist() == pytest.approx([0, 1/3, -2/3, 1/3])


def test_a_run_that_was_lost_is_repeated(monkeypatch):
    """RWC-15: retried and counted."""
    runs = [ENDED._replace(ready=False, lost="no sandbox"), ENDED._replace(stdout=b"5\n")]
    monkeypatch.setattr(forms, "run", lambda *_, **__: runs.pop(0))
    got = forms.judge(stdin(("4", "5")), "", forms.Slot(0, SMALL))
    assert (got.kind, got.retries) == ("pass", 1)


@pytest.mark.parametrize("source", ["import os\nos._exit(1)", "import os\nos.kill(os.getpid(), 9)", "exit(86)",
                                    "(" * 5000, "import os\nos.closerange(0, 64)"])
def test_no_program_can_look_like_infrastructure(judge, source):
    """RWC-15, turned round: a program that could would choose to be left out rather than to fail."""
    for problem in (stdin(("", "1")), call("f", ([], 1)), check("f", "assert candidate() == 1")):
        got = judge.one(problem, source)
        assert got.kind in ("fail", "crash", "timeout", "memory") and got.reward == 0.0, (problem.form, got)


def test_a_reward_that_is_always_0_is_said():
    """RWC-16: the last line of every run could not be read, so every reward was 0."""
    quiet, loud = Silence(steps=3), Silence(steps=3)
    assert [bool(loud.says({"solve_rate": 0.0})) for _ in range(5)] == [False, False, True, False, False]
    assert [quiet.says({"solve_rate": r}) for r in (0.0, 0.1, 0.0, 0.0, 0.0, 0.0)] == [""] * 6


def test_an_empty_output_is_a_wrong_answer_not_an_error(judge):
    """RWC-16: a runner that returns nothing: the program did print nothing, and it is said."""
    got = judge.one(stdin(("", "1")), "pass")
    assert (got.kind, got.expected, got.got) == ("fail", "1", "")
