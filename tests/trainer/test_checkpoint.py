"""A run that was interrupted, anywhere, ends with the same bytes as one that was not."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import HERE, SMALL, weights

from fade_sim.advantage import controller
from llm import checkpoint, cli
from llm.data import prompt_of

RUN = {"train.steps": 12, "train.record": 6, "train.staleness": 2, "parallel.save_every": 3, "method.name": "fade",
       "train.optimizer": "adam", "model.lr": 0.01}


def arguments(base, out, **overrides) -> list[str]:
    settings = {**SMALL, **RUN, "model.path": base, **overrides}
    flat = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return ["train", "dr_grpo", *flat, "--out", str(out)]


def forked(argv, kill_when=None) -> int:
    """The command in a child process; kill_when() -> True sends it SIGKILL. Returns the exit code, -9 if killed."""
    child = os.fork()
    if child == 0:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 1)
        os._exit(cli.main(argv))
    while kill_when is not None:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if kill_when():
            os.kill(child, signal.SIGKILL)
            break
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that must be equal: all but times and locks; of the checkpoints the newest."""
    names = ["metrics.jsonl", "summary.json", "config.toml", "model/model.safetensors"]
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture(scope="module")
def uninterrupted(base, tmp_path_factory):
    """(contents, seconds) of the run that nothing stopped."""
    here = os.getcwd()
    os.chdir(HERE)  # where reward.name looks for its function
    began, folder = time.time(), tmp_path_factory.mktemp("whole") / "run"
    try:
        assert forked(arguments(base, folder)) == 0
    finally:
        os.chdir(here)
    return contents(folder), time.time() - began


def interrupted(base, folder, kills, rng, seconds) -> int:
    """A run that is killed up to `kills` times at random moments, and resumed until it is complete; kills done."""
    done = 0
    while True:
        resume = (folder / "config.toml").exists()  # False: killed before there was a run
        began, limit = time.time(), rng.uniform(0, seconds) if done < kills else np.inf
        code = forked(["train", "--resume", str(folder)] if resume else arguments(base, folder),
                      lambda: time.time() - began > limit)  # noqa: B023
        if code == 0:
            return done
        assert code == -signal.SIGKILL
        done += 1
        if (folder / "summary.json").exists():  # killed after its last write, before it could return
            return done


def test_a_killed_run_resumes_to_the_same_bytes(base, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)
    whole, _ = uninterrupted
    folder, lines = tmp_path / "run", tmp_path / "run" / "metrics.jsonl"
    code = forked(arguments(base, folder),
                  lambda: lines.exists() and len(lines.read_bytes().splitlines()) > 8)  # two checkpoints, two steps on
    assert code == -signal.SIGKILL and not (folder / "summary.json").exists()
    assert forked(["train", "--resume", str(folder)]) == 0
    assert contents(folder) == whole
    assert json.loads((folder / "summary.json").read_text())["step"] == 12


@pytest.mark.slow
def test_a_hundred_kills_at_random_moments(base, uninterrupted, tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)
    whole, seconds = uninterrupted
    rng, kills, runs = np.random.default_rng(0), 0, 0
    while kills < 100:
        folder = tmp_path / f"run{runs}"
        kills, runs = kills + interrupted(base, folder, 8, rng, seconds), runs + 1
        assert contents(folder) == whole


def test_a_folder_is_never_overwritten_and_a_complete_run_not_resumed(base, uninterrupted, tmp_path, capsys):
    (tmp_path / "taken").mkdir()
    assert cli.main(arguments(base, tmp_path / "taken")) == 2
    assert "already exists" in capsys.readouterr().err and not any((tmp_path / "taken").iterdir())
    (tmp_path / "taken" / "config.toml").write_text("")
    (tmp_path / "taken" / "summary.json").write_text("{}")
    assert cli.main(["train", "--resume", str(tmp_path / "taken")]) == 2
    assert "complete" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(tmp_path)]) == 2
    assert "no run folder" in capsys.readouterr().err


def continued(make_trainer, tmp_path, at: int, steps: int, **overrides):
    """(rows and weights of a run, of one that was saved after `at` steps and loaded into a fresh trainer)."""
    settings = {"train.steps": steps, **overrides}
    whole = make_trainer(**settings)
    rows = [whole.advance() for _ in range(steps)]
    first = make_trainer(**settings)
    for _ in range(at):
        first.advance()
    checkpoint.save(first, tmp_path, 123)
    second = make_trainer(**settings)
    assert checkpoint.load(second, tmp_path) == 123 and second.step == at
    return rows[at:], [second.advance() for _ in range(steps - at)], weights(whole), weights(second)


@pytest.mark.parametrize("overrides", [
    {"train.optimizer": "sgd"},
    {"train.optimizer": "adam", "model.lr": 0.01, "train.staleness": 2, "train.correction": "ratio"},
    {"train.epochs": 2, "train.correction": "clip", "train.dynamic_sampling": True, "method.name": "fade"},
    {"model.dtype": "bfloat16", "train.optimizer": "adam", "model.lr": 0.01},
    {"model.lora_rank": 2, "method.name": "scale_ema", "probe.stability": True, "probe.rollouts": 32,
     "train.record": 2},
], ids=["sgd", "stale adam", "dynamic fade", "bfloat16", "lora"])
def test_a_loaded_trainer_takes_the_same_steps(make_trainer, tmp_path, overrides):
    rows, resumed, whole, weights_resumed = continued(make_trainer, tmp_path, 2, 4, **overrides)
    assert rows == resumed and torch.equal(whole, weights_resumed)
    assert rows[0] != rows[1]


def test_averages_survive_exactly(make_trainer, tmp_path):
    """rate .02, start .5, 50 updates with .6: phat = .6 - .1 * .98^50 = .563583, alpha = 1.5 q/p = 1.161542."""
    trainer = make_trainer("fade")
    for _ in range(50):
        trainer.controller = controller.update(trainer.controller, 0.6, 1.0)
    checkpoint.save(trainer, tmp_path, 0)
    fresh = make_trainer("fade")
    checkpoint.load(fresh, tmp_path)
    assert fresh.controller == trainer.controller
    assert fresh.controller.phat == pytest.approx(0.563583, abs=1e-6)
    assert controller.gains(fresh.controller)[0] == pytest.approx(1.161542, abs=1e-6)


def test_random_numbers_and_prompts_go_on_where_they_stopped(make_trainer, tmp_path):
    """10 prompts, 4 groups drawn, then resumed: the next is the 5th, and rollouts are not those of a fresh start."""
    trainer = make_trainer()
    fresh_start = trainer.collect().rollouts
    checkpoint.save(trainer, tmp_path, 0)
    ahead = trainer.collect().rollouts
    resumed = make_trainer()
    checkpoint.load(resumed, tmp_path)
    after = resumed.collect().rollouts
    assert torch.equal(after.ids, ahead.ids) and torch.equal(after.problem, ahead.problem)
    assert after.group.unique().tolist() == [4, 5, 6, 7] and fresh_start.group.unique().tolist() == [0, 1, 2, 3]
    assert not torch.equal(after.ids[:, -5:], fresh_start.ids[:, -5:])


def test_an_epoch_visits_each_prompt_once():
    for epoch in range(3):
        assert sorted(prompt_of(k, 10, seed=1) for k in range(10 * epoch, 10 * epoch + 10)) == list(range(10))
    first, second = ([prompt_of(k, 10, seed=1) for k in range(s, s + 10)] for s in (0, 10))
    assert first != second


def test_weights_that_are_not_finite_are_not_saved(make_trainer, tmp_path):
    """Saved at 1, then NaN: the newest good checkpoint stays, and a run goes on from there for the steps left."""
    trainer = make_trainer()
    trainer.advance()
    checkpoint.save(trainer, tmp_path, 0)
    trainer.advance()
    with torch.no_grad():
        next(iter(trainer.policy.parameters()))[0, 0] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        checkpoint.save(trainer, tmp_path, 0)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["checkpoint-00000001"]
    resumed = make_trainer()
    checkpoint.load(resumed, tmp_path)
    taken = []
    resumed.run(lambda row: taken.append(row["step"]), lambda: None)
    assert taken == [2, 3, 4]


def test_a_gradient_that_is_not_finite_changes_no_weight(make_trainer):
    trainer = make_trainer()
    start = weights(trainer)
    for p in trainer.policy.parameters():
        p.grad = torch.full_like(p, float("inf"))
    with pytest.raises(ValueError, match="gradient is not finite"):
        trainer.optimiser.step(trainer.ranks)
    assert torch.equal(weights(trainer), start)


def test_only_the_newest_checkpoints_are_kept(make_trainer, tmp_path):
    trainer = make_trainer(**{"train.steps": 6})
    for _ in range(4):
        trainer.advance()
        checkpoint.save(trainer, tmp_path, 0)
    assert [p.name for p in checkpoint.checkpoints(tmp_path)] == ["checkpoint-00000003", "checkpoint-00000004"]


def test_a_damaged_checkpoint_is_named(make_trainer, tmp_path):
    trainer = make_trainer()
    saved = checkpoint.save(trainer, tmp_path, 0)
    (saved / "queue.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot be loaded"):
        checkpoint.load(make_trainer(), tmp_path)
