"""The files that are written, in the hands of those they are written for."""

import json
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import small_model

from fade_sim.errors import InputError
from llm import cli, config
from llm.graduate import verl_config
from llm.graduate.models import MODELS

ROOT = Path(__file__).parents[2]
needs_verl = pytest.mark.skipif(find_spec("verl") is None, reason="pip install 'fade-rlvr[verl]' (verl 0.9.1)")
needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="pip install 'fade-rlvr[trl]' (trl 1.16)")


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    return small_model.write(tmp_path_factory.mktemp("base"))


@pytest.fixture
def problems(tmp_path, monkeypatch):
    """Eight sums to train on and eight to test with, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, sign in (("a", "+1="), ("b", "+2=")):
        rows = [{"prompt": f"{i}{sign}", "answer": str(i + int(sign[1]))} for i in range(8)]
        Path(f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def small(base: str) -> list[str]:
    return ["--model.path", base, "--data.train", "a.jsonl", "--data.test", "b.jsonl", "--reward.name", "integer",
            "--rollout.sampler", "own", "--rollout.max_tokens", "4", "--model.dtype", "float32",
            "--cluster.prompt_tokens", "8"]


def run(folder: Path, script: str, path: str = "") -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), path]), "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, str(folder / script)], capture_output=True, text=True, timeout=300, env=env)


@pytest.mark.parametrize("engine", ["verl", "trl"])
def test_scripts_are_bash(engine, tmp_path):
    out = tmp_path / "o"
    assert cli.main(["graduate", "fade", "--engine", engine, "--model", "qwen2.5-7b", "--out", str(out)]) == 0
    scripts = [p for p in out.iterdir() if p.suffix in (".sh", ".slurm")]
    assert scripts
    for script in scripts:
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0, script


def test_verl_gets_its_overrides_one_by_one(tmp_path):
    """What launch.sh hands over is every line of the file but the comments, each one argument."""
    out = tmp_path / "a folder"
    assert cli.main(["graduate", "fade", "--engine", "verl", "--model", "qwen2.5-7b", "--out", str(out)]) == 0
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text('#!/bin/bash\nprintf "%s\\n" "$RUN_FOLDER" "$VERL_LOGGING_LEVEL" "$@"\n')
    python.chmod(0o755)
    done = subprocess.run([out / "launch.sh", "data.seed=7"], capture_output=True, text=True, check=True,
                          env={**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    folder, level, *arguments = done.stdout.splitlines()
    assert (folder, level) == (str(out), "WARNING")
    lines = [line for line in (out / "overrides.txt").read_text().splitlines() if not line.startswith("#")]
    assert arguments == ["-m", "verl.trainer.main_ppo", *lines, "data.seed=7"]


def test_verl_gets_its_data_and_reward(problems, base):
    out = problems / "out"
    assert cli.main(["graduate", "fade", "--engine", "verl", "--model", "qwen2.5-7b", "--out", str(out),
                     *small(base)]) == 0
    done = run(out, "prepare.py")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert rows[3] == {"data_source": "verifiable", "prompt": [{"role": "user", "content": "3+1="}],
                       "reward_model": {"style": "rule", "ground_truth": "4"}, "extra_info": {"index": 3}}
    assert len((out / "test.jsonl").read_text().splitlines()) == 8
    score = runpy.run_path(str(out / "reward.py"))["compute_score"]
    assert (score("x", "4", "4"), score("x", "+04", "4"), score("x", "5", "4", {"index": 0})) == (1.0, 1.0, 0.0)


def test_what_cannot_be_judged_is_no_failure(problems, base, monkeypatch):
    out = problems / "out"
    assert cli.main(["graduate", "fade", "--engine", "verl", "--model", "qwen2.5-7b", "--out", str(out),
                     *small(base)]) == 0
    reward = runpy.run_path(str(out / "reward.py"))
    reward["compute_score"].__globals__["VERIFIER"] = lambda text, answer: None
    got = reward["compute_score"]("x", "4", "4")
    assert got != got  # NaN


@needs_verl
@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize(("regime", "rule"), [("cluster", "fade_1.0"), ("uncorrected", "asym_0.5"),
                                              ("one node", "scale_ema")])
def test_verl_composes_and_validates_the_papers_runs(model, regime, rule, capsys):
    code = cli.main(["graduate", "paper/methods", "--rule", rule, "--engine", "verl", "--model", model, "--regime",
                     regime, "--dry-run"])
    out, err = capsys.readouterr()
    assert code == 0, err
    assert "checked by verl 0.9.1: composed and validated" in out


@needs_verl
def test_verl_has_what_the_config_says(tmp_path, monkeypatch):
    from llm.adapters.verl import composed

    out = tmp_path / "o"
    assert cli.main(["graduate", "paper/methods", "--rule", "fade_1.3", "--engine", "verl", "--model", "cwm-32b",
                     "--nodes", "32", "--out", str(out)]) == 0
    lines = (out / "overrides.txt").read_text().splitlines()[1:]
    monkeypatch.setenv("RUN_FOLDER", str(out))
    cfg, weights, _ = composed([line for line in lines if not line.startswith("hydra.")])
    settings = config.load(out / "config.toml")
    assert (weights.method, weights.controller) == (settings.contender.method, settings.contender.controller)
    assert weights.controller.h_star == 1.3 and weights.group_size == cfg.actor_rollout_ref.rollout.n == 8
    assert (cfg.trainer.nnodes, cfg.actor_rollout_ref.rollout.nnodes) == (12, 20)
    # what verl's separate trainer itself asserts
    step = cfg.trainer.v1.separate_async.parameter_sync_step
    assert cfg.data.train_batch_size == step * cfg.actor_rollout_ref.actor.ppo_mini_batch_size == 96
    assert cfg.actor_rollout_ref.rollout.checkpoint_engine.backend != "naive"
    assert cfg.actor_rollout_ref.actor.optim.lr == 1e-6 and cfg.actor_rollout_ref.actor.optim.clip_grad == 1.0
    assert Path(cfg.reward.custom_reward_function.path) == out / "reward.py"


@needs_verl
def test_verls_own_command_reads_what_the_launch_script_hands_over(tmp_path):
    """As far as Hydra goes: it prints the config and stops."""
    out = tmp_path / "a folder"
    assert cli.main(["graduate", "fade", "--engine", "verl", "--model", "qwen2.5-7b", "--out", str(out)]) == 0
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run([out / "launch.sh", "--cfg", "job", "--resolve"], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert f"train_files: {out}/train.jsonl" in done.stdout and "adv_estimator: fade_sim/fade" in done.stdout


@needs_verl
def test_a_key_that_verl_does_not_have_is_refused():
    lines = verl_config.overrides({"actor_rollout_ref": {"rollout": {"name": "vllm", "num_seqs": 8}}})
    with pytest.raises(InputError, match="num_seqs"):
        verl_config.checked([*lines, "algorithm.adv_estimator=fade_sim/dr_grpo"], "x")


@needs_trl
def test_trl_trains_from_the_written_script(problems, base):
    out = problems / "out"
    assert cli.main(["graduate", "paper/methods", "--rule", "fade_1.0", "--engine", "trl", "--model", "qwen2.5-7b",
                     "--out", str(out), *small(base), "--cluster.gpus_per_node", "1", "--parallel.micro_batch", "8",
                     "--train.prompts", "4", "--train.group_size", "4", "--train.steps", "2", "--model.lr", "1e-3",
                     "--parallel.activation_checkpointing", "false", "--parallel.save_every", "1"]) == 0
    done = run(out, "train.py")
    assert done.returncode == 0, done.stderr[-3000:]
    state = json.loads((out / "checkpoints" / "checkpoint-2" / "weights_state.json").read_text())
    assert state["group_size"] == 4 and state["controller"]["step"] == 2 and state["controller"]["h_star"] == 1.0
    log = json.loads((out / "checkpoints" / "checkpoint-2" / "trainer_state.json").read_text())["log_history"]
    assert {"weights/phat", "weights/alpha", "weights/delta"} <= set(log[0])
    assert (out / "model" / "config.json").is_file()


@needs_trl
def test_trl_and_accelerate_read_the_papers_settings(tmp_path):
    from accelerate.commands.config import load_config_from_file
    from trl import GRPOConfig

    from llm.adapters import hazards
    from llm.adapters.weights import Weights

    out = tmp_path / "o"
    assert cli.main(["graduate", "paper/methods", "--rule", "asym_0.5", "--engine", "trl", "--model", "qwen2.5-7b",
                     "--out", str(out)]) == 0
    settings = runpy.run_path(str(out / "train.py"))["SETTINGS"]
    args = GRPOConfig(str(tmp_path / "c"), **{**settings, "bf16": False, "use_cpu": True})
    assert hazards.refuse("TRL", hazards.TRL, vars(args), Weights(out / "rule.toml", 8)) == []
    # an update: 8 GPUs x 2 rollouts x 8 passes = 16 prompts x 8
    assert 8 * args.per_device_train_batch_size * args.gradient_accumulation_steps == 128
    accelerate = load_config_from_file(str(out / "accelerate.yaml"))
    assert accelerate.num_processes == 8 and accelerate.fsdp_config["fsdp_version"] == 2
