"""Step time and memory of the trainer against TRL's GRPOTrainer: `python -m benchmarks.trainer --trl-python PATH`.

Same weights, prompts in the same order, group size, longest answer, learning rate, float32 and SGD,
every run in a process of its own on one thread. TRL has its own environment (`pip install "trl==1.16.*"`);
without it there is nothing to compare with, and that is said.
"""

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import timing
from benchmarks.timing import Row

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "trainer.md"
FIND = "import importlib.metadata as m; print(m.version('trl'))"
METHOD = (
    "Each run is a process of its own on one torch thread; runs alternate, this trainer and TRL in every round. A "
    "step is everything from the end of one optimiser step to the end of the next: prompts, sampling, verifier, "
    "advantages, loss, gradient, update, and here also a line of metrics (TRL: logging off). The first steps are not "
    "timed. The number of a run is the median over its steps; the ratio is the median over rounds of the ratio within "
    "a round. Memory: peak resident size from getrusage, of the whole process, and what it "
    "is above the peak just before the first step (imports and weights). "
    "Both: SGD, lr {lr:g}, float32, {prompts} prompts x {group_size} rollouts a step, answers of at most {max_tokens} "
    "tokens, temperature 1, dr_grpo with a constant denominator, no KL term, no checkpoint."
)


class Model(NamedTuple):
    """A model from `fade-llm pretrain`."""

    said: str
    pretrain: dict
    warm: int
    steps: int


MODELS = {
    "tiny": Model("100k parameters (d 64, 2 layers), 400 steps old", {"steps": 400}, 3, 30),
    "small": Model("0.8M parameters (d 128, 4 layers), 100 steps old", {
        "steps": 100, "check_every": 100, "hidden": 128, "layers": 4, "intermediate": 352}, 2, 8),
}


class Failed(Exception):
    """A run or a check that failed."""


def arguments(argv: list[str] | None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainer", description=__doc__.partition("\n")[0])
    parser.add_argument("--trl-python", type=Path, metavar="PATH",
                        help="interpreter of an environment with TRL (default: this one)")
    parser.add_argument("--rounds", type=int, metavar="N", help="runs of each (default 5; quick 1)")
    parser.add_argument("--only", choices=MODELS, help="this model alone")
    parser.add_argument("--quick", action="store_true", help="one round, few steps, the tiny model 30 steps old")
    parser.add_argument("--out", type=Path, metavar="FILE.md",
                        help="report (default benchmarks/results/trainer.md; none with --quick or --only)")
    args = parser.parse_args(argv)
    if args.rounds is not None and args.rounds < 1:
        parser.error(f"--rounds is {args.rounds}, expected at least 1")
    return args


def trl_version(python: Path) -> str | None:
    """Version of TRL in the environment of an interpreter; None where it has none."""
    try:
        done = subprocess.run([python, "-c", FIND], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def transformers() -> str:
    return importlib.metadata.version("transformers")


def child(command: list) -> str:
    """stdout of a process on one thread, without a network."""
    one = {name: "1" for name in timing.THREADS}
    env = {**os.environ, **one, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "CUDA_VISIBLE_DEVICES": "",
           "PYTHONPATH": str(ROOT)}
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command[1:4]))}: {(done.stderr or done.stdout).strip()[-2000:]}")
    return done.stdout


def last_line(text: str):
    return json.loads(text.strip().splitlines()[-1])


def prepare(name: str, model: Model, quick: bool, folder: Path) -> Path:
    """A model folder and the job that both trainers read; returns the path of the job."""
    settings = {**model.pretrain, **({"steps": 30, "check_every": 30} if quick else {})}
    options = [x for key, value in settings.items() for x in (f"--pretrain.{key}", value)]
    child([sys.executable, "-m", "llm.cli", "pretrain", "--out", folder / name, *options])
    job = {"model": str(folder / name), "prompts": 32, "group_size": 8, "max_tokens": 8, "lr": 0.1, "seed": 0,
           "warm": 2 if quick else model.warm, "steps": 3 if quick else model.steps}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(job))
    job["problems"] = last_line(child([sys.executable, "-m", "benchmarks.trainer_run", "problems", path]))
    path.write_text(json.dumps(job))
    return path


def check(path: Path, python: Path) -> list[tuple[str, bool, str]]:
    """TRL's first batch, weighed and learned from by this trainer; raises Failed where they differ."""
    job = json.loads(path.read_text())
    dumping = path.with_suffix(".check.json")
    dumping.write_text(json.dumps({**job, "dump": str(path.with_suffix(".pt"))}))
    child([python, "-m", "benchmarks.contenders.trl_trainer", dumping])
    found = last_line(child([sys.executable, "-m", "benchmarks.trainer_run", "check", dumping]))
    for what, passed, said in found:
        if not passed:
            raise Failed(f"check failed: {what}: {said}")
    return found


def rows_of(name: str, model: Model, ours: list[dict], theirs: list[dict]) -> list[Row]:
    """Ratios round by round; ours over TRL's."""

    def each(pick) -> tuple[list[float], list[float]]:
        return [pick(run) for run in ours], [pick(run) for run in theirs]

    def row(what: str, pick, scale: float, unit: str, goal: float | None = None) -> Row:
        mine, other = each(pick)
        note = f"{scale * median(mine):.3g} {unit}, TRL {scale * median(other):.3g} {unit}"
        return Row(name, f"{name}: {what}, this trainer / TRL", [a / b for a, b in zip(mine, other, strict=True)],
                   goal, goal, note=note)

    return [
        row("CPU time of a step", lambda run: median(run["cpu"]), 1e3, "ms", goal=1.0),
        row("wall time of a step", lambda run: median(run["wall"]), 1e3, "ms"),
        row("peak memory of the process", lambda run: run["peak"], 2**-20, "MiB"),
        row("peak memory above that before step 1", lambda run: max(run["peak"] - run["before"], 1), 2**-20, "MiB"),
    ]


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    python = args.trl_python or Path(sys.executable)
    version = trl_version(python)
    if version is None:
        print(f"TRL is not installed for {python}: nothing to compare with, skipped. Make an environment with "
              'pip install "trl==1.16.*" and name its interpreter with --trl-python', file=sys.stderr)
        return 2 if args.trl_python else 0
    rounds = args.rounds or (1 if args.quick else 5)
    began, load, rows, checks, said = time.time(), timing.load(), [], [], []
    names = [args.only] if args.only else ["tiny"] if args.quick else list(MODELS)
    job: dict = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                print(f"{name}: model, checks", file=sys.stderr)
                path = prepare(name, MODELS[name], args.quick, Path(folder))
                checks += [(f"{name}: {what}", *rest) for what, *rest in check(path, python)]
                ours, theirs = [], []
                for i in range(rounds):
                    print(f"{name}: round {i + 1} of {rounds}", file=sys.stderr)
                    ours.append(last_line(child([sys.executable, "-m", "benchmarks.trainer_run", "time", path])))
                    theirs.append(last_line(child([python, "-m", "benchmarks.contenders.trl_trainer", path])))
                rows += rows_of(name, MODELS[name], ours, theirs)
                job = json.loads(path.read_text())
                solved = (f"{sum(runs[0]['solved']) / len(runs[0]['solved']):.3f}" for runs in (ours, theirs))
                said.append(f"{name}: {MODELS[name].said if not args.quick else '30 steps old'}; {job['warm']} steps "
                            f"before {job['steps']} timed ones; mean solve rate of its steps {next(solved)} here, "
                            f"{next(solved)} in TRL")
    except Failed as error:
        print(error, file=sys.stderr)
        return 1
    said.append(f"here transformers {transformers()}; TRL's environment: "
                + ", ".join(f"{k} {v}" for k, v in theirs[0]["versions"].items()))
    from benchmarks import report  # not before: a child's peak memory starts from its parent's
    from benchmarks.checks import Check

    found = report.Report(rows, [Check(*one) for one in checks], said, rounds, None, load, timing.load(), began,
                          "Trainer", METHOD.format(**job))
    report.show(found)
    out = args.out or (None if args.quick or args.only else RESULT)
    if out:
        report.write(found, out)
        print(f"report: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
