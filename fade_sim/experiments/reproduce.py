"""`fade-sim reproduce`: run every experiment, score it, draw it, and write one report of all.

The folder holds cells/ (finished work), a PNG per claim, scores.json, report.html and meta.json. It
is meant to be come back to: the same command goes on where it was stopped. Everything but meta.json is
a function of the code alone.
"""

import hashlib
import json
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path

from fade_sim import __version__, config, experiments
from fade_sim.errors import InputError, nearest
from fade_sim.terminal import meta, new_console

try:
    import fcntl
except ImportError:  # Windows: no lock, so one process at a time
    fcntl = None


def command(args) -> None:
    """All experiments, or those named, in their order."""
    names = _names(args.names)
    mode = "quick" if args.quick else "full"
    if args.dry_run:
        _dry_run(names, mode)
        return
    from fade_sim import store

    out = store.resumable_folder(args.out or f"runs/reproduce-{mode}")
    began = time.time()
    scores = _Scores(out, mode)
    bar = _progress()
    with bar:
        tasks = {name: bar.add_task(name, total=None, what="waiting", start=False) for name in names}
        for name in names:
            _one(name, mode, scores, args.threads, bar, tasks[name])
    _write_meta(out, began, args.threads)
    _summary(scores.read(), names, out)


def _names(asked: list[str]) -> list[str]:
    for name in asked:
        if name not in experiments.NAMES:
            raise InputError(f"unknown experiment {name!r}{nearest(name, experiments.NAMES)}")
        if asked.count(name) > 1:
            raise InputError(f"experiment {name!r} is named twice")
    return [name for name in experiments.NAMES if name in asked or not asked]


def planned(name: str, mode: str) -> dict[str, config.Config]:
    """What an experiment will simulate, by the name shown in its progress; empty where nothing is simulated."""
    module = experiments.load(name)
    raws = module.configs(module.SETTINGS[mode]) if hasattr(module, "configs") else {}
    return {what: config.resolve({"name": "cell", **raw}, {}, what) for what, raw in raws.items()}


def _size(cfg: config.Config) -> tuple[int, int]:
    """(runs, steps) of a planned cell."""
    train = cfg.regimes[0].train
    runs = len(cfg.contenders) * train.seeds
    return runs, runs * train.steps


def _dry_run(names: list[str], mode: str) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", title=f"--{mode}: would run", title_justify="left")
    for heading, justify in (("experiment", "left"), ("regime", "left"), ("rules", "right"), ("seeds", "right"),
                             ("runs", "right"), ("steps", "right")):
        table.add_column(heading, justify=justify)
    total = [0, 0]
    for name in names:
        plan = planned(name, mode)
        table.add_row(name, "" if plan else "computed without the simulator's cells")
        for what, cfg in plan.items():
            runs, steps = _size(cfg)
            total = [total[0] + runs, total[1] + steps]
            table.add_row("", what, str(len(cfg.contenders)), str(cfg.regimes[0].train.seeds), str(runs), str(steps))
    table.add_section()
    table.add_row("all", "", "", "", *(str(n) for n in total))
    new_console().print(table)


def _progress():
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    return Progress(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
                    TextColumn("{task.fields[what]}"), console=new_console(stderr=True))


def _one(name: str, mode: str, scores: "_Scores", threads: int | None, bar, task) -> None:
    """Run, score, draw one experiment, and put it into the report."""
    from fade_sim.experiments.cells import Cells

    plan = {what: _size(cfg)[1] for what, cfg in planned(name, mode).items()}
    shares: dict[str, float] = {}

    def advance(what: str, share: float) -> None:
        shares[what] = share
        bar.update(task, completed=sum(plan.get(w, 0) * s for w, s in shares.items()), what=what)

    bar.start_task(task)
    bar.update(task, total=sum(plan.values()) or None, what="running")
    module = experiments.load(name)
    cells = Cells(scores.folder / "cells", threads, advance)
    results = module.run(module.SETTINGS[mode], cells)
    score = module.score(results)
    with scores.locked():
        module.figure(results, scores.folder / f"{name}.png")
        scores.add(name, module.CLAIM, score)
        cells.tidy()
    bar.update(task, total=1, completed=1, what=score.verdict)


class _Scores:
    """scores.json and the report drawn from it. Experiments of an earlier call stay in it, as long as the
    program is the same."""

    def __init__(self, folder: Path, mode: str):
        self.folder, self.mode, self.path = folder, mode, folder / "scores.json"
        self.source = _source()
        self.read()

    def read(self) -> dict:
        """What the file holds of this program, in the order of the experiments."""
        empty = {"mode": self.mode, "version": __version__, "source": self.source, "claims": {}}
        if not self.path.exists():
            return empty
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            mode, source, claims = found["mode"], found["source"], dict(found["claims"])
        except (OSError, ValueError, TypeError, KeyError):
            raise InputError(f"{self.path}: is not a file of scores; remove it") from None
        if mode != self.mode:
            raise InputError(f"{self.folder}: holds a --{mode} reproduction; give another --out, or --{mode}")
        if source != self.source:
            return empty
        return {**empty, "claims": {name: claims[name] for name in experiments.NAMES if name in claims}}

    def add(self, name: str, claim, score) -> None:
        from fade_sim import store
        from fade_sim.experiments.html import report

        scores = self.read()
        scores["claims"][name] = {"claim": asdict(claim), **asdict(score)}
        scores["claims"] = {n: scores["claims"][n] for n in experiments.NAMES if n in scores["claims"]}
        text = store.to_json(scores, indent=1) + "\n"
        figures = {n: (self.folder / f"{n}.png").read_bytes() for n in scores["claims"]}
        store.write_atomic(self.folder / "report.html", report(json.loads(text), figures).encode())
        store.write_atomic(self.path, text.encode())

    @contextmanager
    def locked(self):
        """One process at a time writes the report."""
        with (self.folder / ".lock").open("w") if fcntl is not None else nullcontext() as handle:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _source() -> str:
    """Hash of the program's text: scores of another program are not shown beside new ones."""
    root = Path(experiments.__file__).resolve().parent.parent
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(root.rglob("*.py")))).hexdigest()[:16]


def _write_meta(out: Path, began: float, threads: int | None) -> None:
    from fade_sim import store

    store.write_atomic(out / "meta.json", (store.to_json(meta(began, threads), indent=1) + "\n").encode())


def _summary(scores: dict, names: list[str], out: Path) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("claim", "verdict", "because"):
        table.add_column(heading)
    for name in names:
        entry = scores["claims"][name]
        under = "".join(f"\n- {condition}" for condition in entry["conditions"])
        table.add_row(f"{name}: {entry['claim']['title']}", entry["verdict"] + under, entry["because"])
    console = new_console()
    console.print(table)
    console.print(f"\nreport: {out / 'report.html'}\nscores: {out / 'scores.json'}", soft_wrap=True)
