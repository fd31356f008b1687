"""Configs as the trainer reads them: rule, controller and dynamics as the simulator does, its own sections beside."""

import math
import os
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from fade_sim import config
from fade_sim.advantage import controller, describe
from fade_sim.errors import InputError, nearest
from fade_sim.settings import Train
from llm.settings import SECTIONS, Cluster, Data, Loss, Model, Parallel, Pretrain, Probe, Reward, Rollout

# Keys of [train] that only the simulator has. `seeds`, `lr` and `lr_table` have no counterpart here.
SIMULATOR_KEYS = ("mode", "lr", "lr_table", "match", "seeds")

_REWARD_KEYS = {  # keys of [reward] that one verifier alone reads
    "code": ("program", "cpu_seconds", "wall_seconds", "memory_mb", "processes", "slots", "unsafe_local"),
    "math": ("answer", "tolerance", "symbolic", "symbolic_seconds"),
    "gym": ("threshold", "scorer_error", "scorer_seconds"),
}


class Settings(msgspec.Struct, frozen=True):
    """A resolved run: one rule under one regime."""

    name: str
    contender: config.Contender
    regime: str
    train: Train
    model: Model
    data: Data
    reward: Reward
    rollout: Rollout
    loss: Loss
    parallel: Parallel
    probe: Probe
    pretrain: Pretrain
    cluster: Cluster
    notes: tuple[str, ...]
    raw: dict[str, Any]  # loading it again gives this same run


def load(source: str | Path, overrides: dict[str, Any] | None = None, *, rule: str | None = None,
         regime: str | None = None, alone: bool = False) -> Settings:
    """Read, check and resolve a config for one run.

    source: a TOML file, a config of this package (`shipped`) or of the simulator. rule, regime: which
    of several [[compare]] and [[regime]] rows. Raises InputError, one line, on anything unknown or out
    of range, and on settings that only the simulator can honour.
    """
    raw, where = read(source)
    return resolve(raw, where, overrides, rule=rule, regime=regime, alone=alone)


def resolve(raw: dict[str, Any], where: str, overrides: dict[str, Any] | None = None, *, rule: str | None = None,
            regime: str | None = None, alone: bool = False) -> Settings:
    """`load`, of tables that have been read; `where` names them in messages."""
    _refuse_misplaced(raw, where)
    given = {key: value for key, value in (overrides or {}).items() if key.partition(".")[0] in SECTIONS}
    overrides = {key: value for key, value in (overrides or {}).items() if key not in given}
    for dotted in overrides:
        _refuse_foreign(dotted)
    shared = {key: value for key, value in raw.items() if key not in SECTIONS}
    if alone:  # the rule does not matter: eval, pretrain
        several = isinstance(shared.get("regime"), list) and len(shared["regime"]) > 1
        shared = {key: value for key, value in shared.items() if key != "compare" and not (several and key == "regime")}
    cfg = config.resolve(shared, overrides, where)
    contender = _pick(cfg.contenders, rule, "label", "rule", where)
    chosen = _pick(cfg.regimes, regime, "name", "regime", where)
    row = _regime_row(shared.get("regime", []), cfg.regimes, chosen, where)
    sections = {name: _section(raw.get(name, {}), row.get(name, {}), given, name, where) for name in SECTIONS}
    _check(chosen.train, sections, contender, where)
    notes = tuple(n for n in cfg.notes) + _notes(raw, chosen)
    if sections["cluster"] != Cluster():
        notes += ("[cluster]: read by fade-llm graduate, not by the trainer",)
    row = next(r for r in cfg.raw["compare"] if r["label"] == contender.label)
    train = {k: v for k, v in msgspec.to_builtins(chosen.train).items() if k not in SIMULATOR_KEYS}
    out = {"name": cfg.name, "compare": [row], "regime": [{"name": chosen.name, "train": train}]}
    for name, section in sections.items():
        out[name] = {k: v for k, v in msgspec.to_builtins(section).items() if v is not None}
    return Settings(cfg.name, contender, chosen.name, chosen.train, *sections.values(), notes=notes, raw=out)


def cells(source: str | Path, overrides: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """(regime, rule label) of every combination that a config holds; the settings of each come from `load`."""
    raw, where = read(source)
    shared = {key: value for key, value in raw.items() if key not in SECTIONS}
    own = {key: value for key, value in (overrides or {}).items() if key.partition(".")[0] not in SECTIONS}
    cfg = config.resolve(shared, own, where)
    return [(regime.name, contender.label) for regime in cfg.regimes for contender in cfg.contenders]


def shipped() -> dict[str, Path]:
    """Name -> path of the configs of this package; those of the paper's experiments are called paper/..."""
    root = Path(str(resources.files("llm") / "configs"))
    return {str(path.relative_to(root).with_suffix("").as_posix()): path for path in sorted(root.rglob("*.toml"))}


def read(source: str | Path) -> tuple[dict[str, Any], str]:
    """(tables of a TOML file or shipped config, its name for messages). A file wins over a name."""
    if not os.path.isfile(source):
        known = {**config.shipped(), **shipped()}
        if str(source) not in known:
            raise InputError(f"{source}: no such config file{nearest(str(source), known)}")
        source = known[str(source)]
    return config.read_toml(source)


def check_config(source: str) -> str:
    """A line per rule of a config: its label, equation, and the controller's settings where it has one.

    Raises InputError as `fade_sim.config.load` does.
    """
    lines = []
    raw, where = read(source)
    _refuse_misplaced(raw, where)
    for contender in config.resolve({k: v for k, v in raw.items() if k not in SECTIONS}, {}, where).contenders:
        about = describe(contender.method)
        lines.append(f"{contender.label}: {about['equation']}; uniform groups: {about['uniform_groups']}")
        if contender.method.rule.adaptive:
            state = controller.to_dict(contender.controller)
            shown = ", ".join(f"{k} = {state[k]}" for k in ("rate", "h_star", "delta_min", "alpha_max", "ablation"))
            lines.append(f"  controller: {shown}")
    for name, kind in SECTIONS.items():
        if name in raw:
            section = _section(raw[name], {}, {}, name, where)
            changed = {k: v for k, v in msgspec.to_builtins(section).items() if v != msgspec.to_builtins(kind())[k]}
            lines.append(f"[{name}] " + (", ".join(f"{k} = {v}" for k, v in changed.items()) or "as by default"))
    return "\n".join(lines)


# --- parts ---------------------------------------------------------------------------------------------


def _section(table, of_regime, given: dict, name: str, where: str):
    """A section of the file, under those of its [[regime]] and the overrides {"name.key": value}."""
    for one in (table, of_regime):
        if not isinstance(one, dict):
            raise InputError(f"{where}: {name} is {one!r}, expected a table [{name}]")
    over = {key.partition(".")[2]: value for key, value in given.items() if key.partition(".")[0] == name}
    return config.section({**table, **of_regime, **over}, SECTIONS[name], where, name)


def _regime_row(rows: list, regimes, chosen, where: str) -> dict:
    """The [[regime]] row of a regime, with the sections that hold in it alone."""
    if not rows:
        return {}
    if len(rows) != len(regimes):  # overrides made some equal but for the trainer's sections
        if any(name in row for row in rows for name in SECTIONS):
            raise InputError(f"{where}: these overrides make two regimes equal whose trainer sections may differ; "
                             "choose other overrides")
        return {}
    return rows[regimes.index(chosen)]


def _refuse_misplaced(raw: dict, where: str) -> None:
    """A trainer's key at the top of the file, or in [train]."""
    known = {*SECTIONS, "name", "method", "controller", "train", "world", "compare", "regime"}
    places = [("section", raw, known), ("key", raw.get("train"), Train.__struct_fields__)]
    for kind, table, names in places:
        for key in table if isinstance(table, dict) else ():
            homes = [f"[{name}]" for name, section in SECTIONS.items() if key in section.__struct_fields__]
            if key not in names and homes:
                inside = "[train]: " if kind == "key" else ""
                raise InputError(f"{where}: {inside}unknown {kind} {key!r}; it belongs in {' or '.join(homes)}")


def _refuse_foreign(dotted: str) -> None:
    section, _, key = dotted.partition(".")
    known = [*SECTIONS, "train", "method", "controller"]
    if section not in known:
        raise InputError(f"unknown override --{dotted}{nearest(section, known)}")
    if section == "train" and key in SIMULATOR_KEYS:
        instead = {"lr": "; the model's step is --model.lr", "seeds": "; a run has one seed, --train.seed"}.get(key, "")
        raise InputError(f"--{dotted} is the simulator's{instead}")


def _pick(rows, wanted: str | None, key: str, what: str, where: str):
    names = [getattr(row, key) for row in rows]
    if wanted is None and len(rows) > 1:
        raise InputError(f"{where}: has {len(rows)} {what}s, choose one with --{what}: {', '.join(names)}")
    if wanted is not None and wanted not in names:
        raise InputError(f"{where}: no {what} {wanted!r}{nearest(wanted, names)}")
    return rows[names.index(wanted)] if wanted is not None else rows[0]


def _check(train: Train, sections: dict, contender, where: str) -> None:
    """Conditions that tie several keys together."""
    data, loss, model = (sections[k] for k in ("data", "loss", "model"))
    if train.mode != "sampled":
        raise InputError(f"{where}: train.mode is {train.mode!r}, which only the simulator can do; expected 'sampled'")
    if train.match not in ("none",):
        raise InputError(f"{where}: train.match is {train.match!r}: it needs the exact policy of the simulator; "
                         "expected 'none'")
    if max(data.eval_k) > data.eval_rollouts:
        raise InputError(f"{where}: data.eval_k asks for pass@{max(data.eval_k)}, data.eval_rollouts is "
                         f"{data.eval_rollouts}: a prompt needs at least k rollouts")
    if data.task == "file" and not (data.train and data.test):
        raise InputError(f"{where}: data.task = 'file' needs data.train and data.test, two JSONL files")
    if loss.kl == "none" and loss.kl_coef:
        raise InputError(f"{where}: loss.kl_coef is {loss.kl_coef:g} but loss.kl is 'none'; choose k1, k2 or k3")
    if not math.isfinite(loss.entropy_coef):
        raise InputError(f"{where}: loss.entropy_coef is {loss.entropy_coef}, expected a finite number")
    if loss.clip_high is not None and train.correction != "clip":
        raise InputError(f"{where}: loss.clip_high has no effect: set train.correction = 'clip'")
    if train.correction == "none" and (loss.ratio_cap is not None or loss.ratio != "token"):
        raise InputError(f"{where}: loss.ratio and loss.ratio_cap have no effect: train.correction is 'none'")
    if sections["reward"].wall_seconds < sections["reward"].cpu_seconds:
        raise InputError(f"{where}: reward.wall_seconds is {sections['reward'].wall_seconds:g}, expected at least "
                         f"reward.cpu_seconds, {sections['reward'].cpu_seconds:g}")
    for name, keys in _REWARD_KEYS.items():
        for key in keys if sections["reward"].name != name else ():
            if getattr(sections["reward"], key) != getattr(type(sections["reward"])(), key):
                raise InputError(f"{where}: reward.{key} has no effect: reward.name is {sections['reward'].name!r}, "
                                 f"not {name!r}")
    if model.lr == 0:
        raise InputError(f"{where}: model.lr is 0, so nothing would be trained")


def _notes(raw: dict, regime) -> tuple[str, ...]:
    """What of the file is not used here."""
    tables = [raw.get("train", {}), *(row.get("train", {}) for row in raw.get("regime", []))]
    idle = [f"train.{k}" for k in SIMULATOR_KEYS if any(k in t for t in tables)]
    if "world" in raw or any("world" in row for row in raw.get("regime", [])):
        idle.append("[world]")
    return (f"{', '.join(idle)}: the simulator's, not read here (the model's step is model.lr)",) if idle else ()
