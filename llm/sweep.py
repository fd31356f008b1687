"""Every rule of a config under every regime, several seeds: runs side by side, resumable as a whole."""

import json
import math
import sys
from pathlib import Path

import numpy as np

from fade_sim.errors import InputError
from fade_sim.store import to_json, write_atomic
from llm import config, jobs, parallel

PLAN = "runs.json"  # in the folder of a sweep: every run it asks for, in the order of the config
_SHOWN = (  # heading, and where it is in a summary
    ("train p@1", ("eval", "train", "pass@1", "mean")), ("held-out p@1", ("eval", "held_out", "pass@1", "mean")),
    ("entropy", ("entropy",)), ("rank-1", ("rank1",)), ("sign ratio", ("sign_ratio",)),
)


def run(source: str, overrides: dict, seeds: int, out: Path, dry_run: bool = False, limit: int | None = None,
        ) -> list[dict]:
    """Run what is missing, print the table, write sweep.json; returns its rows, one per rule and regime.

    Runs of one seed share prompts and random numbers: differences between rules are paired. All rules and
    regimes of a seed come before the next seed. limit: runs to finish in this call; where others are then
    missing, there is no table yet and the result is empty. Raises InputError where `out` holds a sweep
    with other settings.
    """
    cells = []
    for i in range(seeds):
        for regime, rule in config.cells(source, overrides):
            settings = config.load(source, overrides, rule=rule, regime=regime)
            seed = settings.train.seed + i
            path = settings.model.path.replace("{seed}", str(seed))
            own = {**overrides, "train.seed": seed, "model.path": path}
            settings = config.load(source, own, rule=rule, regime=regime)
            cells.append((out / _plain(regime) / _plain(rule) / f"seed-{seed}", settings))
    if dry_run:
        for folder, settings in cells:
            print(f"{folder}: {settings.train.steps} steps, {_state(folder)}")
        return []
    ranks = parallel.start()
    done = 0
    if ranks.rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        plan = [{"folder": str(folder.relative_to(out)), "regime": s.regime, "rule": s.contender.label,
                 "seed": s.train.seed} for folder, s in cells]
        write_atomic(out / PLAN, (to_json(plan, indent=1) + "\n").encode())
    try:
        for i, (folder, settings) in enumerate(cells):
            state = ranks.gather(_state(folder))[0]
            if state != "new" and config.load(folder / "config.toml").raw != settings.raw:
                raise InputError(f"{folder}: was run with other settings; give another --out")
            if state != "complete":
                if done == limit:
                    if ranks.rank == 0:
                        complete = sum(_state(folder) == "complete" for folder, _ in cells)
                        print(f"{complete} of {len(cells)} runs are complete; the same command goes on")
                    return []
                done += 1
                if ranks.rank == 0:
                    print(f"{i + 1} of {len(cells)}: {folder}")
                jobs.run_training(settings, folder if state == "started" else None, str(folder), ranks)
        rows = summarise(cells)
        if ranks.rank == 0:
            write_atomic(out / "sweep.json", (to_json(rows, indent=1) + "\n").encode())
            print_rows(rows)
        return rows
    finally:
        ranks.close(failed=sys.exc_info()[0] is not None)


def summarise(cells) -> list[dict]:
    """Mean and standard error over seeds, per regime and rule; absent where a run has no such number."""
    found: dict = {}
    for folder, settings in cells:
        summary = json.loads((folder / "summary.json").read_text())
        found.setdefault((settings.regime, settings.contender.label), []).append(summary)
    rows = []
    for (regime, rule), summaries in found.items():
        row: dict = {"regime": regime, "rule": rule, "seeds": len(summaries)}
        for heading, keys in _SHOWN:
            values = [v for v in (_at(s, keys) for s in summaries) if v is not None]
            error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None
            row[heading] = {"mean": float(np.mean(values)) if values else None, "error": error, "count": len(values)}
        rows.append(row)
    return rows


def print_rows(rows: list[dict]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("regime", "rule", *(h for h, _ in _SHOWN)):
        table.add_column(heading, justify="left" if heading in ("regime", "rule") else "right")
    for row in rows:
        cells = []
        for heading, _ in _SHOWN:
            got = row[heading]
            shown = "-" if got["mean"] is None else f"{got['mean']:.3f}"
            cells.append(shown if got["error"] is None else f"{shown} ±{got['error']:.3f}")
        table.add_row(row["regime"], row["rule"], *cells)
    Console(highlight=False, width=110).print(table)
    print("±: one standard error over seeds; all at the last step")


def _at(summary: dict, keys):
    for key in keys:
        summary = summary.get(key) if isinstance(summary, dict) else None
    return summary


def _state(folder: Path) -> str:
    if (folder / "summary.json").is_file():
        return "complete"
    return "started" if (folder / "config.toml").is_file() else "new"


def _plain(name: str) -> str:
    """A name that any file system takes."""
    return "".join(c if c.isalnum() or c in "._=-" else "_" for c in name).strip("_")
