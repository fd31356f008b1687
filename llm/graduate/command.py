"""`fade-llm graduate`: a config of the toy, a model and a number of nodes in; a plan and an engine's files out."""

from pathlib import Path

import msgspec

from fade_sim import store
from fade_sim.errors import InputError, nearest
from llm import config
from llm.graduate import forecast as forecasts
from llm.graduate import trl_config, verl_config
from llm.graduate.budget import budget
from llm.graduate.models import find_model
from llm.graduate.page import page
from llm.settings import SECTIONS

ENGINES = ("verl", "trl")
_RULE = ("method", "controller", "compare")  # what a config hands over; everything else is the model's base


def run(args, overrides: dict) -> None:
    """Write OUT whole or not at all; with --dry-run print every file instead. Raises InputError."""
    if args.engine not in ENGINES:
        raise InputError(f"unknown --engine {args.engine!r}{nearest(args.engine, ENGINES)}")
    model = find_model(args.model)
    nodes = 1 if args.engine == "trl" and args.nodes is None and args.regime is None else args.nodes
    settings, given = resolve(args.config, args.base or f"paper/{model.name}", nodes, overrides, args.rule,
                              args.regime)
    expected = None
    if args.forecast:
        expected = forecasts.read(args.forecast, settings.contender.label, settings.contender.method.name,
                                  settings.train.staleness > 0)
    engine = verl_config if args.engine == "verl" else trl_config
    numbers = budget(settings, model, packed=engine.PACKED, chunk=engine.CHUNK)
    text = page(settings, model, numbers, args.engine, str(args.config), differences(given, settings), expected)
    import tomli_w

    files = {"plan.md": text, "config.toml": tomli_w.dumps(settings.raw), **engine.files(settings, numbers)}
    said = verl_config.checked(files["overrides.txt"].splitlines()[1:], "RUN_FOLDER") if args.engine == "verl" else ""
    if args.dry_run:
        for name, content in files.items():
            print(f"--- {name}\n{content}")
        print(said)
        return
    with store.run_folder(args.out, f"{settings.name}-{args.engine}") as (folder, final):
        for name, content in files.items():
            (folder / name).write_text(content, encoding="utf-8")
            if name.endswith((".sh", ".slurm")):
                (folder / name).chmod(0o755)
    print(f"{text}\n{said}\nfolder: {final} ({', '.join(files)})")


def resolve(source: str, base: str, nodes: int | None, overrides: dict, rule: str | None = None,
            regime: str | None = None):
    """(settings, tables of `source`): the rule of `source` under everything else of `base`, on `nodes` nodes.

    The regime of the base is the one with that many nodes, else its first with the trainers' share of nodes kept.
    """
    config.check_config(source)  # all of it, though the rule alone is taken
    given, where = config.read(source)
    tables, base_where = config.read(base)
    if given is not tables and Path(str(source)).name != Path(str(base)).name:
        tables = {**{k: v for k, v in tables.items() if k not in _RULE}, **{k: given[k] for k in _RULE if k in given}}
        tables["name"] = f"{Path(base_where).stem}-{Path(where).stem}"
        where = f"{where} under {base_where}"
    tables = _in_regime(tables, nodes, regime, base_where)
    settings = config.resolve(tables, where, overrides, rule=rule)
    if nodes and nodes != settings.cluster.nodes:
        c = settings.cluster
        trainers = min(max(round(nodes * c.trainer_nodes / c.nodes), 1), nodes - 1) if c.trainer_nodes else 0
        if c.trainer_nodes and not trainers:
            raise InputError(f"--nodes is {nodes}: {base_where} has no regime for one node, and trainers and samplers "
                             "apart need two")
        overrides = {"cluster.trainer_nodes": trainers, **overrides, "cluster.nodes": nodes}
        settings = config.resolve(tables, where, overrides, rule=rule)
    _check_schedule(settings)
    return settings, given


def _in_regime(tables: dict, nodes: int | None, name: str | None, where: str) -> dict:
    """The tables of one regime: the one of that name, else with that many nodes, else the first."""
    rows = tables.get("regime", [])
    if not rows and name is None:
        return tables
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{where}: regime is not a list of tables, expected [[regime]]")
    names = [str(row.get("name")) for row in rows]
    if name is not None and name not in names:
        raise InputError(f"{where}: no regime {name!r}{nearest(name, names)}")
    sizes = [row["cluster"].get("nodes") if isinstance(row.get("cluster"), dict) else None for row in rows]
    row = rows[names.index(name) if name is not None else sizes.index(nodes) if nodes in sizes else 0]
    out = {key: value for key, value in tables.items() if key != "regime"}
    for key, table in row.items():
        if key != "name":
            both = isinstance(table, dict) and isinstance(out.get(key, {}), dict)
            out[key] = {**out.get(key, {}), **table} if both else table
    return out


def _check_schedule(settings) -> None:
    state, steps = settings.contender.controller, settings.train.steps
    adaptive = settings.contender.method.rule.adaptive
    if adaptive and state.ablation == "log_schedule" and state.horizon != steps:
        raise InputError(f"controller.horizon is {state.horizon}, but the run has {steps} updates: "
                         f"give --controller.horizon {steps}")


def differences(given: dict, settings) -> list[tuple[str, str, str]]:
    """(key, value there, value here) of every setting that `given` makes and this run does not share.

    Of a config with regimes: of what stands outside them. A key that only the simulator reads is no difference.
    """
    out, simulated = [], [("train", key) for key in config.SIMULATOR_KEYS]
    for section in ("train", *SECTIONS):
        here = getattr(settings, section)
        for key, value in given.get(section, {}).items():
            if key in here.__struct_fields__ and (section, key) not in simulated:
                mine = msgspec.to_builtins(getattr(here, key))
                if mine != value:
                    out.append((f"{section}.{key}", _shown(value), _shown(mine)))
    return out


def _shown(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
