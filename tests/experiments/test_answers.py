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
        assert not line.endswith(" ...") and len(line) < 480, (name, line)


@pytest.mark.parametrize("claim, number", [
    ("rank", "stale 30, lr 40: excess of asym_delta(0.3)"),
    ("entropy", "PPO clip, 4 epochs, lr 20: H at the end, baseline(0) - baseline(1)"),
    ("identity", "stale + importance ratio: dH_F/dlog(m_S/m_F), asym_pure_loo"),
])
def test_a_line_says_what_was_measured(claim, number):
    changed = with_number(claim, number, value=-0.1234, low=-0.2, high=0.05)
    assert "\u22120.123 [\u22120.200, +0.050]" in answers.short(claim, changed[claim])


def test_regimes_are_counted_by_their_intervals():
    """0 of 13 in the kept run; one interval moved above 0 makes it 1, the same at a common rate changes nothing."""
    name = "split_rare, Adam: steps to 98% of the best static peak, dr_grpo - fade"
    kept = "peak in 0, later in 5, not told apart in 8"
    assert kept in answers.short("fade", CLAIMS["fade"])
    moved = answers.short("fade", with_number("fade", name, low=1.0)["fade"])
    assert "peak in 1, later in 5, not told apart in 7" in moved
    untuned = "rare, Adam, lr 0.04 for all: steps to 98% of the best static peak, power(2) - fade"
    assert kept in answers.short("fade", with_number("fade", untuned, low=1.0)["fade"])


def test_a_claim_without_its_numbers_says_why_instead():
    entry = {"numbers": [], "because": "word " * 100}
    assert answers.short("rank", entry).startswith("word word") and answers.short("rank", entry).endswith(" ...")


def test_questions_need_their_claims():
    asked = [question for question, _ in answers.questions(CLAIMS)]
    assert asked == ["Does delta collapse entropy?", "Does delta collapse the rank of the update?", "When does it?",
                     "How do I know in a run of mine?", "Does FADE beat static rules?"]
    assert [q for q, _ in answers.questions({"rank": CLAIMS["rank"]})] == asked[1:4]
    assert answers.questions({"difficulty": CLAIMS["difficulty"]}) == []
    missing = with_number("rank", "Lambda at which growth starts", value=None)
    assert "When does it?" not in [q for q, _ in answers.questions(missing)]


@pytest.mark.parametrize("claim, number, changed, question", [
    ("rank", "on-policy, lr 40: excess of asym_delta(0.3)", {"high": 0.2},
     "Does delta collapse the rank of the update?"),
    ("rank", "on-policy, lr 40: entropy (nats) of asym_delta(0.3) - dr_grpo", {"high": 0.01},
     "Does delta collapse entropy?"),
    ("entropy", "head: slope of H at .7", {"low": 0.0005}, "Does delta collapse entropy?"),
    ("rank", "excess rank-1 energy, Lambda above 4", {"low": 0.05}, "When does it?"),
    ("fade", "split_rare, Adam: steps to 98% of the best static peak, dr_grpo - fade", {"low": 1.0},
     "Does FADE beat static rules?"),
])
def test_what_the_numbers_no_longer_bear_is_not_said(claim, number, changed, question):
    assert question in dict(answers.questions(CLAIMS))
    assert question not in dict(answers.questions(with_number(claim, number, **changed)))
