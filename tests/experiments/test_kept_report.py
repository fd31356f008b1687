"""The report that the repository keeps: whole, drawn from its scores, and what the README says of it."""

import json
import re
from pathlib import Path

from fade_sim import experiments
from fade_sim.experiments import html

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "docs" / "claims"
SCORES = json.loads((KEPT / "scores.json").read_text())
ROW = re.compile(r"\| \[([^]]+)\]\(docs/claims/(\w+)\.png\) \| \*\*([^*]+)\*\*")


def test_it_is_the_full_run_of_every_claim():
    assert SCORES["mode"] == "full" and list(SCORES["claims"]) == list(experiments.NAMES)


def test_the_page_is_drawn_from_its_scores_and_pictures():
    figures = {name: (KEPT / f"{name}.png").read_bytes() for name in SCORES["claims"]}
    assert (KEPT / "report.html").read_text(encoding="utf-8") == html.report(SCORES, figures)


def test_the_claims_are_those_of_the_program():
    """What would count as holding has not been changed after the run."""
    for name, entry in SCORES["claims"].items():
        claim = experiments.load(name).CLAIM
        assert entry["claim"] == {key: getattr(claim, key) for key in entry["claim"]}


def test_the_table_of_the_readme_has_every_verdict():
    rows = ROW.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert rows == [(entry["claim"]["title"], name, entry["verdict"]) for name, entry in SCORES["claims"].items()]


def test_at_least_ten_seeds_stand_behind_every_interval():
    """Unless rules did not reach the level of the comparison, which the note then says."""
    for name, entry in SCORES["claims"].items():
        for n in entry["numbers"]:
            assert n["seeds"] == 0 or n["seeds"] >= 10 or "no value" in n["note"] or "no seed" in n["note"], (name, n)
