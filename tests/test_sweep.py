"""A grid of settings: checked whole before anything runs, every point computed once, values in their place."""

import csv
import fcntl
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from fade_sim import figures, sim
from fade_sim.cli import main
from fade_sim.sweep import Axis, parse_axes

TINY = ["--seeds", "2", "--train.steps", "40", "--train.record", "20", "--threads", "1",
        "--world.train_prompts", "16", "--world.test_prompts", "8"]
GRID = ["sweep", "asym_delta", "--grid", "method.delta=.3,1", "--grid", "train.staleness=0,10", *TINY]


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def simulated(monkeypatch):
    """Counts the simulations that really run."""
    calls, real = [], sim.simulate
    monkeypatch.setattr(sim, "simulate", lambda regime, *args, **kwargs: (
        calls.append(regime.train.staleness), real(regime, *args, **kwargs))[1])
    return calls


def rows(folder):
    with open(folder / "results.csv", newline="") as handle:
        return list(csv.DictReader(handle))


def test_a_point_is_the_run_with_its_settings(tmp_path, capsys):
    assert main([*GRID, "--out", "s"]) == 0
    shown = capsys.readouterr().out
    point = next(r for r in rows(tmp_path / "s") if (r["method.delta"], r["train.staleness"]) == ("0.3", "10"))
    assert main(["run", "asym_delta", "--method.delta", ".3", "--train.staleness", "10", *TINY, "--out", "r"]) == 0
    rule = json.loads((tmp_path / "r" / "summary.json").read_text())["run"]["rules"]["asym_delta(0.3)"]
    for name in ("rank1", "test_pass@1", "train_entropy"):
        assert float(point[name]) == pytest.approx(rule[name]["mean"], rel=1e-12)
        assert float(point[f"{name}_half_width"]) == pytest.approx(rule[name]["half_width"], rel=1e-12)
    assert point["rule"] == "asym_delta(0.3)" and (point["steps"], point["seeds"]) == ("40", "2")
    assert point["alpha"] == ""  # no controller: empty, not NaN
    assert f"{rule['test_pass@1']['mean']:.3f}" in shown


def test_finished_points_are_not_run_again_and_a_longer_grid_runs_the_new_ones(simulated, tmp_path):
    assert main([*GRID, "--out", "s"]) == 0
    assert simulated == [0, 10, 0, 10]
    before = {name: (tmp_path / "s" / name).read_bytes() for name in ("results.csv", "figure.png", "sweep.json")}
    assert main([*GRID, "--out", "s"]) == 0
    assert simulated == [0, 10, 0, 10]
    assert before == {name: (tmp_path / "s" / name).read_bytes() for name in before}
    longer = [text.replace("=0,10", "=0,10,20") for text in GRID]
    assert main([*longer, "--out", "s"]) == 0
    assert simulated == [0, 10, 0, 10, 20, 20] and len(rows(tmp_path / "s")) == 6


def test_bytes_do_not_depend_on_threads_or_on_interruptions(monkeypatch, tmp_path, capsys):
    assert main([*GRID, "--out", "whole"]) == 0
    real, calls = sim.simulate, []

    def stopped(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(sim, "simulate", stopped)
    grid = [text if text != "1" else "2" for text in GRID]
    capsys.readouterr()
    assert main([*grid, "--out", "twice"]) == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    assert main([*grid, "--out", "twice"]) == 0 and len(calls) == 3 + 2
    files = sorted(p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*") if p.is_file())
    assert files == sorted(p.relative_to(tmp_path / "twice") for p in (tmp_path / "twice").rglob("*") if p.is_file())
    for name in files:
        if name.name != "meta.json":
            assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes(), name


def test_a_second_process_takes_other_points_while_one_is_locked(tmp_path):
    assert main([*GRID, "--out", "s"]) == 0
    cells = sorted((tmp_path / "s" / "cells").glob("*.npz"), key=lambda path: path.stat().st_mtime_ns)
    whole = (tmp_path / "s" / "results.csv").read_bytes()
    for path in [*cells, tmp_path / "s" / "results.csv"]:
        path.unlink()
    with cells[0].with_suffix(".lock").open("w") as handle:  # as another process at the first point would
        fcntl.flock(handle, fcntl.LOCK_EX)
        process = subprocess.Popen([sys.executable, "-m", "fade_sim.cli", *GRID, "--out", "s"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.time() + 60
        while not all(path.exists() for path in cells[1:]):
            assert time.time() < end and process.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        assert process.poll() is None and not cells[0].exists()  # now it waits
        assert not (tmp_path / "s" / "results.csv").exists()
    assert process.wait(60) == 0
    assert (tmp_path / "s" / "results.csv").read_bytes() == whole


@pytest.mark.parametrize("argv, expected", [
    ([], "give at least one --grid section.key=value,value,..."),
    (["--grid", "method.delta"], "--grid method.delta: expected section.key=value,value,..."),
    (["--grid", "method.delta=.3,,1"], "expected section.key=value,value,..."),
    (["--grid", "delta=.3"], "expected section.key=value,value,..."),
    (["--grid", "method.delta=.3,0.3"], "a value is listed twice"),
    (["--grid", "method.delta=1,.3", "--grid", "method.delta=2"], "--grid method.delta is given twice"),
    (["--grid", "method.delta=1,.3", "--method.delta", "2"], "--method.delta is given, and swept by --grid"),
    (["--grid", "method.delta=1,-1"], "--grid method.delta=-1: "),
    (["--grid", "method.dleta=1,2"], "unknown key 'dleta'; did you mean 'delta'?"),
    (["--grid", "train.stalenes=1,2"], "did you mean 'staleness'?"),
    (["--grid", "method.delta=1", "--metric", "test_pas@1"], "no such metric; did you mean 'test_pass@1'?"),
    (["--grid", "train.seeds=2,3", "--seeds", "2"], "--train.seeds is given, and swept by --grid"),
    (["--grid", "train.seeds=2,3", "--seeds", "0"], "'0' is not an integer of at least 1"),
    (["--grid", "method.delta=1", "--out", "/proc/x"], "/proc/x: cannot be written"),
    (["--grid", "method.delta=1", "--out", "/dev/null"], "/dev/null: is a file"),
    (["--grid", "method.delta=1", "--train.steps", "1000000000"], "take fewer"),
    ([f"--grid={s}.{k}=1,2" for s, k in (("train", "lr"), ("train", "steps"), ("train", "seed"), ("world", "decoy"))],
     "4 axes, expected at most 3"),
    (["--grid", "method.delta=1,2", "--grid", "train.lr=1,2", "--grid",
      f"train.seed={','.join(map(str, range(30)))}"], "30 panels to draw, expected at most 24"),
])
def test_bad_input_is_one_line_and_nothing_runs(argv, expected, capsys, tmp_path, simulated):
    assert main(["sweep", "asym_delta", *argv]) == 2
    err = capsys.readouterr().err
    assert expected in err and err.startswith("fade-sim: error: ") and err.count("\n") == 1
    assert os.listdir(tmp_path) == [] and simulated == []


def test_a_sweep_that_renames_the_regimes_says_what_sets_them_apart(tmp_path, capsys):
    """The two regimes of the main job differ by lr alone once staleness is swept."""
    assert main(["sweep", "--method.name", "dr_grpo", "--grid", "train.staleness=0,3", *TINY, "--out", "s"]) == 0
    assert [(r["train.staleness"], r["regime"]) for r in rows(tmp_path / "s")] == [
        ("0", "lr 10"), ("0", "lr 40"), ("3", "lr 10"), ("3", "lr 40")]


def test_tables_of_weights_may_be_swept(tmp_path, capsys):
    assert main(["sweep", "dr_grpo", "--method.name", "table", "--train.group_size", "1", "--grid",
                 "method.weights=[[0,-1],[1,0]],[[0,0],[2,0]]", "--grid", "train.lr=1,2", *TINY, "--out", "s"]) == 0
    assert len(rows(tmp_path / "s")) == 4


def test_a_folder_of_something_else_is_refused(capsys, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("mine")
    assert main([*GRID, "--out", "thesis"]) == 2
    assert "thesis: is not of an earlier call (it has no cells/)" in capsys.readouterr().err
    assert os.listdir(tmp_path / "thesis") == ["chapter.txt"]


def test_values_are_split_outside_brackets_and_quotes():
    (axis,) = parse_axes(["method.weights=[[0,0],[1,-1]],'a,b',inf,true,clip"])
    assert axis == Axis("method.weights", ([[0, 0], [1, -1]], "a,b", float("inf"), True, "clip"))


def test_dry_run_lists_the_points_and_loads_no_simulator(tmp_path):
    code = ("import sys\nfrom fade_sim.cli import main\nassert main(sys.argv[1:]) == 0\n"
            "heavy = {'numba', 'scipy', 'matplotlib', 'torch'} & set(sys.modules)\n"
            "sys.exit(f'loaded {heavy}' if heavy else 0)")
    done = subprocess.run([sys.executable, "-c", code, *GRID, "--quick", "--dry-run"], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    assert "4 points, 320 training steps in all" in done.stdout  # 4 x 2 seeds x 40 steps, as given
    assert os.listdir(tmp_path) == []


def test_cells_of_the_heat_map_are_where_their_values_are():
    """First axis down, second to the right, third as columns of panels."""
    axes = (Axis("a.x", (1, 2)), Axis("a.y", (10, 20, 30)), Axis("a.z", (100, 200)))
    values = {(i, j, k): np.array([(1, 2)[i] + (10, 20, 30)[j] + (100, 200)[k]] * 2)
              for i in (0, 1) for j in (0, 1, 2) for k in (0, 1)}
    figure = figures._sweep_maps(axes, [{"regime": "", "rule": "r", "values": values}], "m")
    drawn = [ax for ax in figure.axes if ax.images and "a.z" in ax.get_title()]
    for ax, z in zip(drawn, (100, 200), strict=True):
        assert f"a.z = {z}" in ax.get_title()
        np.testing.assert_array_equal(ax.images[0].get_array(), [[11 + z, 21 + z, 31 + z], [12 + z, 22 + z, 32 + z]])
        assert [t.get_text() for t in ax.get_yticklabels()] == ["1", "2"]
        assert ax.texts[1].get_text() == f"{21 + z:.3f}\n±0.000"


def test_lines_are_in_the_order_of_the_axis_whatever_the_order_given():
    axis = Axis("a.x", (30, 1, 2))
    seeds = {(i,): np.array([x + 0.5, x - 0.5, x, x, x]) for i, x in enumerate(axis.values)}
    figure = figures._sweep_lines(axis, [{"regime": "", "rule": "r", "values": seeds}], "m")
    line = figure.axes[0].lines[0]
    assert line.get_xdata().tolist() == line.get_ydata().tolist() == [1, 2, 30]
    assert figure.axes[0].get_xscale() == "log"
