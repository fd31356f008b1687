"""Mathematical answers: extraction, exact comparison, and the faults that graders were reported to have."""

import importlib.util
import threading
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm.math_answer import answer_of, clean, last_box, number
from llm.math_reward import MathReward
from llm.settings import Reward

needs_math_verify = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None,
                                       reason="math-verify is not installed: pip install 'fade-rlvr[tasks]'")


@pytest.fixture(scope="module")
def exact():
    """Without math-verify: numbers and texts."""
    reward = MathReward(Reward(name="math", symbolic=False))
    yield reward
    reward.close()


@pytest.fixture(scope="module")
def symbolic():
    reward = MathReward(Reward(name="math"))
    yield reward
    reward.close()


def box(text):
    return rf"therefore \boxed{{{text}}}."


# --- reported faults -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "gold"), [
    ("1/2^{80}", "1/2^{79}"), ("1/60!", "1/62!"), (r"\frac{1}{2^{30}}", r"\frac{1}{2^{29}}"), (r"10^{-9}", "0")])
def test_small_numbers_are_not_equal(exact, answer, gold):
    """RWM-02: an absolute tolerance makes very small fractions equal."""
    assert exact(box(answer), gold) == 0 and exact(box(gold), answer) == 0
    assert exact(box(answer), answer) == 1


@needs_math_verify
@pytest.mark.parametrize(("answer", "gold"), [
    ("n=3,4", "n=1,4"), (r"\pm 7", "7"), (r"\sqrt{2}/2^{80}", r"\sqrt{2}/2^{79}"), (r"10^{-9}\pi", r"2\cdot10^{-9}\pi"),
    (r"\{10^{-9}\pi,1\}", r"\{10^{-8}\pi,1\}")])
def test_partly_right_answers_are_wrong(symbolic, answer, gold):
    """RWM-02: parts of structures compared loosely; and the tolerance again, of numbers that are not rational."""
    assert symbolic(box(answer), gold) == 0
    assert symbolic(box(gold), gold) == 1


def test_the_last_box_counts(exact):
    """RWM-03, RWM-04: a repeated box glued into one number, a retracted one merged with its correction."""
    assert exact(r"so \boxed{36} ... Final: \boxed{36}", "36") == 1
    assert exact(r"first \boxed{4}, no wait, \boxed{9}", "9") == 1
    assert exact(r"first \boxed{9}, no wait, \boxed{4}", "9") == 0
    assert exact(r"first \boxed{4}, " + "and so on " * 20 + r"\boxed{9}", "9") == 1


def test_braces_are_balanced(exact):
    """RWM-05: a pattern up to the first closing brace makes 3/4 and 3/5 the same text."""
    assert last_box(box(r"\frac{3}{4}")) == r"\frac{3}{4}"
    assert exact(box(r"\frac{3}{4}"), r"\frac{3}{5}") == 0 and exact(box(r"\frac{3}{4}"), "3/4") == 1
    assert last_box(r"\boxed{\frac{3}{4}") is None  # never closed: no answer
    assert last_box(r"\boxed{9} and \boxed{\frac{3}{4}") is None
    assert last_box(r"\boxed{\{1, 2\}}") == r"\{1, 2\}"
    assert last_box(r"\boxed{}") is None and last_box(r"\boxed{ $ $ }") is None


@pytest.mark.parametrize("text", ["8", r"\boxed{8}", r"Answer: \boxed{8}", r"\boxed{\boxed{8}}", r"\fbox{$8$}", "$8$.",
                                  r"\frac{3}{4}", "**58**", r"\left(1, 2\right)"])
def test_extraction_of_an_extracted_answer_changes_nothing(exact, text):
    """RWM-06: extracted twice, the second finds no box, and every right answer scores 0."""
    assert answer_of(answer_of(text)) == answer_of(text)
    if "8" in text and "58" not in text:
        assert exact(r"Answer: \boxed{8}", text) == 1


def test_every_wrapper_that_is_found_is_stripped(exact):
    """RWM-07: one helper looks for fbox, the next strips boxed alone."""
    assert exact(r"\fbox{42}", "42") == 1 and exact(r"\fbox{\frac{1}{2}}", "0.5") == 1
    assert exact(r"\boxed {42}", r"\fbox{42}") == 1


@pytest.mark.parametrize("gold", ["17", "23"])
def test_without_a_box_there_is_no_answer(exact, gold):
    """RWM-08: the whole text goes to the comparer, which picks up any number."""
    assert exact("I computed 17 then 23, unsure", gold) == 0
    assert exact("**23**", gold) == 0


@needs_math_verify
def test_comparison_in_a_thread(symbolic):
    """RWM-09: timeouts by signal raise outside the main thread."""
    got = []
    thread = threading.Thread(target=lambda: got.extend([symbolic(r"\boxed{2x}", "x+x"), symbolic(r"\boxed{5}", "5")]))
    thread.start()
    thread.join()
    assert got == [1, 1]


@needs_math_verify
def test_a_comparison_that_does_not_end(symbolic):
    """RWM-09: ended from outside, reward 0, counted; the next one is compared as ever."""
    quick = MathReward(Reward(name="math", symbolic_seconds=1.0))
    try:
        assert quick(r"\boxed{9^{9^{9^{9^9}}}x}", "3x") == 0 and quick.counts["timeout"] == 1
        assert quick(r"\boxed{2x}", "x+x") == 1
    finally:
        quick.close()


@needs_math_verify
def test_a_dead_worker_is_no_wrong_answer(symbolic):
    """RWM-09: an infrastructure error is not swallowed into reward 0: the worker is started again, or there is none."""
    symbolic._worker.process.kill()
    symbolic._worker.process.wait()
    assert symbolic(r"\boxed{2x}", "x+x") == 1
    worker = symbolic._worker
    worker.stop()
    original, worker.start = worker.start, lambda: (_ for _ in ()).throw(OSError("no more processes"))
    try:
        assert symbolic(r"\boxed{2x}", "x+x") is None and symbolic.counts["lost"] == 1
    finally:
        worker.start = original
    assert symbolic(r"\boxed{2x}", "x+x") == 1


def test_fractions_without_braces_and_spoilt_ones(exact):
    r"""RWM-10: \frac12 seemed unequal to \frac{1}{2} because of a form feed: such answers are refused when loaded."""
    assert exact(box(r"\frac34"), r"$\frac{3}{4}$") == 1
    assert number(r"\frac12").value == Fraction(1, 2)
    exact.check(r"\frac34", "answer 1")
    with pytest.raises(ValueError, match=r"answer 7: .*control character '.x0c'"):
        exact.check("$\frac34$", "answer 7")


def test_plain_fractions_and_bold_answers(exact):
    """RWM-11: undelimited LaTeX, a/b and bold answers were misread."""
    assert exact(box("2/5"), r"$\frac{2}{5}$") == 1 and exact(box(r"\frac{2}{5}"), "2/5") == 1
    assert exact(box("**58**"), "58") == 1
    loose = MathReward(Reward(name="math", symbolic=False, answer="box_or_bold"))
    assert loose("the total is **58**.", "58") == 1 and loose("the total is 58.", "58") == 0
    assert loose(r"**57**, so \boxed{58}", "58") == 1


def test_text_is_never_evaluated(exact, tmp_path):
    """RWM-12: a grader that calls eval on an answer runs it."""
    mark = tmp_path / "mark"
    call = f"open('{mark}','w')"
    assert exact(box(call), "3") == 0 and exact(box(f"3 if {call} else 3"), "3") == 0 and not mark.exists()
    assert exact(box("3"), "3") == 1


@needs_math_verify
def test_text_is_never_evaluated_by_the_worker(symbolic, tmp_path):
    """RWM-12, past our own filter too: the worker reads LaTeX alone."""
    from llm.math_worker import same

    mark = tmp_path / "mark"
    for call in (f"open('{mark}','w')", f"exec('open(\"{mark}\",\"w\")')", f"__import__('os').mkdir('{mark}')"):
        assert symbolic(box(call), "x") == 0
        try:
            assert not same("x", call)
        except Exception as error:  # a parse error is fine: the worker answers "not the same"
            assert type(error).__module__ != "builtins" or isinstance(error, (ValueError, TypeError))
    assert not mark.exists() and symbolic(box("2y"), "y+y") == 1


def test_a_box_in_an_answer_element(exact):
    """RWM-13: the literal text with its box compared with a bare number."""
    assert exact(r"<answer>\boxed{42}</answer>", "42") == 1


# --- numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [
    ("42", 42), ("-42", -42), ("+7", 7), ("1,234,567", 1234567), ("1{,}234", 1234), ("0.25", Fraction(1, 4)),
    (".5", Fraction(1, 2)), (r"-\frac{1}{3}", Fraction(-1, 3)), (r"1\frac12", Fraction(3, 2)), ("2^{10}", 1024),
    (r"3\times10^{-2}", Fraction(3, 100)), ("(4)", 4), ("5!", 120), (r"\frac{1}{2^3}", Fraction(1, 8)), ("12/-4", -3),
    ("1,2", None), ("(1,2)", None), ("x", None), ("", None), ("1/0", None), ("2^{0.5}", None), ("9^{9^9}", None),
    ("99999!", None), ("1 2", None), ("--", None), ("1_000", None), ("\u0663", None),
    ("(" * 3000 + "1" + ")" * 3000, None),
])
def test_numbers(text, value):
    got = number(clean(text))
    assert (None if got is None else got.value) == value


@given(st.integers(-10**30, 10**30), st.integers(1, 10**30))
def test_every_rational_survives_its_spellings(a, b):
    value = Fraction(a, b)
    for text in (f"{a}/{b}", rf"\frac{{{a}}}{{{b}}}", rf"\left(\frac{{{a}}}{{{b}}}\right)"):
        assert number(clean(text)).value == value


def test_a_computation_is_no_answer(exact):
    """12+5 is the question, not the answer; a power or a fraction is a spelling of a number."""
    assert exact(box("12+5"), "17") == 0 and exact(box("2^{10}"), "1024") == 1 and exact(box("6/4"), "1.5") == 1
    assert exact(box("12+5"), "12+5") == 1


def test_tolerance_is_relative_and_asked_for(exact):
    near = MathReward(Reward(name="math", symbolic=False, tolerance=1e-3))
    assert exact(box("3.142"), "3.14159") == 0 and near(box("3.142"), "3.14159") == 1
    assert near(box("1001"), "1000") == 0  # whole numbers are exact
    assert near(box("0.0000001"), "0.0000002") == 0


def test_a_missing_library_is_said(monkeypatch):
    import llm.worker as module

    real = module.json.loads
    monkeypatch.setattr(module.json, "loads", lambda text: {"missing": True} if b"ready" in text else real(text))
    if importlib.util.find_spec("math_verify") is None:
        monkeypatch.undo()
    with pytest.raises(ValueError, match=r"reward\.symbolic needs the package math-verify"):
        MathReward(Reward(name="math"))


@pytest.mark.parametrize("text", [
    r"\boxed{" * 5000, r"\boxed{" * 2000 + "}" * 2000, r"\boxed{1}" * 5000, box("9^{6000}*" * 500 + "1"),
    box("9^{6000}+" * 500 + "1"), box("999!*" * 900 + "1"), box("9!" * 2000), box("(" * 4000), box("-" * 4000 + "1"),
    box(r"\frac" * 800), box("1{,}" * 1000), box("." * 20_000), box("$" * 20_000), box("1" * 20_000),
    "**" * 20_000, box(r"\aaaa" * 79 + "'"), box("{" * 200 + "'" + "}" * 200), "\\" * 20_000,
])
def test_no_text_takes_long_or_stops_the_run(exact, text):
    """Whatever a model writes: an answer, or none, within a second."""
    import time

    from llm.math_reward import _LATEX

    loose = MathReward(Reward(name="math", symbolic=False, answer="box_or_bold"))
    began = time.process_time()
    assert exact(text, "8") == 0 and loose(text, "8") == 0
    _LATEX.fullmatch(text)
    assert time.process_time() - began < 1.0
