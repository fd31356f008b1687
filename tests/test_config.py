"""Configs: every key known, one-line errors, resolved text loads to the same run."""

import tomllib

import pytest
import tomli_w

from fade_sim import config
from fade_sim.advantage import RULES
from fade_sim.errors import InputError


def labels(cfg):
    return [c.label for c in cfg.contenders]


@pytest.mark.parametrize("name", config.shipped())
def test_every_shipped_config_loads_and_its_resolved_text_is_the_same_run(name):
    cfg = config.load(name)
    again = config.resolve(tomllib.loads(tomli_w.dumps(cfg.raw)), {}, "config")
    assert (again.contenders, again.regimes) == (cfg.contenders, cfg.regimes)


def test_every_rule_has_a_config_of_its_name():
    assert set(RULES) <= set(config.shipped())
    for name in RULES:
        assert config.load(name).contenders[0].method.name == name


def test_main_job_is_what_the_readme_says():
    cfg = config.load()
    assert labels(cfg) == ["dr_grpo", "asym_delta(0.3)", "asym_delta(0.5)", "asym_delta(2)", "power(2)", "fade",
                           "scale_ema"]
    first, second = (r.train for r in cfg.regimes)
    assert (first.lr, first.staleness, second.lr, second.staleness) == (10, 0, 40, 30)
    assert first.seeds == second.seeds == 10 and second.correction == "none"


# --- overrides ----------------------------------------------------------------------------------------


def test_a_command_line_value_wins_over_file_and_regime():
    cfg = config.load(None, {"train.lr": 5})
    assert [r.train.lr for r in cfg.regimes] == [5.0, 5.0]
    assert [r.train.staleness for r in cfg.regimes] == [0, 30]


def test_method_override_reaches_the_rules_that_have_it_and_merges_equals():
    cfg = config.load(None, {"method.delta": 0.7})
    assert labels(cfg) == ["dr_grpo", "asym_delta(0.7)", "power(2)", "fade", "scale_ema"]


def test_asking_for_one_rule_means_that_rule_alone():
    assert labels(config.load(None, {"method.name": "power", "method.alpha": 3})) == ["power(3)"]


def test_controller_override_and_per_row_ablation():
    raw = {"compare": [{"name": "fade"}, {"name": "fade", "controller": {"ablation": "no_delta"}}]}
    cfg = config.resolve(raw, {"controller.rate": 0.1}, "x")
    assert labels(cfg) == ["fade", "fade[no_delta]"]
    assert [(c.controller.rate, c.controller.ablation) for c in cfg.contenders] == [(0.1, "none"), (0.1, "no_delta")]


@pytest.mark.parametrize("text, value", [
    ("5", 5), ("5.5", 5.5), (".3", 0.3), ("-.3", -0.3), ("true", True), ("inf", float("inf")), ("adam", "adam"),
    ("1\ny=2", "1\ny=2"), ("1 # hi", "1 # hi"), ("[[0, 1], [1, 0]]", [[0, 1], [1, 0]]),
    ("runs/x.jsonl", "runs/x.jsonl")])
def test_parse_value(text, value):
    assert config.parse_value(text) == value and type(config.parse_value(text)) is type(value)


def test_world_preset_is_overridden_by_an_explicit_key():
    world = config.load(None, {"world.name": "hard", "world.decoy": 0.2}).regimes[0].world
    assert (world.solve_mean, world.decoy, world.decoy_hard) == (-2.5, 0.2, 0.6)


# --- CFG-01, CFG-02, CFG-03: nothing unknown, misplaced or without effect passes --------------------------


@pytest.mark.parametrize("raw, expected", [
    # CFG-01: a misspelt key is refused with the nearest name, at every level
    ({"controller": {"alpha_mx": 5}}, "unknown key 'alpha_mx'; did you mean 'alpha_max'?"),
    ({"train": {"stalness": 3}}, "unknown key 'stalness'; did you mean 'staleness'?"),
    ({"world": {"arm": 3}}, "unknown key 'arm'; did you mean 'arms'?"),
    ({"methd": {}}, "unknown section 'methd'; did you mean 'method'?"),
    ({"method": {"name": "power", "alpa": 2}}, "unknown key 'alpa'; did you mean 'alpha'?"),
    ({"compare": [{"name": "power", "alpa": 2}]}, "unknown parameter 'alpa'; did you mean 'alpha'?"),
    ({"regime": [{"nme": "x"}]}, "unknown key 'nme'; did you mean 'name'?"),
    # CFG-02: a valid key at the wrong level names its home
    ({"alpha_max": "abc"}, "unknown section 'alpha_max'; it belongs in [controller]"),
    ({"staleness": 3}, "unknown section 'staleness'; it belongs in [train]"),
    # CFG-03: a value that no compared rule reads is refused
    ({"method": {"name": "dr_grpo", "delta": 0.3}}, "dr_grpo: unknown parameter 'delta'; it takes none"),
    ({"method": {"delta": 0.3}, "compare": [{"name": "dr_grpo"}]}, "method.delta is a parameter of no compared rule"),
    # types and ranges
    ({"train": {"steps": 2.5}}, "train.steps is 2.5, expected int"),
    ({"train": {"steps": True}}, "train.steps is True, expected int"),
    ({"world": {"name": ["hard"]}}, "world.name is ['hard']"),
    ({"train": {"lr": float("nan")}}, "train.lr is nan, expected a finite number"),
    ({"train": {"lr": -1}}, "train.lr is -1, expected float >= 0.0"),
    ({"train": {"optimizer": "adm"}}, "train.optimizer is 'adm', no such choice; did you mean 'adam'?"),
    ({"controller": {"rate": 0}}, "controller.rate is 0, expected in (0, 1]"),
    ({"controller": {"rate": "fast"}}, "controller.rate is 'fast', expected a number"),
    ({"controller": {"relative": 1}}, "controller.relative is 1, expected true or false"),
    ({"method": {"name": "asym_delta", "delta": 0}}, "delta is 0, expected a number above 0"),
    ({"method": {"name": "power", "alpha": 0.5}}, "alpha is 0.5, expected a number at least 1"),
    ({"method": {"name": "power_unbiased", "alpha": 2.5}}, "alpha is 2.5, expected an integer at least 1"),
    ({"method": {"name": "fad"}}, "unknown method 'fad'; did you mean 'fade'?"),
    ({"method": 3}, "method is 3, expected a table [method]"),
    ({"compare": {"name": "fade"}}, "expected [[compare]]"),
    ({"name": "../x"}, "name is '../x', expected a plain word"),
    # keys that only make sense together
    ({"train": {"group_size": 1}}, "train.group_size is 1, but dr_grpo needs at least 2 rollouts"),
    ({"train": {"group_size": 3}, "method": {"name": "power_unbiased", "alpha": 3}}, "at most group_size - 1"),
    ({"train": {"lr": 0, "lr_table": 0}}, "both 0, so nothing would be trained"),
    ({"world": {"arms": 8}}, "world.arms is 8, expected more than"),
    ({"world": {"skills": 3}}, "skills_per_prompt is 4, expected at most 3"),
    ({"method": {"name": "table", "weights": [[0, 0], [1, 0]]}}, "2 rows are for group size 1"),
    ({"compare": [{"name": "power", "label": "a"}, {"name": "fade", "label": "a"}]}, "label 'a' is already taken"),
])
def test_refused_in_one_line(raw, expected):
    with pytest.raises(InputError) as caught:
        config.resolve(raw, {}, "my.toml")
    message = str(caught.value)
    assert expected in message and message.startswith("my.toml") and "\n" not in message


@pytest.mark.parametrize("overrides, expected", [
    ({"train.lrr": 1}, "unknown key 'lrr'; did you mean 'lr'?"),
    ({"trian.lr": 1}, "unknown override --trian.lr; did you mean 'train.*'?"),
    ({"method.b": 0.2}, "method.b is a parameter of no compared rule"),
    ({"train.clip": 0.1}, "--train.clip has no effect: set --train.correction clip"),
    ({"train.mode": "expected", "train.prompts": 4}, "--train.prompts has no effect: mode = expected"),
    ({"method.name": "rloo", "controller.rate": 0.1}, "no effect: no compared rule is adaptive"),
    ({"world.solve_rates": "x", "world.solve_mean": 1.0}, "no effect: the solve rates come from a file"),
])
def test_override_refused_in_one_line(overrides, expected):
    with pytest.raises(InputError) as caught:
        config.load(None, overrides)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content, expected", [
    (b"[train\n", "not valid TOML"), (b"\xff\xfe", "cannot be read"), (b"x = 1\nx = 2\n", "not valid TOML")])
def test_broken_files(tmp_path, content, expected):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=expected):
        config.load(path)


def test_changing_each_key_changes_the_run(tmp_path):
    """CFG-03: no key of [train], [world] or [controller] is read and then ignored."""
    from fade_sim.sim import simulate

    base = {"train": {"steps": 12, "seeds": 1, "record": 12, "prompts": 4, "group_size": 4, "staleness": 2,
                      "lr": 20.0, "correction": "clip", "clip": 0.05},
            "world": {"train_prompts": 12, "test_prompts": 6}, "method": {"name": "fade"},
            "controller": {"rate": 0.3, "h_star": 3.2}}
    changes = {
        "train": {"mode": "expected", "steps": 11, "prompts": 5, "group_size": 5, "lr": 21.0, "lr_table": 0.5,
                  "optimizer": "adam", "staleness": 3, "correction": "ratio", "clip": 0.3, "epochs": 2, "seed": 1,
                  "dynamic_sampling": True,
                  "match": "slope", "precision": "float32"},
        "world": {"name": "hard", "train_prompts": 13, "test_prompts": 7, "arms": 33, "hidden": 15, "token": 15,
                  "skills": 11, "skills_per_prompt": 3, "arms_per_skill": 3, "common": 0.6, "cluster": 0.6,
                  "skill_token": 0.5, "common_token": 0.2, "decoy": 0.3, "decoy_hard": 0.5, "bias_sd": 0.5,
                  "solve_mean": -1.0, "solve_sd": 1.0, "solve_min": 0.1, "test_solve_mean": 0.0,
                  "split_skills": True, "policy": "linear", "false_negative": 0.1, "false_positive": 0.1},
        "controller": {"rate": 0.2, "h_star": 3.3, "relative": True, "delta_min": 0.9, "alpha_max": 1.2,
                       "ablation": "no_alpha", "ema_literal": True},
    }

    def outcome(raw):
        cfg = config.resolve(raw, {}, "x")
        trace = simulate(cfg.regimes[0], cfg.contenders)
        return tuple(float(trace.last(n)[0, 0]) for n in ("train_entropy", "test_pass@1", "test_modes"))

    start = outcome(base)
    ignored = []
    for section, keys in changes.items():
        for key, value in keys.items():
            if outcome({**base, section: {**base[section], key: value}}) == start:
                ignored.append(f"{section}.{key}")
    assert ignored == []
    # and the list above is complete, but for keys that only choose what is run or recorded
    assert set(config.Train.__struct_fields__) - set(changes["train"]) == {"seeds", "record", "max_rounds"}
    assert set(config.World.__struct_fields__) - set(changes["world"]) == {"solve_rates"}
    assert set(config._CONTROLLER_KEYS) - set(changes["controller"]) == {"horizon"}


def test_the_two_trainers_read_the_same_keys():
    """CFG-04: a key that the sampled loop reads and the expected one ignores would be a silent loss."""
    from fade_sim.sim import simulate

    base = {"mode": "expected", "steps": 6, "seeds": 1, "record": 6, "group_size": 4, "staleness": 2, "lr": 20.0,
            "correction": "clip", "clip": 0.01}
    changes = {"steps": 5, "group_size": 5, "lr": 21.0, "lr_table": 0.5, "optimizer": "adam", "staleness": 3,
               "correction": "ratio", "clip": 0.3, "epochs": 2, "seed": 1, "match": "slope"}

    def outcome(train):
        cfg = config.resolve({"train": train, "world": {"train_prompts": 12, "test_prompts": 6},
                              "method": {"name": "asym_delta", "delta": 0.5}}, {}, "x")
        return float(simulate(cfg.regimes[0], cfg.contenders).last("test_entropy")[0, 0])

    start = outcome(base)
    assert [key for key, value in changes.items() if outcome({**base, key: value}) == start] == []
    # what is left: what is run or recorded, and three keys that are refused beside mode = expected
    left = set(config.Train.__struct_fields__) - set(changes)
    assert left == {"mode", "seeds", "record", "max_rounds", "prompts", "dynamic_sampling", "precision"}
    with pytest.raises(InputError, match="no exact expectation"):
        config.resolve({"train": {"mode": "expected", "dynamic_sampling": True}}, {}, "x")
    with pytest.raises(InputError, match=r"world\.hidden is 2, expected at least 3"):
        config.resolve({"world": {"policy": "linear", "hidden": 2}}, {}, "x")
    with pytest.raises(InputError, match="float32 is for sampled"):
        config.resolve({"train": {"mode": "expected", "precision": "float32"}}, {}, "x")
