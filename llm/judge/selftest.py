"""Before any program is judged: a good one passes, a bad one fails, and isolation holds. Fails loudly.

A judge that cannot run scores every program 0, which looks like a policy that solves nothing.
"""

import json
import os
import tempfile
from pathlib import Path

from fade_sim.errors import InputError
from llm.judge.limits import Limits
from llm.judge.problems import Problem
from llm.judge.process import run

_GOOD = "import sys\nn = int(sys.stdin.buffer.readline())\nprint(n * n)\n"
_SQUARE = Problem("stdin", (("12\n", "144\n"), ("-3\n", "9\n")))
_CHECK = Problem("check", entry="square", test="def check(candidate):\n    assert candidate(3) == 9\n")
_NAMESPACES = ("mnt", "net", "pid", "ipc", "uts")

# Looks only: it changes nothing, whatever the answers are.
_PROBE = """
import json, os
def can_write(path):
    return os.access(path, os.W_OK)
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(),
    "namespaces": {n: os.readlink("/proc/self/ns/" + n) for n in %r},
    "sees": [path for path in %r if os.path.exists(path)],
    "writable": [path for path in ("/", "/usr", "/usr/bin", "/dev", "/proc/sys/kernel") if can_write(path)],
    "interfaces": sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "capabilities": status["CapEff"].strip() + status["CapPrm"].strip() + status["CapAmb"].strip(),
    "no_new_privileges": status["NoNewPrivs"].strip(), "filter": status["Seccomp"].strip(),
    "environment": sorted(os.environ), "files": sorted(map(int, os.listdir("/proc/self/fd"))),
}))
"""


def selftest(judge) -> None:
    """Raises InputError, saying what does not hold."""
    if judge.isolate:
        isolation(judge.limits)
    cases = [("a correct program", _SQUARE, _GOOD, "pass"), ("a wrong program", _SQUARE, _GOOD + "print(1)", "fail"),
             ("a correct function", _CHECK, "def square(x):\n    return x * x\n", "pass"),
             ("a wrong function", _CHECK, "def square(x):\n    return x + x\n", "fail")]
    verdicts = judge.many([(problem, source) for _, problem, source, _ in cases])
    for (what, _, _, expected), got in zip(cases, verdicts, strict=True):
        if got.kind != expected:
            raise InputError(f"self-test of the judge: {what} got the verdict {got.kind!r} ({got.why or got.got}), "
                             f"expected {expected!r}")


def isolation(limits: Limits) -> None:
    """What a program can see and touch, found by looking from inside. Raises InputError naming what leaks."""
    with tempfile.NamedTemporaryFile(prefix="judge-secret-") as secret:
        places = [secret.name, "/etc/passwd", "/etc/shadow", "/home", "/var", str(Path(__file__).resolve()),
                  str(Path.cwd() / "pyproject.toml")]
        got = run({"form": "stdin", "source": _PROBE % (_NAMESPACES, places)}, limits, 0)
    if got.lost or got.code != 0:
        why = got.lost or got.stderr.decode("utf-8", "replace").strip()[-300:]
        raise InputError(f"self-test of the judge: programs cannot be isolated here ({why}). On your own "
                         "responsibility, --unsafe-local runs them without isolation")
    faults = leaks(json.loads(got.stdout))
    if faults:
        raise InputError(f"self-test of the judge: isolation does not hold: {'; '.join(faults)}")


def leaks(seen: dict) -> list[str]:
    """What is wrong with what a program saw."""
    own = {name: os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES}
    faults = [f"shares the {name} namespace" for name in _NAMESPACES if seen["namespaces"][name] == own[name]]
    faults += [f"sees {path}" for path in seen["sees"]] + [f"may write {path}" for path in seen["writable"]]
    if os.geteuid() == 0 and (seen["uid"] == 0 or seen["gid"] == 0 or 0 in seen["groups"]):
        faults.append("is root")
    if seen["interfaces"] not in ([], ["lo"]):
        faults.append(f"has network interfaces {seen['interfaces']}")
    if seen["processes"] > 3:
        faults.append(f"sees {seen['processes']} processes")
    if set(seen["capabilities"]) != {"0"}:
        faults.append(f"has capabilities {seen['capabilities']}")
    if seen["no_new_privileges"] != "1" or seen["filter"] != "2":
        faults.append("has no system-call filter, or may gain privileges")
    if set(seen["environment"]) - {"PATH", "HOME", "TMPDIR", "LANG", "PYTHONHASHSEED", "PWD", "LC_CTYPE"}:
        faults.append(f"sees the environment {seen['environment']}")
    if max(seen["files"]) > 3:
        faults.append(f"has open files {seen['files']}")
    return faults
