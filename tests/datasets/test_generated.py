"""Problems of reasoning-gym: written down, read back, scored by their own scorers in a process apart."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm import cli
from llm.data import read_problems
from llm.datasets.generated import UNUSABLE
from llm.gym_reward import GymReward, tagged
from llm.gym_worker import EXPRESSIONS, LISTS, harmless
from llm.reward import check_answers, judge, make_verifier
from llm.settings import Reward

SPEC = importlib.util.find_spec("reasoning_gym")
needs_gym = pytest.mark.skipif(SPEC is None, reason="reasoning-gym is not installed: pip install reasoning-gym")
UNKNOWN = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}  # no recorded answer


def make(tmp_path, *argv):
    out = tmp_path / "out.jsonl"
    out.unlink(missing_ok=True)
    assert cli.main(["data", "reasoning-gym", *argv, "--out", str(out)]) == 0
    return read_problems(out)


def entry_of(problem) -> dict:
    from llm.judge import values

    return values.load(json.dumps(json.loads(problem.answer)["entry"]))


@pytest.fixture(scope="module")
def reward():
    verifier = make_verifier(Reward(name="gym"))
    yield verifier
    verifier.close()


@needs_gym
def test_the_recorded_answer_of_every_generator_is_right_and_another_is_not(tmp_path, reward):
    """What the scorer reads outlives the file; and nothing that guards it stands in the way of a right answer."""
    problems = make(tmp_path, "all", "--size", "2")
    names = {p.skill for p in problems}
    assert len(names) >= 104 and not names & set(UNUSABLE)
    check_answers(reward, [p.answer for p in problems])
    for problem in problems:
        answer = entry_of(problem)["answer"]
        assert (answer is None) == (problem.skill in UNKNOWN), problem.skill
        if answer is not None:
            assert reward(f"so <answer>{answer}</answer>", problem.answer) == 1.0, problem.skill
        if problem.skill != "prime_factorization":  # its scorer raises: below
            assert reward("<answer>neither here nor there</answer>", problem.answer) == 0.0, problem.skill
    assert reward.counts["raised"] == reward.counts["timeout"] == reward.counts["lost"] == 0


@needs_gym
def test_settings_seed_and_size(tmp_path):
    first = make(tmp_path, "leg_counting", "--size", "3", "--seed", "5", "--set", "min_animals=2", "--set",
                 "max_animals=2")
    assert len(first) == 3 and all(entry_of(p)["metadata"]["num_animals"] == 2 for p in first)
    assert first == make(tmp_path, "leg_counting", "--size", "3", "--seed", "5", "--set", "min_animals=2", "--set",
                         "max_animals=2")
    assert first != make(tmp_path, "leg_counting", "--size", "3", "--seed", "6", "--set", "min_animals=2", "--set",
                         "max_animals=2")
    ours, theirs = ({p.prompt for p in make(tmp_path, "leg_counting", "--size", "50", "--seed", s)} for s in "12")
    assert len(ours) == len(theirs) == 50 and not ours & theirs  # the generator alone would repeat 49
    assert "<answer> and </answer>" in first[0].prompt and entry_of(first[0])["question"].strip() in first[0].prompt


@needs_gym
def test_part_of_a_score_is_reward_0_below_the_threshold(tmp_path, reward):
    """puzzle24: .01 for an expression that is not 24. The general scorer: a share where the right answer is inside."""
    (puzzle,) = make(tmp_path, "puzzle24", "--size", "1")
    numbers = entry_of(puzzle)["metadata"]["numbers"]
    wrong = f"<answer>{'+'.join(map(str, numbers))}+1000</answer>"
    low = GymReward(Reward(name="gym", threshold=0.01))
    try:
        assert reward(wrong, puzzle.answer) == 0.0 and low(wrong, puzzle.answer) == 1.0
        (legs,) = make(tmp_path, "leg_counting", "--size", "1")
        holds = f"<answer>{entry_of(legs)['answer']} legs</answer>"
        assert reward(holds, legs.answer) == 0.0 and low(holds, legs.answer) == 1.0
    finally:
        low.close()


@needs_gym
def test_a_scorer_that_raises_leaves_the_rollout_unjudged_and_counted(tmp_path):
    (problem,) = make(tmp_path, "prime_factorization", "--size", "1")
    text, right = "<answer>banana</answer>", f"<answer>{entry_of(problem)['answer']}</answer>"
    verifier = GymReward(Reward(name="gym"))
    try:
        got = judge(verifier, [text, right, "no tags", right], [problem.answer] * 4, [True, True, True, False])
        assert got == [None, 1.0, 0.0, 0.0] and dict(verifier.counts) == {"raised": 1, "pass": 1, "no answer": 1}
    finally:
        verifier.close()
    strict = GymReward(Reward(name="gym", scorer_error="fail"))
    try:
        assert strict(text, problem.answer) == 0.0 and strict.counts["raised"] == 1
    finally:
        strict.close()


@needs_gym
def test_a_scorer_that_does_not_end_is_ended_and_the_next_is_asked(tmp_path):
    (problem,) = make(tmp_path, "puzzle24", "--size", "1")
    verifier = GymReward(Reward(name="gym", scorer_seconds=1.0))
    try:
        assert verifier("<answer>9**9**9**9</answer>", problem.answer) == 0.0 and verifier.counts["timeout"] == 1
        assert verifier(f"<answer>{entry_of(problem)['answer']}</answer>", problem.answer) == 1.0
    finally:
        verifier.close()


@needs_gym
def test_answers_that_scorers_evaluate_never_run(tmp_path, reward):
    """Without the guard some of these make the folder: the scorers call eval."""
    mark = tmp_path / "mark"
    hostile = (f"__import__('os').mkdir('{mark}')", f"[__import__('os').mkdir('{mark}')]",
               f"(lambda: __import__('os').mkdir('{mark}'))()", f"x.a or exec(\"import os; os.mkdir('{mark}')\")")
    for problem in make(tmp_path, *sorted(LISTS | EXPRESSIONS), "--size", "1"):
        for text in hostile:
            assert reward(f"<answer>{text}</answer>", problem.answer) == 0.0
    assert not mark.exists()


@needs_gym
def test_an_integral_is_not_answered_by_itself(tmp_path, reward):
    """The scorer differentiates the answer: the derivative of Integral(f, x) is f."""
    from reasoning_gym import create_dataset

    (problem,) = make(tmp_path, "simple_integration", "--size", "1")
    entry = entry_of(problem)
    given = f"Integral({entry['metadata']['integrand']}, {entry['metadata']['variable']})"
    assert create_dataset("simple_integration", seed=0, size=1).score_answer(given, entry) == 1.0
    assert reward(f"<answer>{given}</answer>", problem.answer) == 0.0


@needs_gym
def test_a_scorer_that_accepts_any_text_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("llm.datasets.generated.UNUSABLE", {})
    assert cli.main(["data", "reasoning-gym", "game_of_life_halting", "--out", str(tmp_path / "o.jsonl")]) == 2
    assert "its scorer accepts 'neither here nor there' as the answer of problem 0" in capsys.readouterr().err


@needs_gym
def test_a_scorer_would_run_them_without_the_guard(tmp_path):
    import reasoning_gym

    made = reasoning_gym.create_dataset("string_insertion", seed=0, size=1)
    made.score_answer(f"__import__('os').mkdir('{tmp_path / 'mark'}')", made[0])
    assert (tmp_path / "mark").exists()


@needs_gym
def test_every_scorer_that_evaluates_is_known():
    """Read from the package's own text: a new version that evaluates elsewhere fails here, before it is used."""
    root = Path(SPEC.origin).parent
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name == "score_answer":
                for call in ast.walk(node):
                    name = getattr(getattr(call, "func", None), "id", getattr(getattr(call, "func", None), "attr", ""))
                    if name in ("eval", "exec", "parse_expr", "sympify", "compile", "loads", "system", "Popen"):
                        found.add((path.stem, name))
    evaluating = {stem for stem, name in found if name not in ("loads",)}
    assert evaluating - {"number_sorting"} == LISTS | EXPRESSIONS, evaluating  # number_sorting: its own answer
    assert not any("pickle" in path.read_text() for path in root.rglob("*.py"))


@pytest.mark.parametrize(("name", "answer", "passes"), [
    ("puzzle24", "(3 + 5) * 3", True), ("simple_integration", "x**2*sin(3*x)/2 + C", True),
    ("countdown", "2.5*4", True), ("puzzle24", "(1).real", False), ("puzzle24", "exit(1)", False),
    ("puzzle24", "x[0]", False), ("puzzle24", "'3'", False), ("puzzle24", "a_b", False),
    ("puzzle24", "9" * 30_000, False), ("puzzle24", "1 . real", False),
    ("n_queens", "[['_', 'Q']]", True), ("n_queens", "f()", False), ("leg_counting", "exit()", True),
])
def test_what_may_be_evaluated(name, answer, passes):
    assert harmless(name, answer) is passes


@pytest.mark.parametrize(("text", "answer"), [
    ("<answer>1</answer> no <answer> 2\n</answer> so", "2"), ("<answer>1</answer> and <answer>2", "1"), ("1", None),
    ("</answer><answer>", None), ("<answer></answer>", ""), ("<answer><answer>3</answer></answer>", "3"),
])
def test_the_last_closed_answer(text, answer):
    assert tagged(text) == answer


@needs_gym
def test_bad_names_settings_and_problems_are_one_line(tmp_path, capsys, reward):
    out = str(tmp_path / "o.jsonl")
    for argv, says in (([], "name generators, or 'all'"), (["leg_count"], "did you mean 'leg_counting'?"),
                       (["composite"], "composite cannot be used: it is made of"),
                       (["game_of_life_halting"], "its scorer accepts any text"),
                       (["leg_counting", "--set", "min_animls=2"], "unknown setting 'min_animls'; did you"),
                       (["leg_counting", "--set", "min_animals=0"], "leg_counting: "),
                       (["leg_counting", "--seed", "5000"], "expected --seed from 0 to 4293"),
                       (["leg_counting", "--set", "seed=3"], "neither as a --set"),
                       (["leg_counting", "--set", "min_animals"], "expected KEY=VALUE"),
                       (["leg_counting", "countdown", "--set", "a=1"], "--set is for one generator"),
                       (["leg_counting", "--limit", "3"], "--limit has no effect on reasoning-gym"),
                       (["leg_counting", "--window", "2024-01:"], "--window has no effect on reasoning-gym")):
        assert cli.main(["data", "reasoning-gym", *argv, "--out", out]) == 2
        err = capsys.readouterr().err.strip()
        assert says in err and "\n" not in err
    (problem,) = make(tmp_path, "leg_counting", "--size", "1")
    for bad in ("3", "7 legs", json.dumps({**json.loads(problem.answer), "gym": "leg_count"}),
                json.dumps({**json.loads(problem.answer), "entry": 3})):
        with pytest.raises(ValueError, match="answer 1: "):
            check_answers(reward, [bad])


def test_a_missing_package_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert cli.main(["data", "reasoning-gym", "leg_counting", "--out", str(tmp_path / "o.jsonl")]) == 2
    assert "needs the package reasoning-gym: pip install 'fade-rlvr[tasks]'" in capsys.readouterr().err


@needs_gym
def test_a_file_holds_for_scorers_in_other_processes(tmp_path):
    """Some generators depend on the order of sets: the same command gives other problems, but each is whole."""
    out = tmp_path / "other.jsonl"
    subprocess.run([sys.executable, "-m", "llm.cli", "data", "reasoning-gym", "word_ladder", "isomorphic_strings",
                    "--size", "3", "--out", str(out)], check=True, env={**os.environ, "PYTHONHASHSEED": "4"},
                   capture_output=True, timeout=120)
    verifier = GymReward(Reward(name="gym"))
    try:
        for problem in read_problems(out):
            assert verifier(f"<answer>{entry_of(problem)['answer']}</answer>", problem.answer) == 1.0
    finally:
        verifier.close()
