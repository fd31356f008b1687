"""A cell is computed once, whole or not at all, whoever asks for it and however often killed."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fade_sim.errors import InputError
from fade_sim.experiments.cells import Cells
from fade_sim.sim import compile as sim_compile

RAW = {"train": {"steps": 60, "record": 20, "seeds": 2}, "world": {"train_prompts": 16, "test_prompts": 8},
       "compare": [{"name": "dr_grpo"}, {"name": "fade"}]}
# Computes RAW (steps from argv) in a folder, and logs every simulation that it really runs.
WORKER = """
import sys
from fade_sim import sim
from fade_sim.experiments.cells import Cells
folder, log, steps = sys.argv[1:]
real = sim.simulate
def simulate(*args, **kwargs):
    with open(log, "a") as handle:
        handle.write("simulated\\n")
    return real(*args, **kwargs)
sim.simulate = simulate
raw = {"train": {"steps": int(steps), "record": 20, "seeds": 2}, "world": {"train_prompts": 16, "test_prompts": 8},
       "compare": [{"name": "dr_grpo"}, {"name": "fade"}]}
print(Cells(folder, threads=1).trace(raw, "worker").values["rank1"].sum())
"""


def names(folder):
    return sorted(os.listdir(folder))


def worker(folder, log, steps):
    return subprocess.Popen([sys.executable, "-c", WORKER, str(folder), str(log), str(steps)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(condition, seconds=60):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, "nothing happened"
        time.sleep(0.01)


def test_a_cell_comes_back_as_it_was_and_its_bytes_do_not_depend_on_threads(tmp_path):
    said = []
    first = Cells(tmp_path / "a", 1, lambda what, share: said.append(share)).trace(RAW, "x")
    again = Cells(tmp_path / "a", 1).trace(RAW, "y")
    Cells(tmp_path / "b", 2).trace(RAW, "x")
    assert (first.labels, first.seeds) == (again.labels, again.seeds) == (("dr_grpo", "fade"), (0, 1))
    assert first.steps.tolist() == again.steps.tolist() == [0, 20, 40, 60]
    for name in first.values:
        np.testing.assert_array_equal(first.values[name], again.values[name])
    (name,) = names(tmp_path / "a")
    assert names(tmp_path / "b") == [name]
    assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert said == sorted(said) and 0 < said[0] < said[-1] == 1.0


def test_a_killed_process_leaves_no_half_cell_and_its_leftovers_go(tmp_path):
    process = worker(tmp_path / "a", tmp_path / "log", 10**6)
    wait_for((tmp_path / "log").exists)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    (lock,) = names(tmp_path / "a")
    assert lock.endswith(".lock")
    (tmp_path / "a" / lock.replace(".lock", ".partial")).write_bytes(b"half")  # killed while it wrote
    cells = Cells(tmp_path / "a", 1)
    cells.trace(RAW, "another cell")  # the free lock of one cell is in nobody's way
    cells.tidy()
    Cells(tmp_path / "b", 1).trace(RAW, "x")
    assert names(tmp_path / "a") == names(tmp_path / "b")


def test_two_processes_on_one_folder_compute_a_cell_once(tmp_path):
    both = [worker(tmp_path / "a", tmp_path / "log", 4000) for _ in range(2)]
    printed = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert printed[0][0] == printed[1][0] != ""
    assert (tmp_path / "log").read_text() == "simulated\n"
    assert [name.rpartition(".")[2] for name in names(tmp_path / "a")] == ["npz"]


def test_no_wait_while_another_has_the_lock(tmp_path):
    cells = Cells(tmp_path, 1)
    lock = tmp_path / f"{cells.key(RAW)}.lock"
    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert cells.trace(RAW, "x", wait=False) is None
        cells.tidy()
        assert lock.exists()  # it is held: not a leftover
    assert cells.trace(RAW, "x", wait=False).steps[-1] == 60
    assert not lock.exists()


def test_a_lock_whose_file_is_gone_does_not_count(tmp_path):
    """A waiter that gets the lock of a removed file must not work beside the holder of the new one."""
    cells, path = Cells(tmp_path, 1), tmp_path / "x.npz"
    lock, inside = path.with_suffix(".lock"), []

    def waiter():
        with cells._lock(path, wait=True) as mine:
            inside.append((mine, lock.exists()))

    with lock.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        thread = threading.Thread(target=waiter)
        thread.start()
        time.sleep(0.2)
        assert not inside
        lock.unlink()
    thread.join(10)
    assert inside == [(True, True)]


def test_the_key_is_what_the_numbers_depend_on(tmp_path, monkeypatch):
    cells = Cells(tmp_path)
    key = cells.key(RAW)
    named = {"name": "b", **RAW, "regime": [{"name": "another name"}]}
    assert cells.key(named) == key == cells.key(RAW, "another place")
    other = [
        {**RAW, "train": {**RAW["train"], "seed": 1}}, {**RAW, "world": {**RAW["world"], "arms": 31}},
        {**RAW, "compare": RAW["compare"][::-1]}, {**RAW, "world": {"solve_rates": "smollm2_135m_arithmetic"}},
        {**RAW, "controller": {"rate": 0.5}},
    ]
    keys = {cells.key(raw) for raw in other}
    monkeypatch.setattr(sim_compile, "SOURCE_DIGEST", "another text")
    keys |= {cells.key(RAW), key}
    assert len(keys) == len(other) + 2


def test_recorded_solve_rates_are_content_not_a_file_name(tmp_path):
    rates = tmp_path / "r.jsonl"
    raw = {**RAW, "world": {"solve_rates": str(rates)}}
    lines = [f'{{"prompt_id": {i}, "successes": {i % 8}, "attempts": 8}}\n' for i in range(9)]
    rates.write_text("".join(lines))
    cells = Cells(tmp_path / "cells", 1)
    before, trace = cells.key(raw), cells.trace(raw, "x")
    # 9 prompts with (c + .5)/9 for c = 0..7, 0: mean (28 + 4.5)/81; 6 are trained and 3 held out
    start = (6 * trace.values["train_pass@1"][0, :, 0] + 3 * trace.values["test_pass@1"][0, :, 0]) / 9
    np.testing.assert_allclose(start, 32.5 / 81, atol=1e-6)
    rates.write_text("".join(lines[:-1]))
    assert cells.key(raw) != before


def test_a_damaged_cell_is_named(tmp_path):
    cells = Cells(tmp_path, 1)
    path = tmp_path / f"{cells.key(RAW)}.npz"
    path.write_bytes(b"PK\x03\x04 half")
    with pytest.raises(InputError, match="is damaged; remove it and run again"):
        cells.trace(RAW, "x")


def test_more_than_one_regime_is_a_mistake_of_the_caller(tmp_path):
    with pytest.raises(ValueError, match="a cell is one regime, got 2"):
        Cells(tmp_path).trace({**RAW, "regime": [{"name": "a"}, {"name": "b"}]}, "x")
