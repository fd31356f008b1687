"""Rewards as a run asks for them: settings, batches, answers that are programs."""

import json

import pytest
from needs import needs_bwrap

from llm import config
from llm.reward import check_answers, judge, make_verifier
from llm.settings import Reward


def test_what_is_not_judged_is_none():
    seen = []

    def verifier(text, answer):
        seen.append(text)
        return None if text == "?" else float(text == answer)

    assert judge(verifier, ["1", "?", "2", "1"], ["1"] * 4, [True, True, True, False]) == [1.0, None, 0.0, 0.0]
    assert seen == ["1", "?", "2"]  # an answer that was cut off is not even looked at
    with pytest.raises(ValueError, match=r"returned 0\.5"):
        judge(lambda *_: 0.5, ["1"], ["1"], [True])


def test_a_batch_verifier_must_answer_for_every_text():
    class Short:
        def batch(self, pairs):
            return [1.0]

    with pytest.raises(ValueError, match="argument 2 is shorter"):
        judge(Short(), ["1", "1"], ["1", "1"], [True, True])


# --- configs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "says"), [
    ("name = 'code'\nslot = 2", "unknown key 'slot'; did you mean 'slots'?"),
    ("name = 'integer'\nslots = 2", "reward.slots has no effect: reward.name is 'integer', not 'code'"),
    ("name = 'code'\nsymbolic = false", "reward.symbolic has no effect: reward.name is 'code', not 'math'"),
    ("name = 'math'\ncpu_seconds = 1.0", "reward.cpu_seconds has no effect"),
    ("name = 'code'\ncpu_seconds = 60.0", "reward.wall_seconds is 15, expected at least reward.cpu_seconds, 60"),
    ("name = 'code'\nprogram = 'fence'", "reward.program is 'fence'"),
    ("name = 'code'\nmemory_mb = 1", "memory_mb is 1"),
    ("name = 'math'\nthreshold = 0.5", "reward.threshold has no effect: reward.name is 'math', not 'gym'"),
    ("name = 'gym'\nthreshold = 0.0", "reward.threshold is 0"),
    ("name = 'gym'\nscorer_error = 'none'", "reward.scorer_error is 'none'"),
])
def test_mistakes_are_named(tmp_path, text, says):
    (tmp_path / "mine.toml").write_text("[method]\nname = 'dr_grpo'\n[reward]\n" + text)
    with pytest.raises(ValueError) as raised:
        config.load(str(tmp_path / "mine.toml"))
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_the_settings_in_the_readme_load(tmp_path):
    from needs import ROOT

    section = (ROOT / "README.md").read_text().split("## Verifiable rewards")[1]
    block = section.split("```toml\n")[1].split("\n```\n")[0]
    (tmp_path / "mine.toml").write_text("[method]\nname = 'dr_grpo'\n" + block)
    assert config.load(str(tmp_path / "mine.toml")).reward == Reward(name="code")


def test_an_unknown_reward_is_named():
    with pytest.raises(ValueError, match=r"unknown reward\.name 'cod'; did you mean 'code'"):
        make_verifier(Reward(name="cod"))


# --- rewards of programs -------------------------------------------------------------------------------


def test_finding_the_program_takes_one_look():
    import time

    from llm.code_reward import program

    began = time.process_time()
    assert program("```x\n" * 50_000, "block") is None and program("```x\ny\n```\n" * 20_000, "block") == "y\n"
    assert time.process_time() - began < 1.0


@needs_bwrap
def test_rewards_of_programs():
    """The last closed block counts; no block is no program."""
    verifier = make_verifier(Reward(name="code", slots=2, cpu_seconds=1.0, wall_seconds=3.0))
    tests = json.dumps({"tests": [{"input": "4\n", "output": "5\n"}]})
    right, wrong = "print(int(input()) + 1)", "print(0)"
    texts = [f"So:\n```python\n{right}\n```\n", right, f"```\n{wrong}\n```\nno:\n```py\n{right}\n```", f"```\n{right}",
             f"```\n{right}\n```\nor\n```\n{wrong}\n```", ""]
    try:
        assert judge(verifier, texts, [tests] * 6, [True] * 6) == [1, 0, 1, 0, 0, 0]
        assert verifier(texts[0], tests) == 1.0 and verifier.counts["pass"] == 3
        check_answers(verifier, [tests])
        with pytest.raises(ValueError, match="answer 2: tests is"):
            check_answers(verifier, [tests, "{}"])
        with pytest.raises(ValueError, match="answer 1: is not an object"):
            check_answers(verifier, ["5"])
    finally:
        verifier.close()
    whole = make_verifier(Reward(name="code", program="text", slots=1))
    assert whole(right, tests) == 1.0
    whole.close()


def test_tests_in_a_data_file(tmp_path):
    from llm.data import read_problems

    row = {"prompt": "p", "answer": {"tests": [{"input": "4", "output": "5"}]}}
    (tmp_path / "d.jsonl").write_text(json.dumps(row))
    assert json.loads(read_problems(tmp_path / "d.jsonl")[0].answer) == row["answer"]
