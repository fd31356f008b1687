"""What each command does. Heavy imports happen inside, after the input has been checked."""

import re
import time
from pathlib import Path

from fade_sim import config
from fade_sim.errors import InputError, nearest
from fade_sim.terminal import meta, note
from fade_sim.terminal import new_console as _console

# --- run ------------------------------------------------------------------------------------------


def run(args, free: dict[str, str]) -> None:
    """Compare rules; write config.toml, metrics.jsonl, arrays.npz, summary.json, figure.png, meta.json."""
    cfg = _resolve(args, free)
    import tomli_w

    text = tomli_w.dumps(cfg.raw)
    if args.dry_run:
        print(text, end="")
        return
    rates = {regime.name: _solve_rates(regime.world.solve_rates) for regime in cfg.regimes}
    from fade_sim import report, store
    from fade_sim.sim import require_memory  # Numba: from here on the command is known to be well formed

    for regime in cfg.regimes:
        require_memory(regime, len(cfg.contenders), rates[regime.name])
    with store.run_folder(args.out, cfg.name) as (folder, final):
        began = time.time()
        traces = _simulate(cfg, args.threads, rates)
        summary = {name: report.summarise(trace) for name, trace in traces.items()}
        subtitles = {regime.name: config.describe_dynamics(regime.train) for regime in cfg.regimes}
        from fade_sim.figures import run_figure

        run_figure(traces, subtitles, folder / "figure.png")
        (folder / "config.toml").write_text(text, encoding="utf-8")
        with (folder / "metrics.jsonl").open("w", encoding="utf-8") as lines:
            for name, trace in traces.items():
                lines.writelines(store.to_json(row) + "\n" for row in report.metric_rows(name, trace))
        store.write_arrays(folder / "arrays.npz", report.arrays(traces))
        (folder / "summary.json").write_text(store.to_json(summary, indent=1) + "\n")
        (folder / "meta.json").write_text(store.to_json(meta(began, args.threads), indent=1) + "\n")
    console = _console()
    for name, trace in traces.items():
        said = name if name == subtitles[name] else f"{name}: {subtitles[name]}"
        seeds = f"{len(trace.seeds)} seed{'s' * (len(trace.seeds) > 1)}"
        title = f"{said}; after {trace.steps[-1]} steps, {seeds}"
        report.print_table(console, title, summary[name])
    console.print(f"\n{report.LEGEND}", soft_wrap=True)
    console.print(f"figure: {final / 'figure.png'}\nfolder: {final}", soft_wrap=True)


def _resolve(args, free: dict[str, str]) -> config.Config:
    overrides = {key: config.parse_value(value) for key, value in free.items()}
    for key, value in (("train.seeds", args.seeds), ("world.solve_rates", args.solve_rates)):
        if value is not None:
            if key in overrides:
                raise InputError(f"--{key} and --{key.split('.')[1].replace('_', '-')} are both given")
            overrides[key] = value
    cfg = config.load(args.config, overrides)
    for text in cfg.notes:
        note(text)
    return shortened(cfg, overrides) if args.quick else cfg


def shortened(cfg: config.Config, given) -> config.Config:
    """--quick: at most 3 seeds and a fifth of the steps; what was given by name stays."""
    rows = []
    for row in cfg.raw["regime"]:
        train = dict(row["train"])
        if "train.seeds" not in given:
            train["seeds"] = min(3, train["seeds"])
        if "train.steps" not in given:
            train["steps"] = -(-train["steps"] // 5)
        rows.append({**row, "train": train})
    return config.resolve({**cfg.raw, "regime": rows}, {}, "config")


def _solve_rates(path: str):
    from fade_sim import recordings

    return recordings.initial_solve_rates(path) if path else None


def _simulate(cfg: config.Config, threads: int | None, rates: dict) -> dict:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from fade_sim.sim import simulate

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("runs,"),
               TimeElapsedColumn(), TextColumn("gone,"), TimeRemainingColumn(), TextColumn("left"))
    traces, worlds = {}, {}
    with Progress(*columns, console=_console(stderr=True)) as progress:
        for regime in cfg.regimes:
            runs = len(cfg.contenders) * regime.train.seeds
            task = progress.add_task(regime.name, total=runs)

            def advance(steps: int, task=task, share=1 / regime.train.steps) -> None:
                progress.advance(task, steps * share)

            traces[regime.name] = simulate(regime, cfg.contenders, threads=threads, progress=advance,
                                           solve_rates=rates[regime.name], worlds=worlds)
            progress.update(task, completed=runs)
    return traces


def sweep(args, free: dict[str, str]) -> None:
    """A grid of settings: a table, a picture, results.csv."""
    from fade_sim import sweep as sweeps

    sweeps.command(args, {key: config.parse_value(value) for key, value in free.items()})


def reproduce(args, free: dict[str, str]) -> None:
    """Every experiment: run, score, figure, report."""
    from fade_sim.experiments import reproduce as reproduction

    reproduction.command(args)


def configs(args, free: dict[str, str]) -> None:
    """Names of the shipped configs, with the first line of each."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, path in config.shipped().items():
        table.add_row(name, path.read_text().partition("\n")[0].lstrip("# "))
    _console().print(table)


# --- methods, weights -----------------------------------------------------------------------------


def methods(args, free: dict[str, str]) -> None:
    """List the registry, or describe one method."""
    from fade_sim.advantage import RULES, describe

    console = _console()
    from rich.table import Table

    if args.name:
        if args.name not in RULES:
            raise InputError(f"unknown method {args.name!r}{nearest(args.name, RULES)}")
        table = Table(box=None, show_header=False, pad_edge=False)
        for key, value in describe(args.name).items():
            if value:
                table.add_row(key.replace("_", " "), value)
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading in ("method", "advantage", "source"):
            table.add_column(heading, no_wrap=heading == "method")
        for name, rule in RULES.items():
            table.add_row(name, rule.equation, rule.source)
    console.print(table)


def weights(args, free: dict[str, str]) -> None:
    """Table of weights, masses, slope and peak of one rule, and a picture of them."""
    import numpy as np
    from rich.table import Table

    from fade_sim import theory
    from fade_sim.advantage import weight_table

    if args.all:
        _all_weights(args, free)
        return
    if args.name is None:
        raise InputError("weights: name a method (see fade-sim methods), or --all")
    method, label = _weights_method(args.name, free, args.group_size)
    G = args.group_size
    batch = uniform_batch(G) if method.rule.reads_batch else None
    if G == 1 and method.rule.group_baseline:
        raise InputError(f"--group-size is 1, but {method.name} needs at least 2 rollouts of a prompt")
    table = weight_table(method, G, batch=batch)
    from fade_sim.figures import weights_figure

    path = Path(args.figure or f"weights-{re.sub(r'[^A-Za-z0-9_.]+', '-', label).strip('-')}-G{G}.png")
    p = np.linspace(0.001, 0.999, 333)
    population = theory.population_masses(method, p, batch=batch) if method.rule.population else None
    weights_figure(label, table, p, theory.masses(method, G, p, batch=batch), population, path)

    console = _console()
    rows = Table(title=f"{label}, group size {G}", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("successes", "weight of a success", "of a failure"):
        rows.add_column(heading, justify="right")
    for c, (success, failure) in enumerate(table):
        rows.add_row(str(c), f"{success:+.4f}" if c else "", f"{failure:+.4f}" if c < G else "")
    console.print(rows)

    grid = np.array([0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98])
    masses = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("solve rate", "m_S", "m_F", "m_S/m_F", "slope", "scale"):
        masses.add_column(heading, justify="right")
    m_s, m_f = theory.masses(method, G, grid, batch=batch)
    columns = (grid, m_s, m_f, theory.sign_ratio(method, grid, G, batch=batch),
               theory.slope(method, grid, G, batch=batch), theory.scale(method, grid, G, batch=batch))
    for row in zip(*columns, strict=True):
        masses.add_row(f"{row[0]:g}", *(f"{value:.4f}" for value in row[1:]))
    console.print(masses)
    peak = theory.peak(method, G, batch=batch)
    console.print(f"mass of successes peaks at p = {_peak(peak.success)}, of failures at p = {_peak(peak.failure)}")
    console.print("slope: derivative of the objective that the expected update climbs; "
                  "scale: total mass over dr_grpo's")

    if method.rule.mixed_only:
        console.print("masses are per kept group: uniform groups are resampled, not weighed")
    if batch is not None:
        console.print("it reads the whole batch: shown for prompts with uniform solve rates")
    console.print(f"figure: {path}", soft_wrap=True)


def uniform_batch(group_size: int):
    """The mean batch of prompts with uniform solve rates: every number of successes is equally likely."""
    import numpy as np

    from fade_sim.advantage import BatchStats

    return BatchStats(np.arange(group_size + 1), np.full(group_size + 1, group_size))


def _all_weights(args, free: dict[str, str]) -> None:
    """One picture of every rule that is defined at this group size, with its default parameters."""
    import numpy as np

    from fade_sim import theory
    from fade_sim.advantage import RULES, make
    from fade_sim.figures import zoo_figure

    if free or args.name:
        raise InputError("weights --all shows every rule at its defaults: give no name and no parameters")
    G, p = args.group_size, np.linspace(0.005, 0.995, 199)
    shown, left_out = [], []
    for name, rule in RULES.items():
        if rule.adaptive or name == "table":
            continue
        method = make(name)
        try:
            shown.append((method.label, *theory.masses(method, G, p, batch=uniform_batch(G))))
        except InputError as error:
            left_out.append(str(error))
    path = Path(args.figure or f"weights-all-G{G}.png")
    zoo_figure(shown, p, G, path)
    console = _console()
    console.print(f"{len(shown)} rules at group size {G}; rules of the batch for prompts with uniform solve rates")
    for line in left_out:
        console.print(f"left out: {line}")
    console.print(f"figure: {path}", soft_wrap=True)


def _peak(p: float) -> str:
    return "- (no mass)" if p != p else f"{p:.3f}"


def _weights_method(name: str, free: dict[str, str], group_size: int):
    """(static method, label); an adaptive one is shown at gains given by --alpha and --delta."""
    from fade_sim.advantage import RULES, from_function, load_function, make, resolve

    if ":" in name:
        if free:
            raise InputError(f"{name}: a function of your own takes no --{next(iter(free))}")
        return from_function(load_function(name), group_size), name

    params = {key.replace("-", "_"): config.parse_value(value) for key, value in free.items()}
    if name in RULES and RULES[name].adaptive:
        if name != "fade":
            raise InputError(f"{name} has no weights of its own ({RULES[name].equation}): "
                             f"see fade-sim weights {'fade' if name == 'fade_unit' else 'dr_grpo'}")
        alpha, delta = params.pop("alpha", 1.5), params.pop("delta", 1.0)
        method = resolve(make(name, **params), alpha, delta)
        return method, f"fade at alpha = {alpha:g}, delta = {delta:g}"
    method = make(name, **params)
    return method, method.label


# --- replay -----------------------------------------------------------------------------------------


def replay(args, free: dict[str, str]) -> None:
    """Recorded rollouts under every rule."""
    from fade_sim import replay as replays
    from fade_sim import store, traces
    from fade_sim.advantage import RULES, controller

    recording = traces.load(args.file, args.format, args.reward, args.threshold)
    rules = [_replay_method(text, args.group_size) for text in args.method or [n for n in RULES if n != "table"]]
    settings = {} if args.h_star is None else {"h_star": args.h_star}
    report = replays.replay(recording, rules, group_size=args.group_size,
                            controller_state=controller.init(**settings))
    if args.figure:
        from fade_sim.figures import replay_figure

        replay_figure(report, Path(args.figure))
    if args.json:
        store.write_atomic(Path(args.json), (store.to_json(replays.to_dict(report), indent=1) + "\n").encode())
    console = _console()
    console.print(recording.source, markup=False, highlight=False, soft_wrap=True)
    replays.render(report, console)
    for name, written in (("figure", args.figure), ("numbers", args.json)):
        if written:
            console.print(f"{name}: {written}", soft_wrap=True)


def _replay_method(text: str, group_size: int | None):
    """A rule by name or label, or a user's module:function (which needs --group-size)."""
    from fade_sim.advantage import from_function, load_function, parse

    if ":" not in text:
        return parse(text)
    if group_size is None:
        raise InputError(f"--method {text}: a function of your own needs --group-size")
    return from_function(load_function(text), group_size)
