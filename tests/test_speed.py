"""Speed that must hold: ratios of CPU time to what runs beside it, each at half of its floor, the best of 3 rounds.

`python -m benchmarks` measures the same, longer, against the goals.
"""

import numpy as np
import pytest
import torch

from benchmarks import checks, runs, steps, weighing
from benchmarks.__main__ import main
from benchmarks.contenders import numpy_first
from benchmarks.problem import SHAPES, Shape, regime_of, table_policy
from benchmarks.timing import Row, interleave, ratios


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def timed(cells, seconds=0.05):
    return interleave(cells, rounds=3, seconds=seconds)


@pytest.mark.parametrize("name", SHAPES)
def test_step_against_its_bound_and_numpy(name):
    at, shape = list(SHAPES).index(name), SHAPES[name]
    run, problem = table_policy(shape)
    first = numpy_first.start(problem)
    timings = timed({**steps.bound_cells(run, shape), "numpy": lambda: first(shape.steps)})
    assert max(ratios(timings["numpy"], timings["kernel"])) > steps.GOALS["NumPy as first written"][at][1] / 2
    bound = steps.bound_row(name, timings)
    assert min(bound.ratios) < 2 * bound.floor


@pytest.fixture(scope="module")
def dense():
    return timed(weighing.dense_cells(10**5, with_torch=True))


def test_numpy_core_against_a_copy(dense):
    assert min(ratios(dense["core"], dense["copy"])) < 2 * 8


def test_torch_core_against_the_formula_of_trl(dense):
    assert max(ratios(dense["TRL"], dense["torch core"])) > 3 / 2


@pytest.mark.skipif(weighing.gather() is None, reason="no compiled gather in fade_sim.sim.kernels")
def test_compiled_gather_against_a_copy(dense):
    assert min(ratios(dense["gather"], dense["widening copy"])) < 2 * 1.2


def test_shuffled_ids_against_a_python_loop_over_groups():
    rollouts, looped = 10**5, 4000
    timings = timed(weighing.shuffled_cells(rollouts, looped, with_torch=True))
    core = weighing.per_rollout(timings["core"], rollouts)
    assert max(ratios(weighing.per_rollout(timings["torch loop"], looped), core)) > 100 / 2


def test_recording_against_bare_steps():
    timings = timed(runs.recording_cells(4000))
    assert min(ratios(timings["recorded"], timings["bare"])) < 2 * 1.3


# --- the benchmark itself ---------------------------------------------------------------------------------


def test_everything_timed_weighs_alike():
    assert [check.what for check in weighing.checks(with_torch=True) if not check.passed] == []


def test_a_check_sees_a_kernel_that_is_off_by_one_in_a_thousand(monkeypatch):
    regime, contender = regime_of(Shape(8, 16, 4, 1))
    assert checks.agreement("small", regime, contender, steps=2).passed
    right = checks.reference.train_step
    monkeypatch.setattr(checks.reference, "train_step",
                        lambda world, dyn, method, ctrl, factor, *rest: right(world, dyn, method, ctrl, 1.001 * factor,
                                                                               *rest))
    assert not checks.agreement("small", regime, contender, steps=2).passed


def test_chi_square_sees_a_policy_that_is_off_by_five_percent():
    # 2e5 draws, half of the arms up by 5 %, the others down: the statistic grows by 2e5 * .05^2 = 500, its
    # standard deviation under the policy is sqrt(2 * 15) = 5.5. Off by .5 % it would grow by 5: not seen.
    counts, pi = checks.drawn(SHAPES["small"])
    assert counts.sum() == pytest.approx(200_000) and checks.chi_square(counts, pi) > checks.RARE
    wrong = pi * np.where(np.arange(16) % 2, 1.05, 0.95)
    assert checks.chi_square(counts, wrong / wrong.sum()) < 1e-20


def test_a_contender_that_does_not_train_is_refused():
    run, problem = table_policy(SHAPES["small"])
    run.advance(40)
    kernel = checks.solve_rate(problem.bias + run.learned(), problem.success)
    assert checks.same_work("trained", numpy_first.start(problem)(40), problem, kernel).passed
    assert not checks.same_work("idle", problem.bias, problem, kernel).passed


@pytest.fixture
def in_this_process(monkeypatch):
    """`main` without what it does to a process of its own: thread limits, loading of JAX."""
    monkeypatch.setattr("benchmarks.__main__.optional", lambda options: None)
    monkeypatch.setattr("benchmarks.timing.one_thread", lambda: None)


def test_a_failed_check_ends_the_run_before_any_timing(in_this_process, monkeypatch, capsys):
    monkeypatch.setattr(checks, "kernel_checks", lambda quick: [checks.Check("draws ~ policy", False, "p = 0.000")])
    monkeypatch.setattr(runs, "recording", lambda options: pytest.fail("timed"))
    assert main(["--quick", "--only", "recording"]) == 1
    assert "check failed: draws ~ policy: p = 0.000" in capsys.readouterr().err


def test_the_report_holds_every_ratio_and_every_check(in_this_process, tmp_path, capsys):
    assert main(["--quick", "--only", "recording", "--rounds", "1", "--out", str(tmp_path / "speed.md")]) == 0
    text = (tmp_path / "speed.md").read_text()
    assert "| simulate, recording every 25 steps / bare steps" in text and "at most 1.3" in text
    for words in ("kernel = reference, linear head", "draws ~ policy, K 256, G 64", "load ", "numpy "):
        assert words in text
    assert "recording every 25 steps" in capsys.readouterr().out


def test_marks():
    # median of 2, 9, 4 is 4: between a goal of 3 and a floor of 5 where less is better, above both where more is
    assert Row("", "", [2, 9, 4], 3, 5).mark == "below goal"
    assert Row("", "", [2, 9, 4], 4, 5).mark == "ok"
    assert Row("", "", [2, 9, 4], 2, 3).mark == "below floor"
    assert Row("", "", [2, 9, 4], 4, 3, more_is_better=True).mark == "ok"
    assert Row("", "", [2, 9, 4], 5, 4, more_is_better=True).mark == "below goal"
    assert Row("", "", [2, 9, 4], 6, 5, more_is_better=True).mark == "below floor"
    assert Row("", "", [2, 9, 4], 6, 5, judged=False).mark == "not judged" and Row("", "", [2]).mark == ""
