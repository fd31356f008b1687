"""Everything hostile at once, against a world that is watched. Also a program: `python attacked.py [variants]`.

As a program it prints a JSON line of what went wrong: a test runs it as another user.
"""

import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hostile import CHEAT, OUT, TAKE, attack, variants

from llm.judge import Judge, Limits, Problem

SLIPS = ("SyntaxError", "NameError", "TypeError", "AttributeError", "IndentationError", "ImportError", "IndexError")
LIMITS = Limits(cpu_seconds=0.6, wall_seconds=1.6, memory_mb=300)
ESCAPED = Problem("stdin", (("", "ESCAPED"),))
SECRET_NUMBER = 918_273_645_546_372_819  # nowhere in a sandbox
CHEATED = {
    "check": Problem("check", entry="f", test=f"def check(candidate):\n    assert candidate(7) == {SECRET_NUMBER}\n"),
    "call": Problem("call", (([7], SECRET_NUMBER),), entry="f"),
    "stdin": Problem("stdin", (("7\n", str(SECRET_NUMBER)),)),
}


@contextmanager
def world():
    """(facts for the attacks, faults()): secrets, listeners and a process; faults() says what happened to them."""
    bystander = subprocess.Popen(["sleep", "600"])
    with tempfile.NamedTemporaryFile("w", prefix="judge-secret-") as secret, socket.socket() as listener, \
            socket.socket(socket.AF_UNIX) as abstract:
        secret.write("secret")
        secret.flush()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        name = f"judge-{os.getpid()}"
        abstract.bind("\0" + name)
        abstract.listen()
        os.environ["JUDGE_SECRET"] = "secret"
        at = {"x86_64": 0, "aarch64": 1}[platform.machine()]
        facts = {"repo": str(Path(__file__).resolve()), "secret": secret.name, "home": str(Path.home()),
                 "pid": bystander.pid, "port": listener.getsockname()[1], "abstract": name, "variable": "JUDGE_SECRET",
                 "clone": (56, 220)[at], "add_key": (248, 217)[at], "shmget": (29, 194)[at], "bpf": (321, 280)[at]}
        before = surroundings()

        def faults() -> list[str]:
            out = [f"{what}: {sorted(new)[:3]}" for what, now in surroundings().items() if (new := now - before[what])]
            if bystander.poll() is not None:
                out.append("a process outside was ended")
            try:
                listener.accept()
                out.append("a listener outside was reached")
            except BlockingIOError:
                pass
            return out

        try:
            yield facts, faults
        finally:
            bystander.kill()
            bystander.wait()


def surroundings() -> dict[str, set]:
    """Mounts, files of shared folders, and processes that a judge could have left."""
    sandboxed = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if b"int_max_str_digits=0" in command or command.startswith(b"bwrap"):
            sandboxed.add(path.name)
    return {"mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()), "processes": sandboxed,
            "files": {f"{folder}/{name}" for folder in ("/tmp", "/dev/shm", "/usr", "/", "/dev")
                      if os.path.isdir(folder) for name in os.listdir(folder) if "judge-was-here" in name or
                      (name.startswith("tmp") and os.stat(f"{folder}/{name}").st_uid == os.getuid())},
            "queues": set(Path("/proc/sysvipc/shm").read_text().splitlines())}


def escapes(judge: Judge, sources: list[tuple[str, str]]) -> list[str]:
    """Names of the attacks that worked, that kept the judge from a verdict, or that are no attack but a slip."""
    assert judge.isolate  # its self-test has passed, or it would not have started
    verdicts = judge.many([(ESCAPED, source) for _, source in sources])
    return [f"{name}: {v.kind} {v.why}" for (name, _), v in zip(sources, verdicts, strict=True)
            if v.kind in ("pass", "infrastructure") or "ESCAPED" in v.got or any(slip in v.why for slip in SLIPS)]


def plain(facts: dict) -> list[tuple[str, str]]:
    return [(name, attack(body, facts)) for name, body in OUT.items()]


def cheats(judge: Judge) -> list[str]:
    verdicts = judge.many([(CHEATED[form], source) for form, source in CHEAT.values()])
    return [f"{name}: {v.kind} {v.why}" for name, v in zip(CHEAT, verdicts, strict=True) if v.reward != 0.0]


def takes(judge: Judge, names=tuple(TAKE)) -> list[str]:
    assert judge.isolate
    from hostile import PRELUDE

    verdicts = judge.many([(ESCAPED, PRELUDE + TAKE[name][0]) for name in names])
    return [f"{name}: {v.kind} {v.why}" for name, v in zip(names, verdicts, strict=True) if v.kind not in TAKE[name][1]]


if __name__ == "__main__":
    with Judge(LIMITS, 2) as started, world() as (where, happened):  # raises unless isolation holds
        wrong = escapes(started, plain(where)) + cheats(started) + takes(started)
        wrong += escapes(started, variants(int(sys.argv[1]), where)) if len(sys.argv) > 1 else []
        print(json.dumps({"uid": os.getuid(), "wrong": wrong + happened(), "judged": sum(started.counts.values())}))
