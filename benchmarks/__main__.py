"""Every figure of speed in one run: `python -m benchmarks`."""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from benchmarks import timing

RESULTS = Path(__file__).resolve().parent / "results"
SECTIONS = {  # name -> (module, function)
    "steps": ("steps", "section"), "heads": ("heads", "section"), "advantages": ("weighing", "section"),
    "recording": ("runs", "recording"), "compile": ("runs", "compilation"), "warm": ("runs", "warm"),
    "scale": ("scale", "section"),
}


class Failed(Exception):
    """A check that must hold before anything is timed."""


@dataclass
class Options:
    """What the sections are told."""

    rounds: int
    seconds: float  # per cell and round
    quick: bool
    figure: Path | None  # where the scaling plot goes
    say: Callable[[str], None]  # a line for the reader; it is also in the report
    require: Callable  # a Check, passed or the end of the run
    jax: bool = False
    torch: bool = False


def arguments(argv: list[str] | None):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Ratios of CPU time, on one thread, interleaved in one process, "
        "against NumPy, JAX, torch, copies, matrix products and bounds. Correctness is checked first (exit code 1).")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per ratio, at least 1 (default 7; quick 3)")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, smaller arrays; no compile "
                        "section unless asked for; nothing is judged that needs the full size")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="report (default benchmarks/results/speed-N.md; "
                        "none with --quick or --only); scaling.png goes beside it")
    args = parser.parse_args(argv)
    if args.rounds is not None and args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}, expected at least 1")
    return args


def next_report() -> Path:
    n = 1
    while (RESULTS / f"speed-{n}.md").exists():
        n += 1
    return RESULTS / f"speed-{n}.md"


def optional(options: Options) -> None:
    """Load JAX and torch where they are; say so where not."""
    for name in ("jax", "torch"):
        try:
            import_module(f"benchmarks.contenders.{name}_step").load()
        except ImportError:
            options.say(f"{name} is not installed: its contenders are left out")
        else:
            setattr(options, name, True)


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    timing.one_thread()
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from benchmarks import checks, report

    names = args.only or [name for name in SECTIONS if not (args.quick and name == "compile")]
    out = args.out or (None if args.quick or args.only else next_report())
    said, done = [], []
    console = report.console(stderr=True)

    def say(line: str) -> None:
        said.append(line)
        console.print(line, soft_wrap=True)

    def require(check) -> None:
        done.append(check)
        if not check.passed:
            raise Failed(f"check failed: {check.what}: {check.found}")

    options = Options(args.rounds or (3 if args.quick else 7), 0.08 if args.quick else 0.25, args.quick,
                      out and out.with_name("scaling.png"), say, require)
    began, load, rows = time.time(), timing.load(), []
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    try:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("checks", total=len(names) + 1)
            optional(options)
            for check in checks.kernel_checks(args.quick):
                require(check)
            for name in names:
                progress.update(task, advance=1, description=name)
                module, function = SECTIONS[name]
                rows += getattr(import_module(f"benchmarks.{module}"), function)(options)
            progress.update(task, advance=1, description="done")
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    finished = report.Report(rows, done, said, options.rounds, options.seconds, load, timing.load(), began)
    report.show(finished)
    if out:
        report.write(finished, out)
        print(f"report: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
