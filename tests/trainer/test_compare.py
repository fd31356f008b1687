"""Simulator beside transformer: what is read from the folders, which signs are clear, where they agree."""

import json
import shutil

import numpy as np
import pytest
from tiny import HERE, SMALL

from fade_sim import cli as sim_cli
from llm import cli, compare, sweep
from llm.compare import QUANTITIES, Column, Curve, Difference, difference, summary, table, verdict

SHARED = """
[[compare]]
name = "dr_grpo"
[[compare]]
name = "asym_delta"
delta = 0.5
[[regime]]
name = "fresh"
[[regime]]
name = "stale"
"""
SMALL_WORLD = "[world]\ntrain_prompts = 8\ntest_prompts = 4\n"


def quantity(title):
    return next(q for q in QUANTITIES if q.title == title)


@pytest.fixture(scope="module")
def folders(base, tmp_path_factory):
    """(folder of a sweep of 8 runs, run folder of the simulator), by the programs that write them."""
    at = tmp_path_factory.mktemp("compare")
    (at / "llm.toml").write_text(SHARED + "train = { staleness = 1 }\n")
    (at / "sim.toml").write_text(SHARED + "train = { staleness = 5 }\n[train]\nsteps = 20\nrecord = 10\nprompts = 4\n"
                                 "group_size = 4\nseeds = 2\n" + SMALL_WORLD)
    settings = {**SMALL, "train.steps": 3, "train.record": 2, "model.path": base, "probe.stability": True,
                "probe.rollouts": 32}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        sweep.run(str(at / "llm.toml"), settings, 2, at / "sweep")
    assert sim_cli.main(["run", str(at / "sim.toml"), "--out", str(at / "sim"), "--threads", "1"]) == 0
    return at / "sweep", at / "sim"


def test_the_command_draws_and_writes_the_table(folders, tmp_path, capsys):
    out = tmp_path / "side.png"
    assert cli.main(["compare", str(folders[0]), "--sim", str(folders[1]), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "8 of 8 runs are complete" in said and "stale, Lambda:" in said and "fresh, Lambda" not in said
    assert out.read_bytes()[:4] == b"\x89PNG" and len(out.read_bytes()) > 20_000
    text = out.with_suffix(".md").read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| fresh", "| stale"))]
    assert len(rows) == 5 + 6 and all("asym_delta(0.5)" in row and " | - | " not in row for row in rows)


def test_without_a_simulation_the_transformer_stands_alone(folders, tmp_path, capsys):
    assert cli.main(["compare", str(folders[0]), "--out", str(tmp_path / "a.svg")]) == 0
    assert "agree" not in capsys.readouterr().out and (tmp_path / "a.svg").read_text().count("simulator") == 0
    assert " | - | " in (tmp_path / "a.md").read_text()


def test_numbers_are_those_of_the_runs(folders):
    """Records at steps 0, 2, 3. At 2: evaluation of step 2, mean entropy of steps 1 and 2; at 0 that of step 1."""
    columns, complete, planned = compare.read_sweep(folders[0])
    assert [(c.name, c.stale) for c in columns] == [("fresh", False), ("stale", True)] and complete == planned == 8
    assert columns[0].labels == ("dr_grpo", "asym_delta(0.5)")
    lines = (folders[0] / "stale" / "asym_delta_0.5" / "seed-1" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    own = {title: curve.values[1, 1] for title, curve in columns[1].curves.items()}
    assert columns[1].curves["H_F (nats)"].steps.tolist() == [0, 2, 3]
    H = [row.get("entropy_failure") for row in rows]
    assert own["H_F (nats)"] == pytest.approx([H[1], (H[1] + H[2]) / 2, H[3]])
    assert own["pass@1, held out"] == pytest.approx([rows[i]["eval"]["held_out"]["pass@1"]["mean"] for i in (0, 2, 3)])
    assert own["Lambda"].tolist() == [row["Lambda"] for row in rows[1:]] and len(rows) == 4
    lines = (folders[0] / "fresh" / "dr_grpo" / "seed-0" / "metrics.jsonl").read_text().splitlines()
    assert columns[0].curves["rank-1 energy"].values[0, 0, -1] == json.loads(lines[-1])["rank1"]


def test_the_simulators_numbers_are_those_of_its_folder(folders):
    fresh, stale = compare.read_simulation(folders[1])
    assert (fresh.stale, stale.stale) == (False, True) and "Lambda" not in fresh.curves
    with np.load(folders[1] / "arrays.npz") as arrays:
        assert np.array_equal(stale.curves["pass@1, held out"].values, arrays["stale/test_pass@1"])
        assert np.array_equal(fresh.curves["H_S (nats)"].values, arrays["fresh/train_entropy_success"])
    assert stale.curves["Lambda"].values.shape[:2] == (2, 2) and stale.curves["Lambda"].values[1].max() > 0


def test_a_sweep_under_way_is_drawn_from_what_is_complete(folders, tmp_path):
    shutil.copytree(folders[0], tmp_path / "s")
    (tmp_path / "s/stale/asym_delta_0.5/seed-1/summary.json").unlink()
    columns, complete, planned = compare.read_sweep(tmp_path / "s")
    assert (complete, planned) == (7, 8)
    values = columns[1].curves["pass@1, training"].values
    assert np.isnan(values[1, 1]).all() and not np.isnan(values[1, 0]).any()
    compare.run(tmp_path / "s", None, tmp_path / "f.png")
    (tmp_path / "s/stale/asym_delta_0.5/seed-0/summary.json").unlink()
    with pytest.raises(ValueError, match=r"no complete run of asym_delta\(0.5\) under 'stale'"):
        compare.read_sweep(tmp_path / "s")


@pytest.mark.parametrize(("argv", "says"), [
    (["{sim}", "--out", "a.png"], "no folder of fade-llm sweep"),
    (["{sweep}", "--sim", "{sweep}", "--out", "a.png"], "no run folder of fade-sim"),
    (["{sweep}", "--out", "a.md"], "expected a .png"),
    (["{sweep}"], "--out"),
])
def test_bad_folders_end_in_one_line(folders, argv, says, capsys):
    argv = [a.format(sweep=folders[0], sim=folders[1]) for a in argv]
    assert cli.main(["compare", *argv]) == 2
    err = capsys.readouterr().err.strip()
    assert says in err and "\n" not in err


# --- signs -----------------------------------------------------------------------------------------------


def column(ends, title="rank-1 energy", labels=("a", "b"), stale=True):
    """A column with two records; ends (rules, seeds) at the last, 5 before it."""
    ends = np.array(ends, dtype=float)
    return Column("r", stale, labels, {title: Curve(np.array([0, 1]), np.stack([np.full_like(ends, 5), ends], -1))})


def test_a_sign_is_clear_where_nine_seeds_in_ten_have_it():
    """Differences .1 in nine seeds of ten and -.1 in one: clear. Eight of ten: not."""
    def of(negative):
        return difference(column([[0] * 10, [-0.1] * negative + [0.1] * (10 - negative)]), quantity("rank-1 energy"),
                          "b", "a")

    assert of(1) == Difference(pytest.approx(0.1), pytest.approx(-0.1), pytest.approx(0.1), 1)
    assert of(2).sign == 0 and of(9).sign == -1


def test_differences_are_paired_by_seed():
    """Seeds far apart, the rule .01 above in each: a clear sign; missing runs drop out, and two seeds are too few."""
    d = difference(column([[0, 1, 2, np.nan], [0.01, 1.01, 2.01, 7]]), quantity("rank-1 energy"), "b", "a")
    assert (d.median, d.sign) == (pytest.approx(0.01), 1)
    d = difference(column([[0, 1, np.nan], [0.01, 1.01, 7]]), quantity("rank-1 energy"), "b", "a")
    assert (d.median, d.sign) == (pytest.approx(0.01), 0)


def test_what_the_table_shows_as_0_has_no_sign():
    for size, sign in ((4e-4, 0), (6e-4, 1)):
        assert difference(column([[0] * 3, [size] * 3]), quantity("rank-1 energy"), "b", "a").sign == sign


def test_lambda_is_compared_by_its_largest_value():
    """5 at the first record, 1 and 2 at the last: the largest is 5 for both, no difference and no sign."""
    at_end = difference(column([[1] * 3, [2] * 3]), quantity("rank-1 energy"), "b", "a")
    largest = difference(column([[1] * 3, [2] * 3], "Lambda"), quantity("Lambda"), "b", "a")
    assert (at_end.median, at_end.sign, largest.median, largest.sign) == (1.0, 1, 0.0, 0)


def test_verdicts():
    up, down, flat = (Difference(s, s, s, s) for s in (1, -1, 0))
    assert [verdict(*pair) for pair in ((up, up), (up, down), (flat, up), (down, flat), (flat, flat), (None, up))] == [
        "agree", "differ", "unclear in simulator", "unclear in transformer", "unclear in both", ""]


def test_summary_counts_every_rule_once():
    labels = ("a", "b", "c", "d")
    one, other = (column([[end] * 3 for end in ends], labels=labels) for ends in ((0, 1, 1, 0), (0, 2, -1, 1)))
    assert summary(table([(one, other)])) == ["r, rank-1 energy: agree: b; differ: c; unclear: d"]


def test_regimes_are_paired_by_staleness():
    fresh, stale = column([[0], [1]], stale=False), column([[0], [1]])
    assert compare.pairs([stale, fresh], [fresh, stale]) == [(fresh, fresh), (stale, stale)]
    with pytest.raises(ValueError, match="0 stale regimes"):
        compare.pairs([fresh], [stale])
