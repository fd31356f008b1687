"""The command around the experiments, on a small one of its own: resumed, scored, written whole."""

import dataclasses
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import fake_claim
import pytest

from fade_sim import experiments, sim
from fade_sim.cli import main
from fade_sim.experiments import reproduce

FAKE = [sys.executable, str(Path(fake_claim.__file__))]


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def two(monkeypatch):
    """Two experiments: fake, and the same under another name."""
    claim = dataclasses.replace(fake_claim.CLAIM, name="other", title="The other claim")
    parts = {name: getattr(fake_claim, name) for name in ("SETTINGS", "configs", "run", "score", "figure")}
    monkeypatch.setattr(experiments, "NAMES", ("fake", "other"))
    monkeypatch.setitem(sys.modules, "fade_sim.experiments.fake", fake_claim)
    monkeypatch.setitem(sys.modules, "fade_sim.experiments.other", SimpleNamespace(CLAIM=claim, **parts))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*"))
            if p.is_file() and p.name != "meta.json"}


def test_killed_in_the_middle_and_resumed_is_the_same_to_the_byte(tmp_path):
    process = subprocess.Popen([*FAKE, "reproduce", "--quick", "--threads", "1", "--out", "killed"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.time() + 300
    while not list((tmp_path / "killed" / "cells").glob("*.npz")):
        assert time.time() < end and process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "scores.json").exists()  # it was in the middle
    first = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "cells").glob("*.npz")}
    for folder, threads in (("killed", "1"), ("whole", "2")):
        done = subprocess.run([*FAKE, "reproduce", "--quick", "--threads", threads, "--out", folder],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    killed, whole = contents(tmp_path / "killed"), contents(tmp_path / "whole")
    assert {"fake.png", "report.html", "scores.json"} <= set(whole) and len(whole) == 4 + 2  # .lock, two cells
    assert killed.keys() == whole.keys()
    assert [name for name in whole if killed[name] != whole[name]] == []
    assert all(path.stat().st_mtime_ns == then for path, then in first.items())


@pytest.mark.slow
def test_ten_kills_at_random_moments_change_nothing(tmp_path):
    """A fresh folder whenever a run outlives its killer; the last run is let through."""
    rng, kills, began = random.Random(0), 0, time.time()
    command = [*FAKE, "reproduce", "--full", "--threads", "2", "--out"]
    subprocess.run([*command, "whole"], check=True, capture_output=True, timeout=300)
    whole, seconds = contents(tmp_path / "whole"), time.time() - began
    while kills < 10:
        process = subprocess.Popen([*command, "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.3, 1.0) * seconds)
        if process.poll() is None:
            process.kill()
            kills += 1
        elif kills < 10:
            shutil.rmtree(tmp_path / "killed")
        process.wait()
    subprocess.run([*command, "killed"], check=True, capture_output=True, timeout=300)
    assert contents(tmp_path / "killed") == whole


def test_scores_say_everything_and_the_terminal_what_decides(tmp_path, two, capsys):
    assert main(["reproduce", "--quick", "--out", "r"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    scores = json.loads((tmp_path / "r" / "scores.json").read_text())
    assert scores["mode"] == "quick" and list(scores["claims"]) == ["fake", "other"]
    entry = scores["claims"]["fake"]
    assert entry["claim"] == dataclasses.asdict(fake_claim.CLAIM)
    assert entry["verdict"] == "holds under" and entry["conditions"] == ["stale rollouts, no importance ratio"]
    value = entry["numbers"][1]
    assert value["low"] <= value["value"] <= value["high"] and value["seeds"] == 3 and value["predicted"] is None
    assert entry["numbers"][2]["value"] == "inf"  # strict JSON
    assert "The other claim" in shown and entry["because"] in shown and "report: r/report.html" in shown
    assert set(json.loads((tmp_path / "r" / "meta.json").read_text())) >= {"started", "seconds", "version"}


def test_named_experiments_join_those_that_the_folder_has(tmp_path, two, monkeypatch, capsys):
    assert main(["reproduce", "other", "--quick"]) == 0
    folder = tmp_path / "runs" / "reproduce-quick"
    assert list(json.loads((folder / "scores.json").read_text())["claims"]) == ["other"]
    monkeypatch.setattr(sim, "simulate", None)  # the cells are shared: nothing is left to simulate
    assert main(["reproduce", "fake", "--quick"]) == 0
    assert list(json.loads((folder / "scores.json").read_text())["claims"]) == ["fake", "other"]
    both = contents(folder)
    assert main(["reproduce", "--quick"]) == 0
    assert contents(folder) == both
    monkeypatch.setattr(reproduce, "_source", lambda: "another program")
    assert main(["reproduce", "fake", "--quick"]) == 0  # the score of another program is not shown beside it
    assert list(json.loads((folder / "scores.json").read_text())["claims"]) == ["fake"]


def test_an_interruption_keeps_what_is_finished(tmp_path, two, monkeypatch, capsys):
    real, calls = sim.simulate, []

    def stopped(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(sim, "simulate", stopped)
    assert main(["reproduce", "--quick", "--out", "r"]) == 130
    assert capsys.readouterr().err.endswith(
        "fade-sim: interrupted; what is finished is kept: the same command goes on from there\n")
    assert main(["reproduce", "--quick", "--out", "r"]) == 0
    assert len(calls) == 3


@pytest.mark.parametrize("argv, expected", [
    (["fak"], "unknown experiment 'fak'; did you mean 'fake'?"),
    (["zzz"], "unknown experiment 'zzz'; known: fake, other"),
    (["fake", "fake"], "experiment 'fake' is named twice"),
    (["--quick", "--full"], "not allowed with argument --quick"),
    (["--quik"], "unknown option '--quik'; did you mean '--quick'?"),
    (["--threads", "0"], "'0' is not an integer of at least 1"),
    (["--out", "/dev/null"], "/dev/null: is a file, expected a folder to create or to resume"),
    (["--out", "/proc/x"], "/proc/x: cannot be written"),
])
def test_bad_input_is_one_line_and_writes_nothing(argv, expected, two, capsys, tmp_path):
    assert main(["reproduce", *argv]) == 2
    out = capsys.readouterr()
    assert expected in out.err and out.err.startswith("fade-sim: error: ") and out.err.count("\n") == 1
    assert out.out == "" and os.listdir(tmp_path) == []


@pytest.mark.parametrize("text, expected", [
    ('{"mode": "full", "source": "x", "claims": {}}', "r: holds a --full reproduction; give another --out, or --full"),
    ("[]", "scores.json: is not a file of scores; remove it"),
    ("{", "scores.json: is not a file of scores; remove it"),
])
def test_a_folder_with_other_scores_is_refused_before_the_run(text, expected, two, capsys, tmp_path, monkeypatch):
    (tmp_path / "r" / "cells").mkdir(parents=True)
    (tmp_path / "r" / "scores.json").write_text(text)
    monkeypatch.setattr(sim, "simulate", None)
    assert main(["reproduce", "--quick", "--out", "r"]) == 2
    assert expected in capsys.readouterr().err
    assert (tmp_path / "r" / "scores.json").read_text() == text


@pytest.mark.parametrize("mode", ["quick", "full"])
def test_listing_the_real_experiments_is_immediate(mode):
    """No simulator, SciPy or Matplotlib before anything runs; every declared cell is a valid config."""
    names = [name for name in experiments.NAMES if importlib.util.find_spec(f"fade_sim.experiments.{name}")]
    assert names
    code = ("import sys\nfrom fade_sim.cli import main\nassert main(sys.argv[1:]) == 0\n"
            "heavy = {'numba', 'scipy', 'matplotlib', 'torch'} & set(sys.modules)\n"
            "sys.exit(f'loaded {heavy}' if heavy else 0)")
    done = subprocess.run([sys.executable, "-c", code, "reproduce", *names, f"--{mode}", "--dry-run"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in names)


def test_dry_run_counts_and_loads_nothing_heavy(tmp_path):
    code = ("import sys\nsys.path.insert(0, sys.argv[1])\nimport fake_claim\nfrom fade_sim.cli import main\n"
            "fake_claim.install()\nassert main(['reproduce', '--quick', '--dry-run']) == 0\n"
            "heavy = {'numba', 'scipy', 'matplotlib', 'torch'} & set(sys.modules)\n"
            "sys.exit(f'loaded {heavy}' if heavy else 0)")
    done = subprocess.run([sys.executable, "-c", code, str(Path(fake_claim.__file__).parent)], capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    last = done.stdout.split("\n")[-2].split()
    assert last == ["all", "12", "36000"]  # 2 regimes x 2 rules x 3 seeds, 3000 steps each
    assert "staleness 10" in done.stdout and os.listdir(tmp_path) == []
