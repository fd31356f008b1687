"""Strict configuration: frozen records, TOML in and out, every key known, one-line errors.

`[method]` and `[controller]` are shared by the simulator and the trainer. `[train]` and `[world]`
drive the simulator. `[[compare]]` rows override [method] (and, in a sub-table, [controller]);
`[[regime]]` rows override [train] and [world], so that one run shows a rule under several
dynamics. Command-line overrides win over everything. A file may also carry the sections of the
trainer (TRAINER_SECTIONS); here they are left unread, with a note.
"""

import math
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from fade_sim.advantage import RULES, Method, controller, from_function, load_function, make
from fade_sim.errors import InputError, nearest
from fade_sim.settings import WORLDS, Train, World, describe_dynamics


class Contender(msgspec.Struct, frozen=True):
    """One compared rule: a method, the controller it starts from, and a unique label."""

    label: str
    method: Method
    controller: controller.State


class Regime(msgspec.Struct, frozen=True):
    """One setting of the dynamics and the world under which all contenders run."""

    name: str
    train: Train
    world: World


class Config(msgspec.Struct, frozen=True):
    """A resolved run: every contender in every regime."""

    name: str
    contenders: tuple[Contender, ...]
    regimes: tuple[Regime, ...]
    notes: tuple[str, ...]  # what a person should know about how it was read
    raw: dict[str, Any]  # what to write: loading it again gives this same Config


_CONTROLLER_KEYS = ("rate", "h_star", "relative", "delta_min", "alpha_max", "ablation", "ema_literal", "horizon")
_SECTIONS = ("name", "method", "controller", "train", "world", "compare", "regime")
TRAINER_SECTIONS = ("model", "data", "reward", "rollout", "loss", "parallel", "probe", "pretrain", "cluster")


def load(source: str | Path | None = None, overrides: dict[str, Any] | None = None) -> Config:
    """Read, check and resolve a config.

    source: path of a TOML file, the name of a shipped config (see `shipped`), or None for the main
    job. overrides: {"train.lr": 5.0, "method.delta": 0.3, ...}; they win over the file, over
    [[compare]] and over [[regime]]. Raises InputError, one line, on anything unknown or out of range.
    """
    raw, where = read_toml("default" if source is None else source)
    return resolve(raw, overrides or {}, where)


def shipped() -> dict[str, Path]:
    """Name -> path of the configs that come with the package."""
    root = Path(str(resources.files("fade_sim") / "configs"))
    return {path.stem: path for path in sorted([*root.glob("*.toml"), *root.glob("methods/*.toml")])}


def read_toml(source: str | Path) -> tuple[dict, str]:
    """Parsed TOML and a name for messages. A path wins over a shipped name."""
    path = Path(source)
    if not _is_file(path):
        known = shipped()
        if str(source) not in known:
            raise InputError(f"{source}: no such config file{nearest(str(source), known)}")
        path = known[str(source)]
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig")), path.name
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path}: not valid TOML: nested too deeply") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long, a folder that may not be searched
        return False


def resolve(raw: dict, overrides: dict[str, Any], where: str = "config") -> Config:
    """Merge, check and freeze. `where` names the source in messages."""
    _known(raw, _SECTIONS + TRAINER_SECTIONS, where, "section")
    base = {key: dict(_table(raw, key, where)) for key in ("method", "controller", "train", "world")}
    compare = [dict(row) for row in _rows(raw, "compare", where)]
    regimes = [dict(row) for row in _rows(raw, "regime", where)]
    notes: list[str] = []
    if foreign := [f"[{key}]" for key in TRAINER_SECTIONS if key in raw]:
        notes.append(f"{', '.join(foreign)}: read by fade-llm, not by the simulator")
    for dotted, value in overrides.items():
        _override(dotted, value, base, compare, regimes)
    if "method.name" in overrides:
        if compare:
            notes.append(f"--method.name: {overrides['method.name']} runs alone, not the {len(compare)} compared rules")
        compare = []

    resolved = _regimes(base, regimes, where, notes)
    contenders = _contenders(base, compare, where, resolved, notes)
    for regime in resolved:
        _check(regime, contenders, where)
    _check_effect(overrides, contenders, resolved)
    name = raw.get("name", where.removesuffix(".toml"))
    if not _printable(name) or "/" in name or name.startswith(".") or len(name) > 100:
        raise InputError(f"{where}: name is {name!r}, expected a plain word (it names the run folder)")
    return Config(name, contenders, resolved, tuple(notes), _dump(name, contenders, resolved))


def parse_value(text: str) -> Any:
    """The value of a command-line override: TOML where it parses (5, .3, true, inf), else text."""
    if "\n" in text or "#" in text:  # would be more than one value, or a comment
        return text
    for candidate in (text, f"0{text}" if text.startswith(".") else text.replace("-.", "-0.")):
        try:
            return tomllib.loads(f"x = {candidate}")["x"]
        except tomllib.TOMLDecodeError:
            continue
    return text


def method_section(table: dict, where: str) -> Method:
    """A [method] table -> Method. Shared by every consumer of a config."""
    table = dict(table)
    name = table.pop("name", "dr_grpo")
    if not isinstance(name, str):
        raise InputError(f"{where}: [method] name is {name!r}, expected text")
    try:
        return make(name, **table)
    except InputError as error:
        raise InputError(f"{where}: [method] {error}") from None


def controller_section(table: dict, where: str) -> controller.State:
    """A [controller] table -> a fresh controller state."""
    _known(table, _CONTROLLER_KEYS, f"{where}: [controller]", "key")
    try:
        return controller.init(**table)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


# --- parts --------------------------------------------------------------------------------------------


def _printable(text) -> bool:
    return isinstance(text, str) and bool(text) and text.isprintable()


def _known(table: dict, names, where: str, kind: str) -> None:
    for key in table:
        if key not in names:
            home = [s for s, keys in _HOMES.items() if key in keys] if kind == "section" else []
            hint = f"; it belongs in [{home[0]}]" if home else nearest(key, names)
            raise InputError(f"{where}: unknown {kind} {key!r}{hint}")


_HOMES = {
    "controller": _CONTROLLER_KEYS,
    "train": Train.__struct_fields__,
    "world": World.__struct_fields__,
    "method": {p for rule in RULES.values() for p in rule.params},
}


def _table(raw: dict, key: str, where: str) -> dict:
    value = raw.get(key, {})
    if not isinstance(value, dict):
        raise InputError(f"{where}: {key} is {value!r}, expected a table [{key}]")
    return value


def _rows(raw: dict, key: str, where: str) -> list[dict]:
    rows = raw.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{where}: {key} is not a list of tables, expected [[{key}]]")
    return rows


def _override(dotted: str, value: Any, base: dict, compare: list[dict], regimes: list[dict]) -> None:
    section, _, key = dotted.partition(".")
    if section not in base or not key:
        known = [f"{s}.*" for s in base]
        raise InputError(f"unknown override --{dotted}{nearest(section + '.*', known)}")
    if section in ("train", "world"):
        names = (Train if section == "train" else World).__struct_fields__
        _known({key: value}, names, f"--{dotted}", "key")
        for row in regimes:
            if isinstance(row.get(section), dict) and key in row[section]:
                if row[section][key] != value:
                    row["name"] = None  # it no longer is what its name says
                row[section] = {k: v for k, v in row[section].items() if k != key}
    elif section == "controller":
        for row in compare:
            if isinstance(row.get("controller"), dict):
                row["controller"] = {k: v for k, v in row["controller"].items() if k != key}
    else:
        for row in compare:
            row.pop(key, None)
    base[section][key] = value


def _contenders(base: dict, compare: list[dict], where: str, regimes, notes: list[str]) -> tuple[Contender, ...]:
    everything = {p for rule in RULES.values() for p in rule.params}
    _known({k: v for k, v in base["method"].items() if k != "name"}, everything, f"{where}: [method]", "key")
    used: set[str] = set()
    out: dict[str, Contender] = {}
    rows = compare or [{}]
    for i, row in enumerate(rows):
        place = f"{where}: [[compare]] {i + 1}" if compare else f"{where}"
        row = dict(row)
        label = row.pop("label", None)
        if label is not None and not _printable(label):
            raise InputError(f"{place}: label is {label!r}, expected text")
        own_controller = row.pop("controller", {})
        if not isinstance(own_controller, dict):
            raise InputError(f"{place}: controller is {own_controller!r}, expected a table")
        name = row.pop("name", base["method"].get("name", "dr_grpo"))
        if not isinstance(name, str):
            raise InputError(f"{place}: name is {name!r}, expected the name of a method")
        takes = RULES[name].params if name in RULES else {}
        inherited = {k: v for k, v in base["method"].items() if k in takes} if compare else dict(base["method"])
        inherited.pop("name", None)
        used |= set(inherited) | set(row)
        table = {"name": name, **inherited, **row}
        if name == "table" and isinstance(table.get("weights"), str) and ":" in table["weights"]:
            label = label or table["weights"]
            table["weights"] = _function_rows(table["weights"], regimes, place)
        method = method_section(table, place)
        state = controller_section({**base["controller"], **own_controller}, place)
        if not method.rule.adaptive:
            state = controller.init()  # only what is recorded reads it: phat and Hhat at the default rate
        if label is None:
            extra = dict(own_controller)
            if method.rule.adaptive and state.ablation != "none":
                extra["ablation"] = state.ablation
            label = method.label + "".join(f"[{v if isinstance(v, str) else f'{k}={v}'}]" for k, v in extra.items())
        same = out.get(label)
        if same is not None and (same.method, same.controller) != (method, state):
            raise InputError(f"{place}: label {label!r} is already taken by another rule; give this one its own label")
        if same is not None:
            notes.append(f"{label} is compared once, though it is listed more than once")
        out[label] = Contender(label, method, state)
    idle = [k for k in base["method"] if k != "name" and k not in used]
    if idle:
        raise InputError(f"{where}: method.{idle[0]} is a parameter of no compared rule")
    return tuple(out.values())


def _function_rows(spec: str, regimes, place: str):
    """The table of a user's function at the group size of the run."""
    sizes = {regime.train.group_size for regime in regimes}
    if len(sizes) > 1:
        raise InputError(f"{place}: weights = {spec!r} needs one group size, the regimes have {sorted(sizes)}")
    try:
        return from_function(load_function(spec), sizes.pop()).params["weights"]
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _regimes(base: dict, rows: list[dict], where: str, notes: list[str]) -> tuple[Regime, ...]:
    out: list[Regime] = []
    for i, row in enumerate(rows or [{}]):
        place = f"{where}: [[regime]] {i + 1}" if rows else where
        _known(row, ("name", "train", "world", *TRAINER_SECTIONS), place, "key")
        train = {**base["train"], **_table(row, "train", place)}
        world = {**base["world"], **_table(row, "world", place)}
        preset = world.get("name", "default")
        if isinstance(preset, str) and preset in WORLDS:
            world = {**WORLDS[preset], **world}
        train, world = section(train, Train, place, "train"), section(world, World, place, "world")
        name = row.get("name", f"regime {i + 1}" if rows else "run")
        if name is None:
            same = next((r for r in out if (r.train, r.world) == (train, world)), None)
            if same is not None:
                notes.append(f"two regimes are equal once overridden: {same.name!r} runs once")
                continue
            name = describe_dynamics(train)
            if any(r.name == name for r in out):
                name += f" ({i + 1})"
        if not _printable(name) or "/" in name or name in [r.name for r in out]:
            raise InputError(f"{place}: name is {name!r}, expected text without '/' that no other regime has")
        out.append(Regime(name, train, world))
    return tuple(out)


def section(table: dict, kind: type, where: str, name: str):
    """A table as a frozen record: unknown keys, wrong types and ranges are an InputError that names the key."""
    _known(table, kind.__struct_fields__, f"{where}: [{name}]", "key")
    for key, value in table.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{where}: {name}.{key} is {value}, expected a finite number")
        try:
            msgspec.convert({key: value}, kind)
        except msgspec.ValidationError as error:
            expected = str(error).split(" - at")[0].replace("Expected", "expected").replace("`", "")
            if expected.startswith("Invalid enum"):
                expected = f"no such choice{nearest(value, _choices(kind, key))}"
            raise InputError(f"{where}: {name}.{key} is {value!r}, {expected.split(', got')[0]}") from None
    return msgspec.convert(table, kind)


def _choices(kind: type, key: str) -> list[str]:
    info = next(f for f in msgspec.inspect.type_info(kind).fields if f.encode_name == key)
    return list(info.type.values)


def _check(regime: Regime, contenders: tuple[Contender, ...], where: str) -> None:
    """Conditions that tie several keys together."""
    train, world = regime.train, regime.world
    place = where if regime.name == "run" else f"{where}: regime {regime.name!r}"
    if train.lr == 0 and train.lr_table == 0:
        raise InputError(f"{place}: train.lr and train.lr_table are both 0, so nothing would be trained")
    if world.skills_per_prompt * world.arms_per_skill >= world.arms:
        raise InputError(f"{place}: world.arms is {world.arms}, expected more than "
                         f"skills_per_prompt * arms_per_skill = {world.skills_per_prompt * world.arms_per_skill}")
    if world.policy == "linear" and world.skills * world.arms_per_skill >= world.arms:
        raise InputError(f"{place}: world.arms is {world.arms}, expected more than skills * arms_per_skill = "
                         f"{world.skills * world.arms_per_skill} under policy = linear")
    if world.policy == "linear" and world.hidden < 3:
        raise InputError(f"{place}: world.hidden is {world.hidden}, expected at least 3 under policy = linear: "
                         "in one residual dimension the skills of a prompt cancel")
    if train.mode == "expected" and train.precision == "float32":
        raise InputError(f"{place}: train.precision = float32 is for sampled and counted runs: an exact expectation "
                         "in single precision would not be exact")
    if train.mode == "expected" and train.dynamic_sampling:
        raise InputError(f"{place}: train.dynamic_sampling has no exact expectation here; use mode = sampled or count")
    pool = world.skills // 2 if world.split_skills else world.skills
    if world.skills_per_prompt > pool:
        raise InputError(f"{place}: world.skills_per_prompt is {world.skills_per_prompt}, expected at most {pool}")
    for c in contenders:
        rule = c.method.rule
        if rule.mixed_only and not train.dynamic_sampling:
            raise InputError(f"{place}: {c.method.name} needs train.dynamic_sampling = true "
                             "(on uniform groups it is grpo)")
        if rule.reads_batch and train.mode == "expected":
            raise InputError(f"{place}: {c.method.name} reads the whole batch, which has no exact expectation here; "
                             "use mode = sampled or count")
        if train.group_size == 1 and rule.group_baseline:
            raise InputError(f"{place}: train.group_size is 1, but {c.method.name} needs at least 2 rollouts of a "
                             "prompt (its baseline is the group), so nothing would be trained")
        try:
            rule.check_size(c.method.params, train.group_size)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None


def _check_effect(overrides: dict, contenders, regimes) -> None:
    """An override that changes nothing is a misunderstanding: say so."""
    if not any(c.method.rule.adaptive for c in contenders):
        for key in overrides:
            if key.startswith("controller."):
                raise InputError(f"--{key} has no effect: no compared rule is adaptive")
    if "train.max_rounds" in overrides and not any(r.train.dynamic_sampling for r in regimes):
        raise InputError("--train.max_rounds has no effect: set --train.dynamic_sampling true")
    if "train.prompts" in overrides and all(r.train.mode == "expected" for r in regimes):
        raise InputError("--train.prompts has no effect: mode = expected takes all training prompts at once")
    if "train.clip" in overrides and all(r.train.correction != "clip" for r in regimes):
        raise InputError("--train.clip has no effect: set --train.correction clip")
    if overrides.get("world.solve_rates") == "":
        raise InputError("--solve-rates is empty, expected a file of recorded rollouts")
    if any(r.world.solve_rates for r in regimes):
        for key in ("train_prompts", "test_prompts", "solve_mean", "solve_sd", "solve_min", "test_solve_mean"):
            if f"world.{key}" in overrides:
                raise InputError(f"--world.{key} has no effect: the solve rates come from a file")


def _dump(name: str, contenders, regimes) -> dict:
    """Plain tables, complete: every default written out."""
    compare = []
    for c in contenders:
        row: dict[str, Any] = {"label": c.label, "name": c.method.name, **c.method.params}
        if "weights" in row:
            row["weights"] = [list(pair) for pair in row["weights"]]
        if c.method.rule.adaptive:
            row["controller"] = {k: getattr(c.controller, k) for k in _CONTROLLER_KEYS
                                 if getattr(c.controller, k) is not None}
        compare.append(row)
    rows = []
    for regime in regimes:
        world = {k: v for k, v in msgspec.to_builtins(regime.world).items() if v is not None}
        rows.append({"name": regime.name, "train": msgspec.to_builtins(regime.train), "world": world})
    return {"name": name, "compare": compare, "regime": rows}
