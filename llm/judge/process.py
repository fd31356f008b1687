"""One process, from start to the certain end of everything it started: fed, read, watched, killed from outside."""

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from typing import NamedTuple

from llm.judge import sandbox, seccomp, usage
from llm.judge.limits import Limits

_TICK = 0.05  # seconds between two looks at what the processes use
_STARTING = 30.0  # seconds that a sandbox may take to start; its wall limit counts from then on
_ERRORS = 16384  # bytes of standard error that are kept
STARVED = 0.25  # share of the wall time spent waiting for a CPU above which a timeout proves nothing


class Run(NamedTuple):
    """What was seen of a process."""

    ready: bool  # its limits were in force and the program was about to start
    code: int | None  # exit code; None where it was killed from outside
    killed: str  # "", "wall", "cpu", "memory", "output" or "stop"
    stdout: bytes
    stderr: bytes
    lines: list[bytes]  # what came out beside standard output, after the line that says ready
    seconds: float  # wall time from ready on
    starved: bool  # most of a wall timeout went by waiting for a CPU
    lost: str  # why nothing can be said of it: the sandbox did not start, or would not end


class _Reader:
    """A pipe that is read up to a limit."""

    def __init__(self, fd: int, limit: int, keep_reading: bool = False):
        self.fd, self.limit, self.keep_reading, self.data = fd, limit, keep_reading, bytearray()

    def read(self) -> str:
        """"" while there may be more, else "end" or "output"."""
        block = os.read(self.fd, 1 << 16)
        if not block:
            return "end"
        room = self.limit - len(self.data)
        self.data += block[:room]
        return "output" if len(block) > room and not self.keep_reading else ""


class _Writer:
    """Bytes that go into a pipe as fast as the other side takes them."""

    def __init__(self, fd: int, data: bytes):
        self.fd, self.data = fd, memoryview(data)
        os.set_blocking(fd, False)

    def write(self) -> str:
        try:
            self.data = self.data[os.write(self.fd, self.data[: 1 << 16]) :]
        except BlockingIOError:
            return ""
        except OSError:  # the program does not read: its right
            return "end"
        return "" if self.data else "end"


def run(job: dict, limits: Limits, slot: int, *, stdin: bytes = b"", channel: tuple[int, ...] = (),
        second: bool = False, isolate: bool = True, stop: int | None = None) -> Run:
    """Run a job (see inside.py) and wait until nothing of it is left.

    channel: descriptors that are handed over to the process, and closed here. stop: when it ends, so does the run.
    """
    uid = sandbox.slot_uid(slot, second) if isolate else None
    job = {**job, "limits": limits._asdict(), "extra": 1 if isolate else 4096}  # a user namespace counts its init too
    pipes: list[int] = list(channel)

    def pipe() -> tuple[int, int]:
        pair = os.pipe()
        pipes.extend(pair)
        return pair

    def close(*fds: int) -> None:
        for fd in fds:
            if fd in pipes:
                pipes.remove(fd)
                os.close(fd)

    selector = selectors.DefaultSelector()
    process = None
    try:
        ins = [pipe(), pipe()]  # standard input, job
        outs = [pipe(), pipe(), pipe(), pipe()]  # standard output, standard error, result, facts of the sandbox
        command = sandbox.python_command(ins[1][0], outs[2][1], *channel)
        passed = [ins[1][0], outs[2][1], *channel]
        for fd in (ins[0][0], outs[0][1], outs[1][1]) if uid is not None else ():
            os.fchown(fd, uid, uid)  # so that /dev/stdin can be opened
        with tempfile.TemporaryFile() as rules:
            if isolate:
                rules.write(seccomp.program())
                rules.seek(0)
                passed += [outs[3][1], rules.fileno()]
                command = sandbox.isolated(command, limits, uid, outs[3][1], rules.fileno())
            process = subprocess.Popen(command, stdin=ins[0][0], stdout=outs[0][1], stderr=outs[1][1],
                                       pass_fds=passed, start_new_session=True, cwd="/", env=sandbox.environment())
        close(ins[0][0], ins[1][0], *channel, *(w for _, w in outs))
        size = limits.output_kb << 10
        readers = [_Reader(outs[0][0], size), _Reader(outs[1][0], _ERRORS, keep_reading=True),
                   _Reader(outs[2][0], 2 * size), _Reader(outs[3][0], 4096)]
        for reader in readers:
            selector.register(reader.fd, selectors.EVENT_READ, reader)
        for writer in (_Writer(ins[0][1], stdin), _Writer(ins[1][1], json.dumps(job).encode())):
            if writer.data:
                selector.register(writer.fd, selectors.EVENT_WRITE, writer)
            else:
                close(writer.fd)
        return _watch(process, selector, readers, limits, stop, close)
    finally:
        selector.close()
        if process is not None and process.poll() is None:  # an error of our own: leave nothing behind
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        close(*list(pipes))


def _watch(process, selector, readers, limits: Limits, stop, close) -> Run:
    """Serve the pipes until the process has ended or must be ended; then end all that is left."""
    stdout, stderr, result, facts = readers
    began = time.monotonic()
    started = None  # when it said that it is ready
    killed, starved, init, code, last_look = "", False, None, None, 0.0
    done = os.pidfd_open(process.pid)
    selector.register(done, selectors.EVENT_READ, "done")
    if stop is not None:
        selector.register(stop, selectors.EVENT_READ, "stop")
    try:
        while not killed:
            events = selector.select(_TICK)
            ended = False
            for key, _ in events:
                if key.data == "done":
                    ended = True
                elif key.data == "stop":
                    killed = killed or "stop"
                else:
                    said = key.data.read() if isinstance(key.data, _Reader) else key.data.write()
                    if said:
                        selector.unregister(key.fd)
                        close(key.fd)
                    if said == "output":
                        killed = killed or "output"
            if init is None and facts.data.strip().endswith(b"}"):
                init = _open_init(facts.data)
            if started is None and result.data.startswith(b'{"ready": true}\n'):
                started = time.monotonic()
            if ended:
                break
            now = time.monotonic()
            if now - last_look >= _TICK:
                last_look = now
                killed, starved = _over(process.pid, limits, killed, started, began, now)
        seconds = time.monotonic() - (started or began)
        lost = _end(process, init)
        if not killed:
            code = process.returncode
            _drain(selector, readers)
        _, *lines = bytes(result.data).split(b"\n") if started is not None else [b""]
        if started is None:
            lost = lost or f"the sandbox did not start: {_last_line(stderr.data) or 'no message'}"
        if len(stdout.data) >= stdout.limit or len(result.data) >= result.limit:
            killed = killed or "output"
        return Run(started is not None, code, killed, bytes(stdout.data), bytes(stderr.data), lines, seconds,
                   starved, lost)
    finally:
        os.close(done)
        if init is not None:
            os.close(init)


def _over(pid: int, limits: Limits, killed: str, started, began: float, now: float) -> tuple[str, bool]:
    """(the limit that was passed or "", whether the machine was too busy for that to mean anything)."""
    used = usage.of_tree(pid)
    if started is None:
        return killed or ("wall" if now - began > _STARTING else ""), False
    if used.memory > limits.memory_mb << 20:
        return killed or "memory", False
    if used.cpu > limits.cpu_seconds:
        return killed or "cpu", False
    if now - started > limits.wall_seconds:
        return killed or "wall", used.waited > STARVED * limits.wall_seconds
    return killed, False


def _open_init(facts: bytearray) -> int | None:
    """A descriptor of the sandbox's first process, whose end is the end of every process inside."""
    try:
        return os.pidfd_open(json.loads(bytes(facts))["child-pid"])
    except (ProcessLookupError, ValueError, KeyError):
        return None


def _end(process, init: int | None) -> str:
    """Kill whatever is left and wait until it is gone; why that failed, or ""."""
    with suppress(ProcessLookupError, PermissionError):
        if init is not None:
            signal.pidfd_send_signal(init, signal.SIGKILL)
        else:  # not isolated, or not yet: the group is all there is (its leader has not been waited for)
            os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if init is not None:
        with selectors.DefaultSelector() as gone:
            gone.register(init, selectors.EVENT_READ)
            if not gone.select(20):
                return "processes of the sandbox could not be ended"
    return ""


def _drain(selector, readers) -> None:
    """What is still in the pipes; nobody can write any more."""
    open_fds = {key.fd for key in selector.get_map().values()}
    for reader in readers:
        if reader.fd in open_fds:
            os.set_blocking(reader.fd, False)
            with suppress(BlockingIOError):
                while not reader.read():
                    pass


def _last_line(text: bytes | bytearray) -> str:
    lines = bytes(text).decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else ""
