"""A sweep runs what is missing, and only that."""

import json

import pytest
from tiny import HERE, SMALL

from llm import sweep

COMPARE = """
[[compare]]
name = "dr_grpo"
[[compare]]
name = "asym_delta"
delta = 0.5
[[regime]]
name = "fresh"
[[regime]]
name = "stale"
train = { staleness = 1 }
"""


def test_a_sweep_goes_on_where_it_stopped(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(HERE)
    path = tmp_path / "compare.toml"
    path.write_text(COMPARE)
    settings = {**SMALL, "train.steps": 2, "model.path": base}
    first = sweep.run(str(path), settings, 2, tmp_path / "s")
    assert [(r["regime"], r["rule"], r["seeds"]) for r in first] == [
        (regime, rule, 2) for regime in ("fresh", "stale") for rule in ("dr_grpo", "asym_delta(0.5)")]
    seed = json.loads((tmp_path / "s/stale/asym_delta_0.5/seed-1/summary.json").read_text())
    other = json.loads((tmp_path / "s/stale/asym_delta_0.5/seed-0/summary.json").read_text())
    mean = (seed["entropy"] + other["entropy"]) / 2
    assert first[3]["entropy"]["mean"] == pytest.approx(mean)
    assert first[3]["entropy"]["error"] == pytest.approx(abs(seed["entropy"] - mean))  # |d|/2 = sd/sqrt 2 of two
    with_plan = json.loads((tmp_path / "s" / sweep.PLAN).read_text())
    assert with_plan[1] == {"folder": "fresh/asym_delta_0.5/seed-0", "regime": "fresh", "rule": "asym_delta(0.5)",
                            "seed": 0} and len(with_plan) == 8
    (tmp_path / "s/fresh/dr_grpo/seed-0/summary.json").unlink()
    capsys.readouterr()
    assert sweep.run(str(path), settings, 2, tmp_path / "s") == first
    assert [line for line in capsys.readouterr().out.splitlines() if " of 8" in line] == [
        f"1 of 8: {tmp_path / 's/fresh/dr_grpo/seed-0'}"]
    with pytest.raises(ValueError, match="other settings"):
        sweep.run(str(path), {**settings, "model.lr": 0.1}, 2, tmp_path / "s")
    sweep.run(str(path), settings, 3, tmp_path / "s", dry_run=True)
    assert capsys.readouterr().out.count("new") == 4


def test_a_sweep_stops_at_its_limit(base, tmp_path, monkeypatch, capsys):
    """Three runs a call: 3 of 8, then 6, then all and the table."""
    monkeypatch.chdir(HERE)
    path = tmp_path / "compare.toml"
    path.write_text(COMPARE)
    settings = {**SMALL, "train.steps": 1, "model.path": base}
    for complete in (3, 6):
        assert sweep.run(str(path), settings, 2, tmp_path / "s", limit=3) == []
        assert f"{complete} of 8 runs are complete" in capsys.readouterr().out
        assert not (tmp_path / "s/sweep.json").exists()
    assert len(sweep.run(str(path), settings, 2, tmp_path / "s", limit=3)) == 4
