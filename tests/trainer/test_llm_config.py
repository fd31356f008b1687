"""One file for both packages; every mistake is one line that names the key and where it belongs."""

import subprocess
import sys
import tomllib

import msgspec
import pytest

from fade_sim import config as shared
from llm import cli, config
from llm.settings import SECTIONS

BOTH = """
[method]
name = "fade"
[train]
steps = 7
prompts = 4
staleness = 3
correction = "ratio"
[controller]
h_star = 0.5
[model]
path = "somewhere"
lr = 0.5
[loss]
denominator = "token_mean"
"""


def write(tmp_path, text, name="mine.toml"):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_the_same_file_serves_the_simulator_and_the_trainer(tmp_path):
    """Rule, controller and dynamics are read alike; the trainer's sections are the only difference."""
    path = write(tmp_path, BOTH)
    toy, model = shared.load(path), config.load(path)
    assert model.contender == toy.contenders[0] and model.train == toy.regimes[0].train
    assert model.model.lr == 0.5 and model.loss.denominator == "token_mean"
    assert any("[model], [loss]" in note and "fade-llm" in note for note in toy.notes) and model.notes == ()


def test_a_resolved_config_loads_to_the_same_run(tmp_path):
    import tomli_w

    first = config.load(write(tmp_path, BOTH), {"loss.ratio_cap": 5.0, "data.eval_k": [1, 2]})
    again = config.load(write(tmp_path, tomli_w.dumps(first.raw), "again.toml"))
    assert msgspec.structs.asdict(first) | {"raw": 0} == msgspec.structs.asdict(again) | {"raw": 0}
    assert again.raw == first.raw


@pytest.mark.parametrize(("text", "says"), [
    ("[loss]\ndenominatr = 'constant'", "[loss]: unknown key 'denominatr'; did you mean 'denominator'?"),
    ("[loss]\ndenominator = 'mean'", "no such choice; did you mean 'token_mean'?"),
    ("[model]\nlr = -1", "model.lr is -1"),
    ("[modle]\nlr = 1", "unknown section 'modle'; did you mean 'model'?"),
    ("denominator = 'constant'", "it belongs in [loss]"),
    ("model = 3", "expected a table [model]"),
    ("[train]\ndenominator = 'constant'", "[train]: unknown key 'denominator'; it belongs in [loss]"),
    ("[train]\nmode = 'expected'", "only the simulator can do"),
    ("[train]\nmatch = 'mass'", "needs the exact policy"),
    ("[loss]\nkl_coef = 0.1", "loss.kl is 'none'"),
    ("[loss]\nclip_high = 0.3", "no effect: set train.correction = 'clip'"),
    ("[loss]\nratio = 'sequence'", "no effect: train.correction is 'none'"),
    ("[data]\neval_k = [64]", "pass@64"),
    ("[data]\ntask = 'file'", "needs data.train and data.test"),
    ("[model]\nlr = 0.0", "nothing would be trained"),
    ("[rollout]\ntemperature = 0.0", "rollout.temperature is 0.0"),
])
def test_mistakes_are_named(tmp_path, text, says):
    with pytest.raises(ValueError) as raised:
        config.load(write(tmp_path, text))
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(("key", "says"), [
    ("train.lr", "--model.lr"), ("train.seeds", "--train.seed"), ("train.mode", "the simulator's"),
    ("world.arms", "unknown override"), ("los.kl", "did you mean 'loss'"), ("loss.kll", "did you mean 'kl'"),
])
def test_overrides_that_do_nothing_here_are_refused(key, says):
    with pytest.raises(ValueError, match=says):
        config.load("tiny", {key: 1})


def test_what_only_the_simulator_reads_is_said(tmp_path):
    settings = config.load("default", rule="fade", regime="on-policy")
    (note,) = settings.notes
    assert "train.lr" in note and "train.lr_table" in note and "model.lr" in note
    assert settings.contender.method.name == "fade" and settings.train.staleness == 0
    with pytest.raises(ValueError, match="choose one with --regime: on-policy, stale by 30 updates"):
        config.load("default", rule="fade")
    with pytest.raises(ValueError, match="did you mean 'fade'"):
        config.load("default", rule="fad", regime="on-policy")


@pytest.mark.parametrize("name", config.shipped())
def test_shipped_configs_load_in_both_packages(name):
    cells = config.cells(name)
    assert {config.load(name, rule=rule, regime=regime).name for regime, rule in cells} == {name.replace("/", "-")}
    shared.load(str(config.shipped()[name]))
    assert config.check_config(name).count(" uniform groups: ") == len({rule for _, rule in cells})


REGIMES = """
[model]
lr = 0.5
weight_decay = 0.25
[[regime]]
name = "fresh"
[[regime]]
name = "stale"
train = { staleness = 3 }
model = { lr = 0.125 }
"""


def test_a_regime_has_sections_of_its_own(tmp_path):
    """lr .5 from [model], .125 from the regime's, 2 from an override, which wins; the rest of [model] stays."""
    path = write(tmp_path, REGIMES)
    shared.load(path)
    for regime, lr in (("fresh", 0.5), ("stale", 0.125)):
        model = config.load(path, regime=regime).model
        assert (model.lr, model.weight_decay) == (lr, 0.25)
        assert config.load(path, {"model.lr": 2}, regime=regime).model.lr == 2.0
    raw = config.load(path, regime="stale").raw
    assert raw["model"]["lr"] == 0.125 and "model" not in raw["regime"][0]
    with pytest.raises(ValueError, match="two regimes equal"):
        config.load(path, {"train.staleness": 1})


@pytest.mark.parametrize(("row", "says"), [
    ("model = { lrr = 1 }", "unknown key 'lrr'"), ("model = 3", "model is 3, expected a table"),
    ("modle = { lr = 1 }", "unknown key 'modle'"), ("model = { lr = -1 }", "model.lr is -1"),
])
def test_mistakes_in_a_regime_are_named(tmp_path, row, says):
    with pytest.raises(ValueError, match=says):
        config.load(write(tmp_path, f"[[regime]]\nname = 'r'\n{row}\n"))


def test_every_setting_has_a_documented_default():
    """The resolved config writes every key but those that default to absent."""
    raw = config.load("tiny").raw
    for section, kind in SECTIONS.items():
        absent = {f.name for f in msgspec.structs.fields(kind) if f.default is None}
        assert set(raw[section]) == set(kind.__struct_fields__) - absent


# --- the commands --------------------------------------------------------------------------------------


def test_help_is_immediate_and_loads_nothing_heavy():
    code = ("import sys\nfrom llm import cli\ntry:\n    cli.main(['train', '--help'])\nexcept SystemExit:\n    pass\n"
            "print([m for m in ('numpy', 'torch', 'transformers', 'rich', 'msgspec') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip().splitlines()[-1] == "[]" and "--resume" in done.stdout


@pytest.mark.parametrize(("argv", "says"), [
    (["trian"], "did you mean 'train'"), (["train", "--resum", "x"], "--resume"),
    (["train"], "fade-llm pretrain"), (["train", "nowhere"], "no such config file"),
    (["train", "--model.path", "/nonexistent"], "no model folder"), (["eval", "/nonexistent"], "no model folder"),
    (["spectrum", "/nonexistent", "/nonexistent"], "no .safetensors file"),
    (["train", "--resume", "x", "--train.steps", "3"], "give nothing beside it"),
    (["train", "tiny", "extra"], "unknown argument 'extra'"),
])
def test_bad_commands_end_in_one_line(argv, says, capsys):
    assert cli.main(argv) == 2
    err = capsys.readouterr().err.strip()
    assert says in err and err.startswith("fade-llm: error:") and "\n" not in err


def test_dry_run_counts(base, capsys):
    """16 x 17 embeddings and head, one block of 4 16 x 16 and 3 16 x 32, three norms of 16: 3152 parameters."""
    total = 2 * 16 * 17 + 4 * 16 * 16 + 3 * 16 * 32 + 3 * 16
    assert cli.main(["train", "--model.path", base, "--dry-run", "--train.staleness", "2", "--ranks", "4"]) == 0
    out = capsys.readouterr().out
    assert f"parameters: {total:,} ({total:,} trained)" in out and "4 processes" in out
    assert "32 groups, 256 rollouts (64 per process), at most 2,048 answer tokens" in out
    assert "waiting rollouts: 512" in out
    parsed = tomllib.loads(out.split("parameters:")[0])
    assert parsed["model"]["path"] and parsed["regime"][0]["train"]["staleness"] == 2


def test_eval_reads_a_model_folder(base, capsys, tmp_path):
    import json

    argv = ["eval", base, "--json", str(tmp_path / "e.json"), "--data.eval_prompts", "3", "--data.eval_rollouts", "4",
            "--data.eval_k", "[1, 2]"]
    assert cli.main(argv) == 0
    assert "pass@1" in capsys.readouterr().out
    got = json.loads((tmp_path / "e.json").read_text())
    assert set(got) == {"train", "held_out", "held_out_skill"} and got["train"]["rollouts"] == 4
    assert got["held_out"]["pass@2"]["low"] <= got["held_out"]["pass@2"]["mean"] <= got["held_out"]["pass@2"]["high"]
