"""Hostile programs: none gets out, none is rewarded, none takes the machine with it. Honest ones pass beside them."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from attacked import CHEATED, SECRET_NUMBER, cheats, escapes, plain, takes, world
from hostile import OUT, TAKE, attack, variants
from needs import ROOT, needs_bwrap, running_judge, stdin

pytestmark = needs_bwrap

HONEST = {
    "check": f"def f(x): return {SECRET_NUMBER}",
    "call": f"class Solution:\n    def f(self, x): return {SECRET_NUMBER}",
    "stdin": f"import threading, sys\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
             f"t = threading.Thread(target=lambda: print({SECRET_NUMBER}))\nt.start()\nt.join()\nexit()",
}


@pytest.fixture(scope="module")
def judge():
    yield from running_judge()


@pytest.fixture(scope="module")
def watched():
    with world() as (facts, faults):
        yield facts, faults


def test_no_attack_gets_out(judge, watched):
    facts, faults = watched
    assert escapes(judge, plain(facts)) == [] and faults() == []


def test_an_escape_would_be_seen(judge, watched):
    """The control: a harmless program that says what an attack would say."""
    body = "if os.path.exists('/usr'): escaped()"
    clothes = ("plain", "in a thread", "in a child")
    got = escapes(judge, [("control", attack(body, watched[0], how)) for how in clothes])
    assert got == ["control: pass "] * 3


def test_no_program_is_rewarded_for_less_than_the_answer(judge, watched):
    assert cheats(judge) == [] and watched[1]() == []
    for form, source in HONEST.items():
        assert judge.one(CHEATED[form], source).kind == "pass", form


def test_programs_that_want_all_of_the_machine(judge, watched):
    assert takes(judge, ("memory", "memory, piece by piece", "fork bomb", "output without end",
                         "an orphan that goes on", "keeps its output open")) == []
    assert watched[1]() == []


def test_a_leak_fails_the_self_test(monkeypatch):
    """Isolation that does not hold stops the judge before the first program."""
    from llm.judge import Judge, sandbox

    real = sandbox.isolated

    def leaky(command, *rest):
        argv = real(command, *rest)
        at = argv.index("--proc")
        return [*argv[:at], "--ro-bind", "/etc", "/etc", *argv[at:]]

    monkeypatch.setattr(sandbox, "isolated", leaky)
    with pytest.raises(ValueError, match="isolation does not hold: sees /etc/passwd"), Judge():
        pass
    monkeypatch.setattr(sandbox, "isolated", lambda command, *rest: [
        a for a in real(command, *rest) if a not in ("--unshare-net",)])
    with pytest.raises(ValueError, match="isolation does not hold: shares the net namespace"), Judge():
        pass


def test_without_bubblewrap_it_refuses(monkeypatch):
    from llm.judge import Judge, sandbox

    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sandbox.os, "access", lambda *_: False)
    with pytest.raises(ValueError, match=r"bubblewrap .bwrap. is not installed"), Judge():
        pass


# --- slow ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_program_that_wants_all_of_the_machine(judge, watched):
    assert len(TAKE) >= 18 and takes(judge) == [] and watched[1]() == []


@pytest.mark.slow
def test_two_hundred_variants(judge, watched):
    facts, faults = watched
    assert len(OUT) >= 45 and escapes(judge, variants(200, facts)) == [] and faults() == []


@pytest.mark.slow
def test_a_thousand_programs_leave_nothing(judge, watched):
    """Side by side: no process, no file, no mount."""
    good = "print(int(input()) + 1)"
    bad = ("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(9)\n"
           "open('/tmp/tmp-left', 'w').write('x')\nprint(0)")
    problem = stdin(("4", "5"))
    verdicts = judge.many([(problem, good if i % 2 else bad) for i in range(1000)])
    assert [v.kind for v in verdicts] == ["fail", "pass"] * 500
    assert watched[1]() == []


def ordinary_python() -> str | None:
    """An interpreter that the user nobody can start."""
    for python in (sys.executable, shutil.which("python3.13"), shutil.which("python3.12"), "/usr/bin/python3"):
        if python and os.geteuid() == 0 and shutil.which("setpriv"):
            look = "import os, sys; sys.exit(sys.version_info < (3, 11) or not os.access(os.__file__, os.R_OK) or " \
                   "not os.path.realpath(sys.executable).startswith(os.path.realpath(sys.base_prefix)))"
            done = subprocess.run([*NOBODY, python, "-c", look], cwd="/", capture_output=True)
            if done.returncode == 0:
                return python
    return None


NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]


@pytest.mark.slow
def test_as_an_ordinary_user():
    """The same programs, judged by a user without any right."""
    python = ordinary_python()
    if python is None:
        pytest.skip("needs root, setpriv and a Python that the user nobody can start")
    readable = subprocess.run([*NOBODY, "test", "-r", str(ROOT / "llm/judge/inside.py")]).returncode == 0
    if not readable:
        pytest.skip(f"the user nobody cannot read {ROOT}")
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "HOME": "/nonexistent",
                   "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*NOBODY, python, str(ROOT / "tests/judge/attacked.py"), "60"], capture_output=True,
                          text=True, env=environment, cwd="/", timeout=600)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout.splitlines()[-1])
    assert got["uid"] == 65534 and got["wrong"] == [] and got["judged"] > 150
