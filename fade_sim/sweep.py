"""`fade-sim sweep`: a config over a grid of settings; every point is computed once, whoever asks for it.

The folder holds cells/ (finished points), results.csv, sweep.json (what was swept), figure.png and
meta.json. The same command goes on where it was stopped; a longer grid computes the new points only.
"""

import csv
import io
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fade_sim import config, jobs
from fade_sim.errors import InputError, nearest
from fade_sim.terminal import meta, new_console, note

MAX_PANELS, MAX_AXES = 24, 3
METRICS = ("rank1", "train_entropy", "train_pass@1", "test_pass@1", "test_pass@100")  # always in the table


@dataclass(frozen=True)
class Axis:
    """One swept setting: `section.key` and its values in the order given."""

    key: str
    values: tuple[Any, ...]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]


@dataclass(frozen=True)
class Point:
    """One resolved point of the grid."""

    index: tuple[int, ...]  # position on each axis
    at: tuple[Any, ...]  # value on each axis
    config: config.Config
    cells: tuple[dict, ...]  # raw config of each of its regimes alone

    def label(self, axes) -> str:
        return ", ".join(f"{axis.name} {show(value)}" for axis, value in zip(axes, self.at, strict=True))


def show(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def command(args, overrides: dict[str, Any]) -> None:
    """Check the whole grid, run what is missing, show and write the results."""
    axes = parse_axes(args.grid or [])
    points = resolve(args, axes, overrides)
    metric = _metric(args.metric)
    columns = _check_shape(points, axes)
    if args.dry_run:
        _dry_run(points, axes)
        return
    out, traces, began = run(args, axes, points)
    from fade_sim import figures, store

    rows = _rows(points, traces)
    store.write_atomic(out / "results.csv", _csv(axes, rows).encode())
    what = {"config": points[0].config.name, "grid": {axis.key: axis.values for axis in axes}, "metric": metric,
            "overrides": overrides, "seeds": args.seeds, "quick": args.quick}
    store.write_atomic(out / "sweep.json", (store.to_json(what, indent=1) + "\n").encode())
    figures.sweep_figure(axes, _panels(points, traces, columns, metric), metric, out / "figure.png")
    store.write_atomic(out / "meta.json", (store.to_json(meta(began, args.threads), indent=1) + "\n").encode())
    _table(axes, rows, metric)
    new_console().print(f"\n±: half of the 95% interval over seeds\nfigure: {out / 'figure.png'}\n"
                        f"results: {out / 'results.csv'}", soft_wrap=True)


# --- the grid -----------------------------------------------------------------------------------------


def parse_axes(texts: list[str]) -> tuple[Axis, ...]:
    """`method.delta=.3,.5,1` -> Axis; commas inside brackets and quotes do not split."""
    axes: list[Axis] = []
    for text in texts:
        key, equals, listed = text.partition("=")
        parts = [part.strip() for part in split_values(listed)]
        if not equals or "." not in key or not all(parts):
            raise InputError(f"--grid {text}: expected section.key=value,value,...")
        values = tuple(config.parse_value(part) for part in parts)
        if len({repr(value) for value in values}) < len(values):
            raise InputError(f"--grid {text}: a value is listed twice")
        if key in (axis.key for axis in axes):
            raise InputError(f"--grid {key} is given twice")
        axes.append(Axis(key, values))
    if not axes:
        raise InputError("sweep: give at least one --grid section.key=value,value,...")
    if len(axes) > MAX_AXES:
        raise InputError(f"sweep: {len(axes)} axes, expected at most {MAX_AXES} (a picture shows no more)")
    return tuple(axes)


def split_values(text: str) -> list[str]:
    """At commas outside [] {} "" ''."""
    parts, depth, quote = [""], 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        depth += (char in "[{") - (char in "]}") if not quote else 0
        if char == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def resolve(args, axes: tuple[Axis, ...], overrides: dict[str, Any]) -> list[Point]:
    """Every point of the grid, checked; InputError names the first bad one."""
    raw, where = config.read_toml("default" if args.config is None else args.config)
    if args.seeds is not None:
        if "train.seeds" in overrides:
            raise InputError("--train.seeds and --seeds are both given")
        overrides = {**overrides, "train.seeds": args.seeds}
    for axis in axes:
        if axis.key in overrides:
            raise InputError(f"--{axis.key} is given, and swept by --grid")
    points, notes = [], {}
    for index in itertools.product(*(range(len(axis.values)) for axis in axes)):
        at = tuple(axis.values[i] for axis, i in zip(axes, index, strict=True))
        given = {**overrides, **{axis.key: value for axis, value in zip(axes, at, strict=True)}}
        try:
            cfg = config.resolve(raw, given, where)
            cfg = jobs.shortened(cfg, given) if args.quick else cfg
        except InputError as error:
            shown = ", ".join(f"{axis.key}={show(value)}" for axis, value in zip(axes, at, strict=True))
            raise InputError(f"--grid {shown}: {error}") from None
        notes.update(dict.fromkeys(cfg.notes))
        points.append(Point(index, at, cfg, tuple({**cfg.raw, "regime": [row]} for row in cfg.raw["regime"])))
    for text in notes:
        note(text)
    return points


def _metric(name: str) -> str:
    if name not in METRICS:
        from fade_sim.sim.measure import METRICS as recorded  # Numba: only for the rarer names
        from fade_sim.sim.run import SPECTRUM

        known = dict.fromkeys([*METRICS, *recorded, *SPECTRUM])
        if name not in known:
            raise InputError(f"--metric {name}: no such metric{nearest(name, known)}")
    return name


def _check_shape(points: list[Point], axes: tuple[Axis, ...]) -> list[tuple[int, int]]:
    """(regime, rule) of each panel or line, the same at every point (which regimes or rules coincide depends on
    the keys that are swept, not on their values). InputError when they are too many to draw."""
    regimes, rules = len(points[0].config.regimes), len(points[0].config.contenders)
    panels = regimes * (rules if len(axes) > 1 else 1) * (len(axes[2].values) if len(axes) > 2 else 1)
    if panels > MAX_PANELS:
        raise InputError(f"sweep: {panels} panels to draw, expected at most {MAX_PANELS}: sweep fewer rules "
                         "(--method.name), regimes or values of the third axis")
    return list(itertools.product(range(regimes), range(rules)))


# --- running --------------------------------------------------------------------------------------------


def run(args, axes: tuple[Axis, ...], points: list[Point]) -> tuple[Path, list[list], float]:
    """(folder, traces by point and regime, when it began). Points that another process is at come last."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from fade_sim import store
    from fade_sim.experiments.cells import Cells
    from fade_sim.sim import require_memory

    for point in points:
        for regime in point.config.regimes:
            require_memory(regime, len(point.config.contenders))
    name = "-".join([points[0].config.name, *(axis.name for axis in axes)])
    out = store.resumable_folder(args.out or f"runs/sweep-{name}")
    began = time.time()
    jobs_left = [(i, r) for i, point in enumerate(points) for r in range(len(point.cells))]
    traces: list[list] = [[None] * len(point.cells) for point in points]
    columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[what]}"))
    with Progress(*columns, console=new_console(stderr=True)) as bar:
        task = bar.add_task("sweep", total=len(jobs_left), what="")
        cells = Cells(out / "cells", args.threads, lambda what, share: bar.update(task, what=f"{what}: {share:.0%}"))
        for wait in (False, True):
            for i, r in list(jobs_left):
                what = f"{points[i].label(axes)} ({points[i].config.regimes[r].name})"
                trace = cells.trace(points[i].cells[r], what, wait=wait)
                if trace is not None:
                    traces[i][r] = trace
                    jobs_left.remove((i, r))
                    bar.advance(task)
        cells.tidy()
    return out, traces, began


# --- results ----------------------------------------------------------------------------------------------


def _rows(points: list[Point], traces: list[list]) -> list[dict]:
    """One dict per point, regime and rule: mean and half-width of every metric at the end of training."""
    from fade_sim.report import interval

    rows, regimes = [], _regime_names(points)
    for point, of_point in zip(points, traces, strict=True):
        for regime, trace in zip(regimes, of_point, strict=True):
            for i, label in enumerate(trace.labels):
                values = {name: interval(trace.last(name)[i]) for name in trace.values}
                rows.append({"at": point.at, "regime": regime, "rule": label, "steps": int(trace.steps[-1]),
                             "seeds": len(trace.seeds), "values": values})
    return rows


def _csv(axes: tuple[Axis, ...], rows: list[dict]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = list(rows[0]["values"])
    writer.writerow([*(axis.key for axis in axes), "regime", "rule", "steps", "seeds",
                     *itertools.chain(*((name, f"{name}_half_width") for name in names))])
    for row in rows:
        numbers = itertools.chain(*(row["values"][name] for name in names))
        writer.writerow([*(show(value) for value in row["at"]), row["regime"], row["rule"], row["steps"],
                         row["seeds"], *("" if n != n else repr(float(n)) for n in numbers)])
    return out.getvalue()


def _regime_names(points: list[Point]) -> list[str]:
    """One name per regime for the whole grid: its own, or what sets it apart where the sweep has renamed it."""
    names = []
    rows = [{**row["train"], **row["world"]} for row in points[0].config.raw["regime"]]
    differ = [key for key in rows[0] if len({repr(row.get(key)) for row in rows}) > 1]
    for r, row in enumerate(rows):
        own = {point.config.regimes[r].name for point in points}
        apart = ", ".join(f"{key} {show(row[key])}" for key in differ if key in row)
        names.append(own.pop() if len(own) == 1 else apart)
    return names


def _panels(points, traces, columns, metric: str) -> list[dict]:
    """Per (regime, rule): its names and {position on each axis: the metric of each seed}."""
    regimes, panels = _regime_names(points), []
    for r, c in columns:
        rules = dict.fromkeys(point.config.contenders[c].label for point in points)
        names = dict.fromkeys(point.config.contenders[c].method.name for point in points)
        panels.append({
            "regime": regimes[r] if len(regimes) > 1 else "",
            "rule": next(iter(rules)) if len(rules) == 1 else " / ".join(names),
            "values": {point.index: trace[r].last(metric)[c] for point, trace in zip(points, traces, strict=True)},
        })
    return panels


def _table(axes: tuple[Axis, ...], rows: list[dict], metric: str) -> None:
    from rich.table import Table

    shown = list(dict.fromkeys([metric, *METRICS]))
    several = len({row["regime"] for row in rows if row["at"] == rows[0]["at"]}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold", title_justify="left",
                  title=f"after {rows[0]['steps']} steps" if len({row["steps"] for row in rows}) == 1 else None)
    for heading in (*(axis.name for axis in axes), *(["regime"] if several else []), "rule"):
        table.add_column(heading)
    for name in shown:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(show(value) for value in row["at"]), *([row["regime"]] if several else []), row["rule"],
                      *(_cell(*row["values"][name]) for name in shown))
    new_console().print(table)


def _cell(mean: float, half: float) -> str:
    if mean != mean:
        return "-"
    return f"{mean:.3f}" if half != half else f"{mean:.3f} ±{half:.3f}".replace("±0.", "±.")


def _dry_run(points: list[Point], axes: tuple[Axis, ...]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (*(axis.key for axis in axes), "regimes", "rules", "seeds", "steps"):
        table.add_column(heading, justify="right")
    total = 0
    for point in points:
        train, rules = point.config.regimes[0].train, len(point.config.contenders)
        total += sum(rules * regime.train.seeds * regime.train.steps for regime in point.config.regimes)
        table.add_row(*(show(value) for value in point.at), str(len(point.config.regimes)), str(rules),
                      str(train.seeds), str(train.steps))
    new_console().print(table)
    new_console().print(f"{len(points)} points, {total} training steps in all")
