"""The short answers of the report: made of the numbers, or not at all."""

import copy
import json
from pathlib import Path

import pytest

from fade_sim import experiments
from fade_sim.experiments import answers

CLAIMS = json.loads((Path(__file__).resolve().parents[2] / "docs/claims/scores.json").read_text())["claims"]


def with_number(claim: str, name: str, **changed) -> dict:
    """The kept scores with one number changed."""
    claims = copy.deepcopy(CLAIMS)
    (row,) = [n for n in claims[claim]["numbers"] if n["name"] == name]
    row.update(changed)
    return claims


def test_every_claim_has_a_line_of_its_own():
    for name in experiments.NAMES:
        line = answers.short(name, CLAIMS[name])
        assert not line.endswith(" ...") and len(line) < 420, (name, line)


@pytest.mark.parametrize("claim, number", [
    ("rank", "stale 30, lr 10: excess of asym_delta(0.3)"), ("entropy", "stale 10, lr 20: slope of H at .7"),
    ("identity", "stale: dH_F/dlog(m_S/m_F), asym_pure_loo"),
])
def test_a_line_says_what_was_measured(claim, number):
    changed = with_number(claim, number, value=-0.1234, low=-0.2, high=0.05)
    assert "\u22120.123 [\u22120.200, +0.050]" in answers.short(claim, changed[claim])


def test_regimes_are_counted_by_their_intervals():
    """0 of 13 in the kept run; one interval moved above 0 makes it 1, the same at a common rate changes nothing."""
    name = "split_rare, Adam: steps to 98% of the best static peak, dr_grpo - fade"
    assert "in 0 of 13 regimes" in answers.short("fade", CLAIMS["fade"])
    assert "in 1 of 13 regimes" in answers.short("fade", with_number("fade", name, low=1.0)["fade"])
    untuned = "rare, Adam, lr 0.04 for all: steps to 98% of the best static peak, power(2) - fade"
    assert "in 0 of 13 regimes" in answers.short("fade", with_number("fade", untuned, low=1.0)["fade"])


def test_a_claim_without_its_numbers_says_why_instead():
    entry = {"numbers": [], "because": "word " * 100}
    assert answers.short("rank", entry).startswith("word word") and answers.short("rank", entry).endswith(" ...")


def test_questions_need_their_claims():
    asked = [question for question, _ in answers.questions(CLAIMS)]
    assert asked == ["Does delta collapse entropy?", "Does delta collapse the rank of the update?", "When does it?",
                     "How do I know in a run of mine?"]
    assert [q for q, _ in answers.questions({"rank": CLAIMS["rank"]})] == asked[1:]
    assert answers.questions({"fade": CLAIMS["fade"]}) == []
    missing = with_number("rank", "Lambda at which growth starts", value=None)
    assert "When does it?" not in [q for q, _ in answers.questions(missing)]
