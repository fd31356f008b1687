"""Run folders appear whole or not at all; nothing is overwritten; bytes depend on data alone."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from fade_sim import store
from fade_sim.errors import InputError


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def entries(path):
    return sorted(os.listdir(path))


def test_the_folder_appears_only_at_the_end_and_numbers_go_on(tmp_path):
    for n in (1, 2):
        with store.run_folder(None, "demo") as (staging, final):
            (staging / "x.txt").write_text("x")
            assert final.name == f"demo-{n}" and not final.exists()
        assert entries(final) == ["x.txt"]
    assert entries(tmp_path / "runs") == ["demo-1", "demo-2"]


def test_a_failing_run_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), store.run_folder("out", "demo") as (staging, _):
        (staging / "x.txt").write_text("x")
        raise RuntimeError
    assert entries(tmp_path) == []


def test_an_existing_folder_is_refused(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="out: already exists"), store.run_folder("out", "demo"):
        pass


def test_two_runs_at_once_do_not_share_a_folder():
    with store.run_folder("out", "demo"):
        with pytest.raises(InputError, match="out: in use by another run"), store.run_folder("out", "demo"):
            pass
        # without a name the second simply takes another number
        with store.run_folder(None, "demo") as (_, a), store.run_folder(None, "demo") as (_, b):
            assert (a.name, b.name) == ("demo-1", "demo-2")


def test_what_a_killed_run_left_is_cleared(tmp_path):
    code = ("import time\nfrom fade_sim import store\nwith store.run_folder('out', 'demo') as (staging, _):\n"
            "    (staging / 'half.txt').write_text('x'); print('ready', flush=True); time.sleep(60)\n")
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    with pytest.raises(InputError, match="in use"), store.run_folder("out", "demo"):
        pass
    child.kill()
    child.wait()
    child.stdout.close()
    assert entries(tmp_path) == [".out.partial"]
    with store.run_folder("out", "demo") as (staging, final):
        assert entries(staging) == [".lock"]
        (staging / "whole.txt").write_text("x")
    assert entries(final) == ["whole.txt"] and entries(tmp_path) == ["out"]


@pytest.mark.parametrize("out", ["/proc/nope/x", "/dev/null/x"])
def test_an_unwritable_place_is_one_line(out):
    with pytest.raises(InputError, match="cannot be written"), store.run_folder(out, "demo"):
        pass


def test_arrays_have_no_time_in_them(tmp_path):
    data = {"a/b": np.arange(6.0).reshape(2, 3), "names": np.array(["x", "yy"])}
    store.write_arrays(tmp_path / "one.npz", data)
    time.sleep(2.1)  # zip time stamps count in steps of two seconds
    store.write_arrays(tmp_path / "two.npz", data)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with np.load(tmp_path / "one.npz") as loaded:
        np.testing.assert_array_equal(loaded["a/b"], data["a/b"])
        assert loaded["names"].tolist() == ["x", "yy"]


def test_json_says_what_is_not_a_number():
    text = store.to_json({"a": np.float64("nan"), "b": float("inf"), "c": np.arange(2), "d": -float("inf")})
    assert json.loads(text) == {"a": None, "b": "inf", "c": [0, 1], "d": "-inf"}
