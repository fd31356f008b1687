"""One `fade-sim run` with timers around its kernels; prints them as a last line of JSON. Used by runs.py.

total: CPU seconds of the whole process from its start. kernels: CPU seconds of the threads inside
kernels.train and measure. A call that had to compile or load a kernel counts as outside (loading).
"""

import json
import sys
import tempfile
import threading
import time

from fade_sim import cli


def timed(function, spent: dict, lock: threading.Lock):
    """`function` with its thread's CPU time added to spent["kernels"], or ["loading"] before it was compiled."""

    def call(*args):
        slot = "kernels" if function.overloads else "loading"
        began = time.thread_time()
        out = function(*args)
        took = time.thread_time() - began
        with lock:
            spent[slot] += took
        return out

    return call


def main(argv: list[str]) -> int:
    from fade_sim.sim import kernels
    from fade_sim.sim import run as run_module

    spent, lock = {"kernels": 0.0, "loading": 0.0}, threading.Lock()
    kernels.train = timed(kernels.train, spent, lock)
    run_module.measure = timed(run_module.measure, spent, lock)
    with tempfile.TemporaryDirectory() as folder:
        code = cli.main(["run", "--out", f"{folder}/run", *argv])
    print(json.dumps({"total": time.process_time(), **spent}))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
