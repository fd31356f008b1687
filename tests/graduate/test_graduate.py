"""`fade-llm graduate` through its command: pages, configs, refusals, forecasts."""

import math
import re
import shlex
import tomllib
from pathlib import Path

import numpy as np
import pytest
import small_model

from fade_sim import cli as sim
from fade_sim.advantage.controller import alpha_of
from fade_sim.config import load as load_shared
from llm import cli, config
from llm.graduate import page, verl_config
from llm.graduate.budget import budget
from llm.graduate.command import resolve
from llm.graduate.models import MODELS

PAPER = ["qwen2.5-7b", "cwm-32b"]
RULES = [row["label"] for row in config.read("paper/methods")[0]["compare"]]


@pytest.fixture
def graduate(capsys):
    """graduate(*arguments) -> (exit code, stdout, stderr)."""

    def run(*arguments, config="paper/methods", engine="verl", model="qwen2.5-7b"):
        code = cli.main(["graduate", config, "--engine", engine, "--model", model, *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    return small_model.write(tmp_path_factory.mktemp("base"))


# --- the paper's configs -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in config.shipped() if n.startswith("paper/")])
def test_every_config_of_the_paper_loads(name, capsys):
    assert cli.main(["check", name]) == 0
    cells = config.cells(name)
    assert cells
    for regime, rule in cells:
        settings = config.load(name, {}, rule=rule, regime=regime)
        assert config.resolve(settings.raw, "again").raw == settings.raw  # complete: loading it gives the same run


def test_rules_of_the_paper():
    got = {c.label: (c.method.name, dict(c.method.params), c.controller.h_star, c.controller.ablation)
           for c in load_shared(config.shipped()["paper/methods"]).contenders}
    assert list(got) == RULES and len(got) == 13
    assert got["grpo"][0] == "dr_grpo"
    assert got["power_2"][1]["alpha"] == 2 and got["power_asym_2_2"][1]["delta"] == 2
    assert got["asym_0.5"][1]["delta"] == 0.5
    assert (got["fade_1.0"][2], got["fade_1.3"][2]) == (1.0, 1.3)
    assert {row[3] for row in got.values()} == {"none", "no_alpha", "no_delta", "entropy_only", "log_schedule"}


@pytest.mark.parametrize("model", PAPER)
@pytest.mark.parametrize("regime", ["cluster", "uncorrected", "one node"])
def test_every_rule_graduates_under_every_regime(model, regime, graduate, tmp_path):
    for rule in RULES:
        steps = config.load(f"paper/{model}", regime=regime).train.steps
        extra = ["--controller.horizon", steps] if rule == "log_schedule" else []
        code, out, err = graduate("--rule", rule, "--regime", regime, "--dry-run", *extra, model=model)
        assert code == 0, err
        assert f"# Plan: {rule} on {model}, verl" in out and f"fits in {84.0} GB" in out


def test_the_papers_nodes_and_problems():
    for model, nodes, trainers, tokens in (("qwen2.5-7b", 8, 1, 8192), ("cwm-32b", 32, 12, 30_000)):
        s = config.load(f"paper/{model}", regime="cluster")
        assert (s.cluster.nodes, s.cluster.trainer_nodes, s.cluster.gpus_per_node) == (nodes, trainers, 8)
        assert (s.rollout.max_tokens, s.rollout.temperature, s.reward.name) == (tokens, 1.0, "code")
    for name, reward in (("livecodebench", "code"), ("aime", "math")):
        s = config.load(f"paper/{name}")
        assert s.data.eval_k == (1, 10, 100) and s.data.eval_rollouts >= 100 and s.reward.name == reward


def test_a_schedule_of_another_length_is_refused(graduate):
    code, _, err = graduate("--rule", "log_schedule", "--dry-run")
    assert code == 2
    assert err == ("fade-llm: error: controller.horizon is 1000, but the run has 30000 updates: give "
                   "--controller.horizon 30000\n")


# --- the page ------------------------------------------------------------------------------------------


def test_the_page_says_the_numbers_of_the_budget(graduate, tmp_path):
    out_dir = tmp_path / "run"
    code, out, _ = graduate("--rule", "asym_0.5", "--nodes", 8, "--out", out_dir)
    assert code == 0 and str(out_dir) in out
    text = (out_dir / "plan.md").read_text()
    b = budget(config.load("paper/qwen2.5-7b", regime="cluster"), MODELS["qwen2.5-7b"])
    assert "7,615,616,512 parameters" in text and "8 nodes (1 + 7)" in text
    rows = dict(re.findall(r"^\| ([^|]+?) +\| +([\d.]+) \|$", text, re.M))
    assert float(rows["Adam moments, float32"]) == 7.6  # 8 bytes x 7.6156e9 / 8 GPUs
    assert float(rows["sum"]) == pytest.approx(b.trainer_total / 1e9, abs=0.05)
    assert (rows["training"], rows["sampling"], rows["an update"]) == ("12.6", "8.6", "12.6")
    # 8192 steps of 8.379 ms
    assert "The longest answer takes 69 s, 5.5 updates." in text
    assert "6,701 GPU-hours" in text and "8 updates are expected" in text
    # m_F/m_S = 2 and L = 8: unstable from 1/(8 (2 - 1)); smallest safe delta at kappa .1: .8/1.8
    assert "This rule goes to m_F/m_S = 2: unstable from kappa = 0.125." in text
    assert rows["0.1"] == "0.444" and rows["0.3"] == "0.05357"  # 1/(8 (1/.3 - 1))


@pytest.mark.parametrize(("rule", "low", "high"), [
    ("grpo", 1, 1), ("power_2", 1, 1), ("asym_0.5", 2, 2), ("power_asym_2_2", 0.5, 0.5), ("fade_1.0", 1, 1 / 0.3),
    ("no_delta", 1, 1), ("no_alpha", 1, 1 / 0.3), ("scale_ema", 1, 1), ("fade_unit", 1, 1 / 0.3),
])
def test_failures_over_successes(rule, low, high):
    got = {c.label: c for c in load_shared(config.shipped()["paper/methods"]).contenders}[rule]
    assert page.failure_over_success(got, 8) == pytest.approx((low, high))


def test_failures_over_successes_of_rules_without_a_single_ratio():
    rules = {c.label: c for c in config_of("nsr", "reinforce", "bnpo", "reinforce_pm1")}
    assert page.failure_over_success(rules["nsr"], 8) == (math.inf, math.inf)
    assert page.failure_over_success(rules["reinforce"], 8) == (0, 0)
    # q/p from p = .98 to p = .02
    assert page.failure_over_success(rules["reinforce_pm1"], 8) == pytest.approx((0.02 / 0.98, 49))
    assert page.failure_over_success(rules["bnpo"], 8) == (None, None)


def config_of(*names):
    from fade_sim.config import resolve

    return resolve({"compare": [{"name": name} for name in names]}, {}).contenders


def test_what_differs_is_what_the_config_sets(graduate):
    _, out, _ = graduate("--dry-run", config="tiny")
    table = out.partition("## What differs from tiny")[2].partition("##")[0]
    rows = {key: (there, here) for key, there, here in re.findall(r"^\| (\S+) +\| +(\S+) \| +(\S+) \|$", table, re.M)}
    rows.pop("setting")
    assert rows == {"train.steps": ("300", "30000"), "train.prompts": ("32", "16"), "train.record": ("50", "100"),
                    "model.lr": ("0.1", "1e-06"), "data.task": ("arithmetic", "file"),
                    "rollout.max_tokens": ("8", "8192")}
    _, out, _ = graduate("--dry-run", "--rule", "grpo")
    assert "Nothing that it sets." in out


def test_kappa_shrinks_with_the_mass_at_the_largest_alpha(graduate):
    """alpha = 3, groups of 8, uniform solve rates: sum_j S2(3, j) 8_(j+1) B(2, j+1) / 8^4 over 7/8 / 6.

    S2 = 1, 3, 1; falling factorials 56, 336, 1680; integrals of p q^j: 1/6, 1/12, 1/20: .043294 over .145833 is .297.
    """
    _, out, _ = graduate("--rule", "fade_1.0", "--dry-run")
    assert "at alpha = 1. At alpha = 3 the mass on successes, and so about kappa,\n   is 0.30 of that" in out
    _, out, _ = graduate("--rule", "no_alpha", "--dry-run")
    assert "at alpha = 1.\n" in out
    _, out, _ = graduate("--rule", "asym_0.5", "--dry-run")
    assert "--data.eval_prompts 1\n\n   The recorded Lambda is this rule's own." in out


def test_rollouts_of_the_probe_fit():
    for m in MODELS.values():
        layer = 4 * m.hidden + 2 * (m.heads + m.kv_heads) * m.head_dim + 3 * (m.hidden + m.intermediate)
        n = page.probe_rollouts(m, 8)
        assert n % 16 == 0 and 4 * m.layers * layer * n <= 2**32
    assert page.probe_rollouts(MODELS["qwen2.5-7b"], 8) == 256


def test_the_commands_of_the_page_run(graduate, base, tmp_path, monkeypatch, capsys):
    """On a model of 16 hidden units in place of the 7B one."""
    monkeypatch.chdir(tmp_path)
    problems = "\n".join(f'{{"prompt": "{i}+1=", "answer": "{i + 1}"}}' for i in range(8))
    for name, text in (("a", problems), ("b", problems.replace("+1=", "+1 ="))):
        (tmp_path / f"{name}.jsonl").write_text(text)
    changes = ["--model.path", base, "--data.train", "a.jsonl", "--data.test", "b.jsonl", "--reward.name", "integer",
               "--rollout.sampler", "own", "--rollout.max_tokens", "4", "--model.dtype", "float32"]
    code, _, err = graduate("--rule", "fade_1.0", "--out", "run", *changes)
    assert code == 0, err
    text = (tmp_path / "run" / "plan.md").read_text()
    steps = text.partition("## Before the long run")[2]
    commands = re.sub(r"\n +--", " --", steps)
    commands = re.findall(r"^ {7}(fade-\w+ .+)$", commands, re.M)
    assert [c.split()[:2] for c in commands] == [["fade-llm", "rollout"], ["fade-sim", "replay"], ["fade-sim", "run"],
                                                 ["fade-llm", "train"]]
    monkeypatch.chdir(tmp_path / "run")
    for name in "ab":
        (tmp_path / "run" / f"{name}.jsonl").write_text((tmp_path / f"{name}.jsonl").read_text())
    for command in commands:
        program, *arguments = shlex.split(command)
        if arguments[0] == "rollout":
            arguments += ["--group-size", "4", "--data.eval_prompts", "4"]
        if arguments[0] == "replay":
            arguments[-1] = "4"
        if arguments[0] in ("run", "train"):
            arguments += ["--dry-run"]
        assert {"fade-llm": cli.main, "fade-sim": sim.main}[program](arguments) == 0, capsys.readouterr().err


# --- forecast ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("forecast") / "run"
    assert sim.main(["run", "fade", "--solve-rates", "smollm2_135m_arithmetic", "--seeds", "1", "--train.steps", "40",
                     "--train.record", "10", "--out", str(folder)]) == 0
    return folder


def test_the_forecast_is_the_run(simulated, graduate):
    code, out, err = graduate("--rule", "fade_1.0", "--forecast", simulated, "--dry-run")
    assert code == 0, err
    rows = [[float(x) if x.strip() != "-" else math.nan for x in row.split("|")[2:-1]] for row in
            re.findall(r"^\| \d+% .*$", out, re.M)]
    assert [row[0] for row in rows] == [0, 10, 20, 30, 40]
    with np.load(simulated / "arrays.npz") as arrays:
        for i, field in enumerate(("phat", "Hhat", "alpha", "delta", "m_S", "m_F"), start=1):
            recorded = arrays[f"run/{field}"][0, 0].tolist()
            assert [row[i] for row in rows] == pytest.approx(recorded, abs=6e-4, nan_ok=True)
    for row in rows:  # one seed: alpha is that of phat
        assert row[3] == pytest.approx(alpha_of(row[1], 3.0), abs=5e-3)
    assert "from solve rates of smollm2_135m_arithmetic" in out and "Its groups have 16 rollouts, this run's 8" in out


@pytest.mark.parametrize(("forecast", "rule", "said"), [
    ("nowhere", "grpo", "--forecast nowhere: is no run folder of fade-sim run"),
    (None, "power_2", "has no rules like 'power_2'"),
])
def test_a_forecast_that_is_none(simulated, graduate, forecast, rule, said):
    code, _, err = graduate("--rule", rule, "--forecast", forecast or simulated, "--dry-run")
    assert code == 2 and said in err and err.count("\n") == 1


# --- the command ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "kwargs", "said"), [
    (["--rule", "grpo"], {"model": "qwen-7b"}, "unknown --model 'qwen-7b'; did you mean 'qwen2.5-7b'?"),
    (["--rule", "grpo"], {"engine": "verll"}, "unknown --engine 'verll'; did you mean 'verl'?"),
    (["--rule", "fade"], {}, "no rule 'fade'; did you mean 'fade_1.3'?"),
    ([], {}, "has 13 rules, choose one with --rule: grpo,"),
    ([], {"config": "paper/method"}, "no such config file; did you mean 'paper/methods'?"),
    (["--rule", "grpo", "--regime", "clusters"], {}, "no regime 'clusters'; did you mean 'cluster'?"),
    (["--rule", "grpo", "--cluster.gpus", "4"], {}, "unknown key 'gpus'; did you mean 'gpu'?"),
    (["--rule", "grpo", "--cluster.gpu", "h300"], {}, "no such choice; did you mean 'h200'?"),
    (["--rule", "grpo", "--nodes", "0"], {}, "--nodes"),
    (["--base", "paper/cwm-32"], {"config": "fade"}, "no such config file; did you mean 'paper/cwm-32b'?"),
    (["--rule", "grpo", "--nodes", "8"], {"engine": "trl"}, "trl: training and sampling take turns"),
    (["--rule", "grpo"], {"engine": "trl", "model": "cwm-32b"}, "trl: cluster.sequence_parallel is 8"),
    (["--rule", "fade_1.0", "--train.correction", "clip"], {}, "which fade_1.0 reads; give --train.correction ratio"),
    (["--rule", "grpo", "--train.epochs", "2"], {}, "its PPO clip acts between updates"),
    (["--rule", "grpo", "--train.dynamic_sampling", "true"], {}, "phat drifts to 1/2"),
])
def test_refusals_are_one_line(arguments, kwargs, said, graduate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = graduate(*arguments, **kwargs)
    assert code == 2 and said in err and err.count("\n") == 1
    assert not list(tmp_path.iterdir())  # nothing half-written


@pytest.mark.parametrize(("text", "said"), [
    ("[model]\nlrr = 1\n", "[model]: unknown key 'lrr'; did you mean 'lr'?"),
    ("model = 3\n", "expected a table [model]"),
    ("[cluster]\nnodes = 0\n", "cluster.nodes is 0"),
    ("[methods]\nname = 'fade'\n", "unknown section 'methods'"),
])
def test_all_of_a_config_is_read_though_its_rule_alone_is_taken(text, said, graduate, tmp_path):
    (tmp_path / "mine.toml").write_text(text)
    code, _, err = graduate("--dry-run", config=str(tmp_path / "mine.toml"))
    assert code == 2 and said in err and err.count("\n") == 1


def test_a_base_with_a_regime_that_is_none(graduate, tmp_path):
    for text in ("regime = 3\n", "[[regime]]\nname = 'x'\ncluster = 3\n", "[[regime]]\nname = 'x'\nclusters = {}\n"):
        (tmp_path / "base.toml").write_text(text)
        code, _, err = graduate("--rule", "grpo", "--dry-run", "--base", tmp_path / "base.toml")
        assert code == 2 and err.count("\n") == 1 and ("regime" in err or "cluster" in err)


def test_the_table_of_the_readme():
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for name in PAPER:
        s = resolve("dr_grpo", f"paper/{name}", None, {}, regime="cluster")[0]
        b = budget(s, MODELS[name])
        row = (f"{b.parameters:,} | {int(b.trainer_total / 1e9)} of 84 GB | {b.train_seconds:.3g}, "
               f"{b.sample_seconds:.2g} | {b.age:g} updates | {b.gpu_hours:,.0f} ({s.train.steps:,} updates)")
        assert row in readme


def test_nothing_is_overwritten(graduate, tmp_path):
    (tmp_path / "there").mkdir()
    code, _, err = graduate("--rule", "grpo", "--out", tmp_path / "there")
    assert code == 2 and "already exists" in err and not list((tmp_path / "there").iterdir())


def test_other_numbers_of_nodes_keep_the_share_of_trainers(graduate):
    for nodes, model, shown in ((16, "cwm-32b", "16 nodes (6 + 10)"), (4, "qwen2.5-7b", "4 nodes (1 + 3)"),
                                (1, "qwen2.5-7b", "verl, 1 node\n"), (2, "cwm-32b", "2 nodes (1 + 1)")):
        code, out, err = graduate("--rule", "grpo", "--nodes", nodes, "--dry-run", model=model)
        assert code == 0 and shown in out, (err, shown)


def test_a_base_of_ones_own(graduate, tmp_path):
    text = config.shipped()["paper/qwen2.5-7b"].read_text()
    (tmp_path / "mine.toml").write_text(text.replace("lr = 1e-6", "lr = 2e-6"))
    code, out, _ = graduate("--rule", "grpo", "--base", tmp_path / "mine.toml", "--dry-run")
    assert code == 0 and "optim.lr=2e-06" in out
    code, out, _ = graduate("--dry-run", "--base", tmp_path / "mine.toml", config=str(tmp_path / "mine.toml"))
    assert code == 0 and "optim.lr=2e-06" in out


def test_a_folder_has_what_it_needs(graduate, tmp_path):
    code, _, err = graduate("--rule", "fade_1.0", "--out", tmp_path / "run")
    assert code == 0, err
    folder = tmp_path / "run"
    assert {p.name for p in folder.iterdir()} == {"plan.md", "config.toml", "overrides.txt", "reward.py", "prepare.py",
                                                  "launch.sh", "cluster.slurm"}
    settings = config.load(folder / "config.toml")
    assert settings.contender.label == "fade_1.0" and settings.cluster.nodes == 8
    assert tomllib.loads((folder / "config.toml").read_text())["compare"][0]["controller"]["h_star"] == 1.0
    assert (folder / "launch.sh").stat().st_mode & 0o111 and Path(folder / "cluster.slurm").stat().st_mode & 0o111


def test_overrides_in_the_grammar_of_hydra():
    table = {"a": {"b": True, "c": None, "d": 1e-6, "e": [1, "x"], "f": "it's here", "g": "${oc.env:RUN_FOLDER}/x"},
             "h": {"+i": {"j": 0.5}}}
    assert verl_config.overrides(table) == [
        "a.b=true", "a.c=null", "a.d=1e-06", "a.e=[1,x]", "a.f='it\\'s here'", "a.g=${oc.env:RUN_FOLDER}/x",
        "+h.i.j=0.5"]
