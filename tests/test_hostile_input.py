"""Hostile input found by review: each is one line with exit code 2, or simply right; nothing of the user's is lost."""

import os
import stat
import subprocess
import sys

import numpy as np
import pytest

from fade_sim import config, store
from fade_sim.advantage import BatchStats, advantages, make, weight_table
from fade_sim.cli import main
from fade_sim.diagnostics import pass_at_k
from fade_sim.errors import InputError

TINY = ["--seeds", "1", "--train.steps", "2", "--world.train_prompts", "8", "--world.test_prompts", "4"]


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def refused(capsys, *argv):
    code = main(list(argv))
    err = capsys.readouterr().err
    assert code == 2 and err.count("\n") == 1 and err.startswith("fade-sim: error: "), err
    return err


# --- files of the user ----------------------------------------------------------------------------------


def test_writing_follows_links_and_does_not_replace_pipes(tmp_path):
    (tmp_path / "target.json").write_text("old")
    (tmp_path / "link.json").symlink_to("target.json")
    store.write_atomic(tmp_path / "link.json", b"new")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "target.json").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen([sys.executable, "-c", "print(open('pipe').read(), end='')"], stdout=subprocess.PIPE)
    store.write_atomic(tmp_path / "pipe", b"through")
    assert reader.communicate(timeout=20)[0] == b"through"
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("make_it", [
    lambda p: ((p / ".real.partial").mkdir(), (p / ".real.partial" / "thesis.txt").write_text("mine")),
    lambda p: ((p / "victim").mkdir(), (p / "victim" / "thesis.txt").write_text("mine"),
               (p / ".real.partial").symlink_to("victim")),
], ids=["folder", "symlink"])
def test_a_folder_that_is_not_ours_is_never_cleared(make_it, tmp_path, capsys):
    make_it(tmp_path)
    assert "is in the way" in refused(capsys, "run", "dr_grpo", *TINY, "--out", "real")
    assert (tmp_path / ".real.partial" / "thesis.txt").read_text() == "mine"


def test_a_dangling_link_is_refused_before_the_run(tmp_path, capsys):
    (tmp_path / "dang").symlink_to("nowhere")
    assert "dang: already exists" in refused(capsys, "run", "dr_grpo", *TINY, "--out", "dang")


def test_what_a_killed_run_left_may_hold_folders(tmp_path):
    (tmp_path / ".out.partial" / "sub").mkdir(parents=True)
    (tmp_path / ".out.partial" / ".lock").touch()
    with store.run_folder("out", "x") as (staging, _):
        assert os.listdir(staging) == [".lock"]


# --- command line and configs ------------------------------------------------------------------------------


@pytest.mark.parametrize("argv, expected", [
    (["run", "--train.seed", "9" * 26], "train.seed is"),
    (["run", "--train.record", "1" + "0" * 22], "train.record is"),
    (["run", "--train.steps", "1" + "0" * 12], "train.steps is 1000000000000"),
    (["run", "--train.steps", "1000000000"], "take fewer seeds, prompts, arms or records"),
    (["run", "--world.arms", "100000000"], "needs about"),
    (["run", "--method.name", "[1]"], "expected the name of a method"),
    (["run", "--method.name", "{a=1}"], "expected the name of a method"),
    (["run", "x" * 5000], "no such config file"),
    (["run", "dr_grpo", *TINY, "--out", "x" * 300], "cannot be written"),
    (["run", "--solve-rates", ""], "--solve-rates is empty"),
    (["weights", "grpo", "--figure", "."], "cannot be written"),
    (["weights", "grpo", "--figure", "x" * 300 + ".png"], "cannot be written"),
    (["weights", "table", "--weights", "x" * 5000], "cannot be read"),
    (["weights", "grpo", "--group-size", "1000000000"], "above 4096"),
    (["weights", "pass_at_k_s", "--group-size", "1"], "k is 4, expected at most group_size = 1"),
])
def test_one_line(argv, expected, capsys, tmp_path):
    assert expected in refused(capsys, *argv)
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == []


@pytest.mark.parametrize("raw, expected", [
    ({"regime": [{"name": "r\0"}]}, "expected text without '/'"),
    ({"name": "a\nb"}, "expected a plain word"),
    ({"compare": [{"label": "\x1b[31m", "name": "fade"}]}, "label is"),
])
def test_names_are_printable(raw, expected):
    with pytest.raises(InputError, match=expected):
        config.resolve(raw, {}, "x")


def test_deep_toml_and_a_byte_order_mark(tmp_path):
    (tmp_path / "deep.toml").write_text("x = " + "[" * 5000 + "]" * 5000)
    with pytest.raises(InputError, match="not valid TOML"):
        config.load(tmp_path / "deep.toml")
    (tmp_path / "bom.toml").write_bytes(b"\xef\xbb\xbf[method]\nname = 'rloo'\n")
    assert config.load(tmp_path / "bom.toml").contenders[0].label == "rloo"


def test_dollars_and_brackets_in_labels_reach_the_picture(tmp_path):
    (tmp_path / "c.toml").write_text('[[compare]]\nname = "fade"\nlabel = "$\\\\frac{$ [/x] 汉"\n'
                                     '[[regime]]\nname = "r$^$"\n')
    assert main(["run", "c.toml", *TINY, "--out", "x"]) == 0
    assert (tmp_path / "x" / "figure.png").stat().st_size > 10_000


def test_an_ascii_terminal_loses_nothing(tmp_path):
    command = [sys.executable, "-m", "fade_sim.cli", "run", "dr_grpo", *TINY[2:], "--seeds", "2", "--out", "x"]
    done = subprocess.run(command, capture_output=True, timeout=120, cwd=tmp_path,
                          env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x" / "summary.json").exists()


# --- the core ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype, method", [
    (np.float16, make("asym_delta", delta=1e-6)), (np.float16, make("entropic_loo", beta=12.0)),
    (np.float32, make("table", weights=[[0, 0], [1e300, -1], [0, 0]])),
])
def test_a_weight_that_does_not_fit_the_dtype_is_refused(dtype, method):
    with pytest.raises(InputError, match="do not fit float"):
        advantages(np.array([1, 0], dtype), [0, 0], method)


@pytest.mark.filterwarnings("ignore:overflow")
def test_overflow_in_continuous_mode_is_refused():
    with pytest.raises(InputError, match="overflows"):
        advantages(np.array([1.0, 0.0]), [0, 0], make("asym_delta", delta=5e-324), continuous=True)


def test_masked_arrays_are_refused_and_say_how():
    with pytest.raises(InputError, match="valid=~mask"):
        advantages(np.ma.array([1.0, 1.0, 0.0], mask=[0, 1, 0]), [0, 0, 0], make("dr_grpo"))


def test_group_ids_of_any_size():
    wanted = [0.5, -0.5, 0.5, -0.5]
    for ids in ([2**64 - 1, 2**64 - 1, 0, 0], [2**127, 2**127, -(2**99), -(2**99)]):
        assert advantages([1, 0, 1, 0], ids, make("dr_grpo")).tolist() == wanted


@pytest.mark.parametrize("successes, sizes", [([1.5], [2]), ([float("nan")], [2]), ([1], [float("inf")]), (["a"], [1])])
def test_impossible_batches(successes, sizes):
    with pytest.raises(InputError, match="integer successes and sizes"):
        weight_table(make("bnpo"), 4, batch=BatchStats(successes, sizes))


def test_k_above_a_group_of_one():
    with pytest.raises(InputError, match="k is 4, expected at most group_size = 1"):
        weight_table(make("pass_at_k_s", k=4), 1)


@pytest.mark.parametrize("text", ["O,0\n.5,-.5\n0,0\n0,0\n", "1+2j,0\n0,0\n", "true,false\n1,2\n3,x\n"])
def test_a_typo_in_the_first_row_is_not_a_header(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=r"t\.csv"):
        make("table", weights=str(tmp_path / "t.csv"))


@pytest.mark.parametrize("weights", [np.zeros((3, 2), complex), np.zeros((3, 2), "M8[s]"), [["1", "2"], ["3", "4"]]])
def test_tables_are_numbers(weights):
    with pytest.raises(InputError, match="expected rows of two numbers"):
        make("table", weights=weights)


def test_pass_at_k_of_huge_counts_ends():
    """C(n-c, k)/C(n, k) underflows: the answer is 1, and at once."""
    assert pass_at_k(10**9, 10**8, 10**8) == 1.0


def test_a_repeated_key_in_a_recording_is_refused(tmp_path):
    from fade_sim.recordings import load

    (tmp_path / "r.jsonl").write_text('{"prompt_id": 1, "reward": 1, "reward": 0}\n')
    with pytest.raises(InputError, match="line 1: has 'reward' twice"):
        load(tmp_path / "r.jsonl")


@pytest.mark.parametrize("data, expected", [
    (b"\x1f\x8b\x08rest", "is compressed with gzip"),
    (b'[\n {"prompt_id": 1, "reward": 1}\n]\n', "not one document over many lines"),
    (b'{"prompt_id": 1, "successes": 1, "attempts": 9999999999}\n', "at least 1 and at most 1000000000"),
])
def test_recordings_of_other_kinds_are_named(tmp_path, data, expected):
    from fade_sim.recordings import load

    (tmp_path / "r.jsonl").write_bytes(data)
    with pytest.raises(InputError, match=expected):
        load(tmp_path / "r.jsonl")


def test_a_step_may_be_a_time_stamp(tmp_path):
    from fade_sim.recordings import load

    (tmp_path / "r.jsonl").write_text('{"prompt_id": 1, "reward": 1, "step": 1785000000000}\n')
    assert load(tmp_path / "r.jsonl").step.tolist() == [1785000000000]


def test_a_world_with_huge_biases_is_finite():
    from fade_sim.sim import make_world

    world = make_world(config.World(bias_sd=300.0), 0)
    assert np.isfinite(world.bias).all()


def test_large_groups_start_at_once():
    from fade_sim.sim.run import log_binomial

    assert log_binomial(40_000)[20_000] == pytest.approx(40_000 * np.log(2) - 0.5 * np.log(np.pi * 20_000), rel=1e-8)
