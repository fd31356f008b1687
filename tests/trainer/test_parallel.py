"""Two processes against one: the same steps, the same numbers, checkpoints that either can read."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from tiny import HERE, train_steps

from llm import checkpoint
from llm.parallel import Ranks, blocks, global_norm

# 3 groups on 2 processes; the second job also needs rounds of dynamic sampling, epochs, a reference and old rollouts.
JOBS = {
    "plain": {"train.prompts": 3, "train.record": 2, "train.optimizer": "adam", "model.lr": 0.01,
              "parallel.micro_batch": 3},
    "all": {"train.prompts": 3, "train.record": 2, "method.name": "fade", "train.dynamic_sampling": True,
            "train.epochs": 2, "train.correction": "clip", "train.staleness": 1, "loss.kl": "k3", "loss.kl_coef": 0.1,
            "loss.denominator": "token_mean", "model.max_grad_norm": 0.02, "train.steps": 5,
            "parallel.activation_checkpointing": True},
    "one group": {"train.prompts": 1, "method.name": "reinforce_pm1", "train.record": 1},
}


@pytest.fixture(scope="module")
def two(base, tmp_path_factory):
    """Folder with what two processes wrote."""
    folder = tmp_path_factory.mktemp("two")
    jobs = {name: {**job, "model.path": base} for name, job in JOBS.items()}
    jobs["from_one"] = jobs["all"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(HERE)
        checkpoint.save(train_steps(jobs["all"], Ranks(), folder / "none")[0], folder / "from_one.saved", 0)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(HERE / "two_ranks.py"), str(folder), json.dumps(jobs)],
        cwd=HERE, capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"})
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def close(a, b, path=""):
    """Nested metrics, equal to 1e-4."""
    if isinstance(a, dict):
        assert a.keys() == b.keys(), path
        for key in a:
            close(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, float):
        assert a == pytest.approx(b, rel=1e-4, abs=1e-4), path
    else:
        assert a == b, path


@pytest.mark.parametrize("name", JOBS)
def test_two_processes_take_the_steps_of_one(two, base, tmp_path, monkeypatch, name):
    """Rows (norm, controller, masses, entropy, pass@k) and weights after the same steps."""
    monkeypatch.chdir(HERE)
    trainer, rows = train_steps({**JOBS[name], "model.path": base}, Ranks(), tmp_path)
    theirs = json.loads((two / f"{name}.json").read_text())
    assert len(rows) == trainer.train.steps - 2
    for ours, row in zip(rows, theirs, strict=True):
        close(json.loads(json.dumps(ours)), row)
    weights = torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])
    assert torch.allclose(weights, torch.load(two / f"{name}.pt"), atol=1e-4)
    # later steps of one process from the checkpoint of two, against those of one all along
    resumed, more = train_steps({**JOBS[name], "model.path": base}, Ranks(), two / f"{name}.saved")
    for row in more:
        close(json.loads(json.dumps(row)), json.loads(json.dumps(trainer.advance())))
    assert resumed.step == trainer.step == trainer.train.steps
    assert max(row["grad_norm"] for row in rows) > 1e-3


def test_two_processes_go_on_from_the_checkpoint_of_one(two, base, tmp_path, monkeypatch):
    monkeypatch.chdir(HERE)
    trainer, _ = train_steps({**JOBS["all"], "model.path": base}, Ranks(), tmp_path)
    theirs = json.loads((two / "from_one.json").read_text())
    assert [row["step"] for row in theirs] == [4, 5]
    for row in theirs:
        close(json.loads(json.dumps(trainer.advance())), row)


def test_the_norm_counts_replicated_gradients_once_and_adds_no_epsilon():
    """Norms 3 and 4 give 5 exactly, whatever is sharded."""
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0], [4.0]])]
    assert global_norm(gradients, Ranks()) == 5.0
    sharded = SimpleNamespace(to_local=lambda: torch.zeros(2))  # this process holds zeros of it, another 4
    other = SimpleNamespace(sum=lambda squares: squares + 16.0)
    assert global_norm([torch.tensor([3.0, 0.0]), sharded], other) == 5.0


def test_blocks_are_found_in_any_model(make_trainer):
    policy = make_trainer().policy
    assert blocks(policy.model) == list(policy.model.model.layers)


def test_compiled_in_place_parameters_keep_their_names(make_trainer):
    """torch.compile as a wrapper renames them (`_orig_mod.`), which would break checkpoints; in place it does not."""
    model = make_trainer().policy.model
    names = [name for name, _ in model.named_parameters()]
    model.compile()
    assert [name for name, _ in model.named_parameters()] == names
