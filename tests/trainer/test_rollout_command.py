"""`fade-llm rollout`: what it writes is what was sampled, and fade-sim reads it."""

import json

import pytest
import verifiers
from tiny import HERE, SMALL

from fade_sim import recordings
from fade_sim.cli import main as fade_sim
from llm import cli

OPTIONS = [text for key, value in SMALL.items() if key.split(".")[0] in ("data", "reward", "rollout")
           for text in (f"--{key}", str(value).replace(" ", ""))]


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(HERE)  # where reward.name looks for its function


def test_recorded_rewards_are_those_of_the_texts(base, tmp_path, capsys):
    out = tmp_path / "r.jsonl"
    assert cli.main(["rollout", base, "--out", str(out), "--group-size", "12", *OPTIONS]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["prompt_id"] for row in rows] == [0, 1, 2, 3]
    judged = [reward for row in rows for reward in row["rewards"]]
    assert 0 < sum(judged) < len(judged) == 48
    for row in rows:  # an answer cut off at the length limit is 0 whatever its text
        assert all(verifiers.even(text, row["answer"]) >= reward
                   for text, reward in zip(row["texts"], row["rewards"], strict=True))
    read = recordings.load(out)
    assert read.successes.sum() == sum(judged) and read.entropy.tolist() == [row["entropy"] for row in rows]
    assert f"solve rate {sum(judged) / 48:.3f}" in capsys.readouterr().out
    assert fade_sim(["replay", str(out), "--group-size", "4"]) == 0
    again = tmp_path / "again.jsonl"
    assert cli.main(["rollout", base, "--out", str(again), "--group-size", "12", *OPTIONS]) == 0
    assert again.read_bytes() == out.read_bytes()


@pytest.mark.parametrize("argv, expected", [
    (["--out", "x.csv"], "--out is 'x.csv', expected a .jsonl file"),
    (["--out", "new.jsonl", "--set", "heldout"], "unknown --set 'heldout'; did you mean 'held_out'?"),
    (["--out", "new.jsonl", "--group-size", "0"], "'0' is not an integer of at least 1"),
    (["--out", "new.jsonl", "--rollout.temprature", "1"], "did you mean 'temperature'?"),
    (["--out", str(HERE / "tiny.py")[:-3] + ".jsonl"], "already exists"),
])
def test_bad_input_is_one_line(argv, expected, base, capsys):
    taken = HERE / "tiny.jsonl"
    taken.write_text("{}")
    try:
        assert cli.main(["rollout", base, *argv, *OPTIONS]) == 2
        assert taken.read_text() == "{}"
    finally:
        taken.unlink()
    out = capsys.readouterr()
    assert expected in out.err and out.err.count("\n") == 1 and out.out == ""
