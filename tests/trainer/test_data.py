"""Problems, their split, spellings, verifiers, pretraining."""

import json

import numpy as np
import pytest

from llm.data import ALPHABET, arithmetic, make_tokenizer, pretraining_batch, problems, read_problems, spelling
from llm.reward import exact, integer, judge
from llm.settings import Data


def test_training_and_evaluation_problems_are_disjoint_and_right():
    train, test, skill = arithmetic(Data())
    texts = [{p.prompt for p in part} for part in (train, test, skill)]
    assert [len(t) for t in texts] == [256, 128, 128]
    assert not (texts[0] & texts[1] or texts[0] & texts[2] or texts[1] & texts[2])
    assert {p.skill for p in train} == {p.skill for p in test} == {"add", "subtract"}
    assert {p.skill for p in skill} == {"multiply"}
    for p in [*train, *test, *skill]:
        assert eval(p.prompt.rstrip("=")) == int(p.answer)


def test_pretraining_never_sees_them():
    train, test, skill = arithmetic(Data())
    known = frozenset(p.prompt for part in (train, test, skill) for p in part)
    seen = pretraining_batch(Data(), known, 3000, np.random.default_rng(0))
    assert not known & {p.prompt for p in seen} and {p.skill for p in seen} == {"add", "subtract", "multiply"}
    assert all(integer(p.answer, str(eval(p.prompt.rstrip("=")))) for p in seen)


def test_an_answer_has_several_spellings_of_at_most_seven_tokens():
    """57: 3 zeros times 2 signs; -57: 3. With the end token 8 at most."""
    rng = np.random.default_rng(0)
    assert {spelling("57", rng) for _ in range(200)} == {"57", "057", "0057", "+57", "+057", "+0057"}
    assert {spelling("-57", rng) for _ in range(200)} == {"-57", "-057", "-0057"}
    assert max(len(spelling(p.answer, rng)) for part in arithmetic(Data()) for p in part) <= 7


def test_the_tokenizer_spells():
    tokenizer = make_tokenizer()
    text = "12+34=" + ALPHABET
    ids = tokenizer(text)["input_ids"]
    assert len(ids) == len(text) and tokenizer.decode(ids) == text


@pytest.mark.parametrize(("text", "answer", "reward"), [
    ("57", "57", 1), ("+0057", "57", 1), (" 57\n", "57", 1), ("-57", "57", 0), ("57=", "57", 0), ("5 7", "57", 0),
    ("", "57", 0), ("57.0", "57", 0), ("-000", "0", 1), ("\u0665\u0667", "57", 0),
])
def test_integer_answers(text, answer, reward):
    assert integer(text, answer) == reward


def test_an_answer_that_was_cut_off_fails():
    assert judge(exact, ["7", "7 "], ["7", "7"], [False, True]) == [0.0, 1.0]


def test_files_of_problems(tmp_path):
    rows = [{"prompt": f"q{i}", "answer": str(i), "skill": "s"} for i in range(5)]
    for name, part in (("train", rows[:3]), ("test", rows[3:])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, part)) + "\n\n")
    data = Data(task="file", train=str(tmp_path / "train.jsonl"), test=str(tmp_path / "test.jsonl"))
    split = problems(data)
    assert [p.prompt for p in split.train] == ["q0", "q1", "q2"] and len(split.evaluation["held_out"]) == 2
    leaking = Data(task="file", train=str(tmp_path / "train.jsonl"), test=str(tmp_path / "train.jsonl"))
    with pytest.raises(ValueError, match="3 of 3 prompts are training prompts"):
        problems(leaking)
    for text, says in (("{", "line 1"), ('{"prompt": "a"}', "line 1"), ("", "no problems"),
                       ('{"prompt": "a", "answer": "b", "lable": 1}', "unknown key 'lable'")):
        (tmp_path / "bad.jsonl").write_text(text)
        with pytest.raises(ValueError, match=says):
            read_problems(tmp_path / "bad.jsonl")


@pytest.mark.parametrize("sizes", [{"train_prompts": 9000}, {"test_prompts": 400}])
def test_more_problems_than_there_are(sizes):
    with pytest.raises(ValueError, match="expected at most"):
        arithmetic(Data(**sizes))


def test_pretraining_lowers_the_loss_and_stops_at_its_target(tmp_path, capsys):
    from llm import cli

    argv = ["pretrain", "--out", str(tmp_path / "m"), "--pretrain.hidden", "16", "--pretrain.heads", "2",
            "--pretrain.intermediate", "32", "--pretrain.layers", "1", "--pretrain.steps", "60",
            "--pretrain.check_every", "20", "--pretrain.batch", "32", "--data.train_prompts", "4",
            "--data.test_prompts", "2"]
    assert cli.main(argv) == 0
    got = json.loads((tmp_path / "m" / "pretrain.json").read_text())
    assert got["steps"] == 60 and got["loss"] < 0.8 * np.log(17) and len(got["solve_rates"]) == 4
    assert cli.main(["train", "--model.path", str(tmp_path / "m"), "--dry-run"]) == 0
    assert cli.main([*argv[:-4], "--pretrain.solve_rate", "0", "--pretrain.seed", "1"]) == 2  # never overwritten


def test_a_file_of_problems_is_trained_on(make_trainer, tmp_path):
    """Prompts of different lengths, another stop token, a verifier by name: the same loop."""
    for name, n in (("train", 6), ("test", 3)):
        rows = [{"prompt": "1" * (i + 1) + name[0].replace("t", "+"), "answer": str(i)} for i in range(n)]
        rows = [{**row, "prompt": row["prompt"] + ("=" if name == "test" else "-")} for row in rows]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    trainer = make_trainer(**{"data.task": "file", "data.train": str(tmp_path / "train.jsonl"),
                              "data.test": str(tmp_path / "test.jsonl"), "rollout.stop": "=", "train.record": 1})
    row = trainer.advance()
    assert set(trainer.evaluate()["eval"]) == {"train", "held_out"} and row["grad_norm"] > 0
    r = trainer.sample(list(range(6)))
    assert sorted(set(r.prompt.sum(dim=1).tolist())) == [3, 4, 5, 6, 7, 8]
    equals = trainer.roller.encode(["="])[0][0]
    assert ((r.ids == equals) & r.answer).any() and r.finished[((r.ids == equals) & r.answer).any(dim=1)].all()
    with pytest.raises(ValueError, match="2 tokens here, expected one"):
        make_trainer(**{"rollout.stop": "=="})
