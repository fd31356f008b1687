"""The benchmark against TRL, where there is no TRL: its arguments, its skip, its ratios, and its own half."""

import json
import sys

import pytest

from benchmarks import timing, trainer, trainer_run
from benchmarks.trainer import MODELS, Failed, last_line, main, rows_of


@pytest.fixture
def without_trl(monkeypatch):
    monkeypatch.setattr(trainer, "trl_version", lambda python: None)
    monkeypatch.setattr(trainer, "prepare", lambda *args: pytest.fail("made a model"))


def test_without_trl_it_is_skipped_and_says_how_to_get_it(without_trl, capsys):
    assert main(["--quick"]) == 0
    said = capsys.readouterr()
    assert "skipped" in said.err and 'pip install "trl==1.16.*"' in said.err and said.out == ""


def test_an_interpreter_that_was_named_must_have_trl(without_trl, capsys):
    assert main(["--quick", "--trl-python", sys.executable]) == 2
    assert sys.executable in capsys.readouterr().err


def test_an_interpreter_that_is_none_has_no_trl(tmp_path):
    assert trainer.trl_version(tmp_path / "python") is None


@pytest.mark.parametrize("argv", [["--rounds", "0"], ["--only", "large"], ["--fast"]])
def test_arguments_are_checked(argv):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2


def test_ratios_are_those_within_a_round():
    """Median step 2 of (1, 2, 9) over 4: .5; 3 over 4: .75. Memory 10 over 20, above the start 4 over 8."""
    def run(cpu, peak, before):
        return {"cpu": cpu, "wall": [2 * c for c in cpu], "peak": peak, "before": before}

    ours = [run([1, 9, 2], 10, 6), run([3, 3, 3], 10, 6)]
    theirs = [run([4, 4, 4], 20, 12), run([4, 4, 4], 20, 12)]
    rows = rows_of("tiny", MODELS["tiny"], ours, theirs)
    assert [row.ratios for row in rows] == [[0.5, 0.75], [0.5, 0.75], [0.5, 0.5], [0.5, 0.5]]
    assert rows[0].mark == "ok" and rows[0].goal == 1.0
    slower = rows_of("tiny", MODELS["tiny"], theirs, ours)
    assert slower[0].mark == "below floor"


def test_a_child_that_fails_ends_the_run(monkeypatch):
    with pytest.raises(Failed, match="no such thing"):
        trainer.child([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_a_child_runs_on_one_thread_without_a_network():
    text = trainer.child([sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"])
    found = last_line(text)
    assert {found[name] for name in timing.THREADS} == {"1"} and found["HF_HUB_OFFLINE"] == "1"


@pytest.fixture
def job(base):
    return {"model": base, "prompts": 4, "group_size": 4, "max_tokens": 5, "lr": 0.1, "seed": 0, "warm": 2, "steps": 3}


def test_this_trainers_half(job):
    """A number per timed step, and the problems in the order that the trainer visits them."""
    found = trainer_run.timed(job)
    assert len(found["cpu"]) == len(found["wall"]) == 3 and min(found["cpu"]) > 0
    assert found["peak"] >= found["before"] > 2**26 and len(found["solved"]) == 5
    made = trainer_run.make_trainer(job)
    batch = made.collect()
    asked = [made.split.train[i] for i in batch.rollouts.problem[::4]]
    assert trainer_run.visited(made, 4) == [(p.prompt, p.answer) for p in asked]


def test_the_check_against_trl_sees_wrong_advantages_and_gradients(job, tmp_path):
    """A dump with what plain autograd gives passes; off by 1 in 1000 it does not."""
    import torch

    made = trainer_run.make_trainer(job)
    r = made.collect().rollouts
    reward = torch.tensor([1.0, 0, 0, 0] * 4, dtype=torch.float64)
    advantage = (reward - 0.25).float()
    model = made.policy.model
    total = torch.zeros(())
    for i in range(len(r)):  # on-policy: -A log pi, whose value at ratio 1 is -A a token
        logprob = torch.log_softmax(model(input_ids=r.ids[i][None], attention_mask=r.attention[i][None]).logits, -1)
        own = logprob[0, :-1].gather(-1, r.ids[i][1:, None])[:, 0][r.answer[i][1:]]
        total = total - advantage[i] * (own - own.detach() + 1).sum() / (len(r) * 5)
    total.backward()
    columns = r.prompt.any(dim=0)
    batch = {"prompt_ids": r.ids[:, columns], "prompt_mask": r.prompt[:, columns].long(),
             "completion_ids": r.ids[:, ~columns], "completion_mask": r.answer[:, ~columns].long(),
             "advantages": advantage}
    right = {"batch": batch, "reward": reward.tolist(), "loss": total.item(),
             "gradient": {name: p.grad.clone() for name, p in model.named_parameters()}}
    path = tmp_path / "dump.pt"

    def held(dump):
        torch.save(dump, path)
        return [passed for _, passed, _ in trainer_run.compared({**job, "dump": str(path)})]

    assert held(right) == [True] * 4
    assert held({**right, "batch": {**batch, "advantages": 1.001 * advantage}}) == [True, False, True, True]
    assert held({**right, "loss": right["loss"] + 1e-3}) == [True, True, False, True]
    off = {name: 1.001 * g for name, g in right["gradient"].items()}
    assert held({**right, "gradient": off}) == [True, True, True, False]
    assert json.loads(json.dumps(trainer_run.compared({**job, "dump": str(path)})))[0][1] is True
