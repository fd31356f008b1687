"""What runs inside a sandbox, after values.py: limits first, then the program in one of its forms.

Started as `python -c <values.py + inside.py> JOB OUT`, two file descriptors: JSON comes in once, JSON
lines go out. Nobody here knows an expected output, except `tester`, which runs without the program.
"""

import builtins
import json
import os
import resource
import sys
import types

from llm.judge.values import dump, load  # this line is taken out: see sandbox.source

MEMORY = 86  # exit code of a program that ended in MemoryError


def limit(limits, extra):
    """Hard limits of this process and its children."""
    memory, files = limits["memory_mb"] << 20, limits["files_mb"] << 20
    cpu = int(limits["cpu_seconds"]) + 2  # whole seconds; the exact limit is kept from outside
    for name, value in (("AS", memory), ("CPU", cpu), ("FSIZE", files), ("NPROC", limits["processes"] + extra),
                        ("NOFILE", 128), ("CORE", 0), ("MSGQUEUE", 0), ("MEMLOCK", 0), ("SIGPENDING", 256)):
        kind = getattr(resource, "RLIMIT_" + name, None)
        if kind is not None:
            resource.setrlimit(kind, (value, value))


def load_program(source):
    """The program's namespace, after running it as a main module that knows nothing of this file."""
    module = types.ModuleType("__main__")
    module.__file__ = "solution.py"
    sys.modules["__main__"] = module
    sys.argv = ["solution.py"]
    builtins.exit = builtins.quit = sys.exit  # there without -S
    exec(compile(source, "solution.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def run_program(source):
    """Standard input to standard output, then leave as a Python program does."""
    try:
        load_program(source)
    except MemoryError:
        sys.exit(MEMORY)
    except Exception:
        report_error()
        sys.exit(1)


def report_error():
    """The last lines of the traceback on standard error."""
    import traceback

    traceback.print_exc(limit=-3)


def find(namespace, entry):
    """A function, or a method of a class Solution, by name."""
    if "Solution" in namespace and hasattr(namespace["Solution"], entry):
        return getattr(namespace["Solution"](), entry)
    return namespace[entry]


def answer(function, args, kwargs):
    """JSON line of a call: its value, or what it raised."""
    try:
        return '{"value": ' + dump(function(*args, **kwargs)) + "}"
    except MemoryError:
        return '{"memory": true}'
    except BaseException as error:  # SystemExit too: a call that does not return has no value
        return json.dumps({"raised": type(error).__name__, "says": str(error)[:500]})


def call_once(job, out):
    """One call of a function; its value goes out as JSON."""
    null_stdout()
    try:
        function = find(load_program(job["source"]), job["entry"])
    except MemoryError:
        text = '{"memory": true}'
    except BaseException as error:
        text = json.dumps({"raised": type(error).__name__, "says": str(error)[:500]})
    else:
        text = answer(function, load(job["args"]), {})
    write_all(out, text.encode() + b"\n")
    os._exit(0)


def serve(job, requests, replies):
    """Calls that a tester in another sandbox asks for, a line each."""
    null_stdout()
    try:
        function = find(load_program(job["source"]), job["entry"])
        failed = None
    except BaseException as error:
        failed = json.dumps({"raised": type(error).__name__, "says": str(error)[:500]})
    for line in os.fdopen(requests):
        args, kwargs = load(line)
        write_all(replies, (failed or answer(function, args, kwargs)).encode() + b"\n")
    os._exit(0)


def test(job, out, requests, replies):
    """The test code `check(candidate)`, where every call of the candidate happens in another sandbox."""
    incoming = os.fdopen(replies)
    last = {}

    def gone(why):
        last["lost"] = why
        return EOFError("the program is no longer there")

    def candidate(*args, **kwargs):
        last.update(call=short(args), got="")
        write_all(requests, dump([list(args), kwargs]).encode() + b"\n")
        try:
            reply = json.loads(incoming.readline())
            value = load(json.dumps(reply["value"])) if "value" in reply else None
        except Exception:
            raise gone("ended") from None
        if "memory" in reply:
            raise gone("memory")
        if "value" not in reply and "raised" not in reply:
            raise gone("ended")
        if "value" in reply:
            last["got"] = short(value)
            return value
        last["got"] = f"{reply.get('raised')}: {reply.get('says')}"[:200]
        kind = getattr(builtins, str(reply.get("raised")), None)
        plain = isinstance(kind, type) and issubclass(kind, Exception)
        last["error"] = (kind if plain else RuntimeError)(str(reply.get("says")))
        raise last["error"]

    try:
        namespace = {"__name__": "tests"}
        for part in ("setup", "test"):
            exec(compile(job[part], part, "exec", dont_inherit=True), namespace)
        check = namespace["check"]
    except BaseException as error:
        return send(out, {"broken": f"{type(error).__name__}: {error}"})
    send(out, {"loaded": True})
    namespace[job["entry"]] = candidate
    try:
        check(candidate)
    except BaseException as error:
        own = last.pop("error", None)
        if "lost" in last:
            return send(out, last)
        if error is own:
            return send(out, {"crashed": last["got"]})
        line = error.__traceback__
        while line.tb_next is not None and line.tb_next.tb_frame.f_code.co_filename == "test":
            line = line.tb_next
        source = job["test"].splitlines()
        where = source[line.tb_lineno - 1].strip() if line.tb_lineno <= len(source) else ""
        return send(out, {"failed": where[:200], "says": f"{type(error).__name__}: {error}"[:200], **last})
    send(out, {"lost": last["lost"]} if "lost" in last else {"passed": True})  # no broad except in the tests hides it


def short(value):
    try:
        text = repr(value)
    except Exception:
        text = "?"
    return text if len(text) <= 200 else text[:150] + " ... " + text[-40:]


def send(out, message):
    write_all(out, json.dumps(message).encode() + b"\n")


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def null_stdout():
    """A program that is called, not run, has nobody to read what it prints."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)


def main(job_fd, out, *channel):
    with os.fdopen(job_fd) as f:
        job = json.load(f)
    limit(job["limits"], job["extra"])
    send(out, {"ready": True})  # from here on, whatever happens is the program's own doing
    if job["form"] == "stdin":
        os.close(out)
        run_program(job["source"])
    elif job["form"] == "call":
        call_once(job, out)
    elif job["form"] == "serve":
        os.close(out)
        serve(job, *channel)
    elif job["form"] == "test":
        test(job, out, *channel)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
