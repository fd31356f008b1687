"""What each command does. Heavy imports happen inside, after the input has been checked."""

import os
import platform
import sys
import time
from itertools import chain
from pathlib import Path

from fade_sim import __version__, store
from fade_sim import config as shared
from fade_sim.errors import InputError, nearest
from llm import config


def check(args, free: dict[str, str]) -> None:
    """A line per rule, and the trainer's sections."""
    print(config.check_config(args.config))


# --- pretrain ------------------------------------------------------------------------------------------


def pretrain(args, free: dict[str, str]) -> None:
    """Train the small transformer from scratch; writes a Hugging Face folder with pretrain.json."""
    settings = config.load(args.config or "tiny", _overrides(free), alone=True)
    if args.dry_run:
        _print_toml({"pretrain": settings.raw["pretrain"], "data": settings.raw["data"]})
        return
    from llm import policy as policies
    from llm.data import problems
    from llm.pretrain import new_policy
    from llm.pretrain import pretrain as run

    with store.run_folder(args.out, "base") as (folder, final):
        policy, tokenizer = new_policy(settings.pretrain)
        roller = _roller(settings, policy, tokenizer)
        with _bar("pretraining", settings.pretrain.steps) as advance:
            result = run(settings.pretrain, settings.data, problems(settings.data), policy, roller,
                         settings.parallel.chunk,
                         lambda step, loss, rate: advance(step, f"loss {loss:.3f}, solve rate {rate:.3f}"))
        policies.export(policy, tokenizer, folder, policy.model.state_dict())
        (folder / "pretrain.json").write_text(store.to_json(result) + "\n")
    print(f"mean solve rate of the training prompts {result['solve_rate']:.3f} after {result['steps']} steps\n"
          f"model: {final}")


def import_model(args, free: dict[str, str]) -> None:
    """A GGUF file as a Hugging Face folder."""
    from llm import gguf

    file = gguf.locate(args.source)
    with store.run_folder(args.out, args.out) as (folder, final):
        print(f"reading {file.name}", file=sys.stderr)
        count = gguf.convert(file, folder)
    print(f"{count:,} parameters, float32\nmodel: {final}")


# --- train ---------------------------------------------------------------------------------------------


def train(args, free: dict[str, str]) -> None:
    """Reinforcement learning; writes a run folder, or continues one."""
    if args.resume:
        if args.config or free or args.out or args.rule or args.regime:
            raise InputError("--resume takes the settings of the run it continues: give nothing beside it")
        from llm import runfolder

        folder = runfolder.resumable(args.resume)
        settings = config.load(folder / "config.toml")
    else:
        folder, settings = None, config.load(args.config or "tiny", _overrides(free), rule=args.rule,
                                             regime=args.regime)
        _notes(settings)
    if args.dry_run:
        from llm.plan import plan

        _print_toml(settings.raw)
        print(plan(settings, int(os.environ.get("WORLD_SIZE", args.ranks or 1))))
        return
    from llm import parallel

    ranks = parallel.start()
    try:
        folder, summary = run_training(settings, folder, args.out, ranks)
        if ranks.rank == 0:
            _print_eval(settings.contender.label, summary["eval"])
            print(f"folder: {folder}")
    finally:
        ranks.close(failed=sys.exc_info()[0] is not None)


def run_training(settings, folder: Path | None, out: str | None, ranks) -> tuple[Path, dict]:
    """Train in a new folder, or go on in `folder`; returns (folder, summary)."""
    import tomli_w

    from llm import checkpoint, runfolder
    from llm.data import problems
    from llm.reward import Silence, check_answers

    began = time.time()
    policy, tokenizer, reference = _policies(settings, ranks)
    roller = _roller(settings, policy, tokenizer, ranks)
    from llm.trainer import Trainer

    split = problems(settings.data)
    check_answers(roller.verifier, [p.answer for p in (*split.train, *chain(*split.evaluation.values()))])
    trainer = Trainer(settings, policy, roller, split, ranks, reference)
    if folder is None:
        text = tomli_w.dumps(settings.raw).encode()
        made = runfolder.create(out, settings.name, text) if ranks.rank == 0 else None
        folder = ranks.gather(made)[0]
    lock = runfolder.claim(folder) if ranks.rank == 0 else None
    kept = checkpoint.load(trainer, folder)
    metrics = runfolder.Metrics(folder, kept) if ranks.rank == 0 else None
    events = _events(settings, folder, ranks)
    with _bar(settings.contender.label, settings.train.steps, quiet=ranks.rank > 0, start=trainer.step) as advance:
        last: dict = {}
        silence = Silence()
        shown: dict = {}  # the newest value of everything: evaluations are rarer than steps

        def record(row: dict) -> None:
            last.clear()
            last.update(row)
            shown.update(row)
            if metrics is not None:
                metrics.write(row)
                events(row)
            advance(row["step"], _headline(shown))
            if ranks.rank == 0 and (said := silence.says(row)):
                print(f"note: {said}", file=sys.stderr)

        trainer.run(record, lambda: checkpoint.save(trainer, folder, metrics.sync() if metrics else 0))
    checkpoint.export(trainer, tokenizer, folder / "model")
    summary = {"rule": settings.contender.label, "regime": settings.regime, "steps": trainer.step, **last}
    if ranks.rank == 0:
        meta = _meta(began, ranks) | {"verdicts": getattr(roller.verifier, "counts", None)}
        store.write_atomic(folder / "meta.json", (store.to_json(meta, indent=1) + "\n").encode())
        store.write_atomic(folder / "summary.json", (store.to_json(summary, indent=1) + "\n").encode())
        os.close(lock)
    ranks.barrier()
    return folder, summary


def _policies(settings, ranks):
    """(policy, tokenizer, reference or None), on their device and sharded."""
    import msgspec

    from llm import parallel
    from llm import policy as policies

    policy, tokenizer = policies.load(settings.model)
    reference = None
    if settings.loss.kl != "none":
        reference = policies.load(msgspec.structs.replace(settings.model, lora_rank=0))[0]
        reference.requires_grad_(False)
    for one in filter(None, (policy, reference)):
        one.to(ranks.device)
        if settings.parallel.activation_checkpointing and one is policy:
            one.checkpoint_activations()
        parallel.shard(one, ranks)
    return policy, tokenizer, reference


def _roller(settings, policy, tokenizer, ranks=None):
    from llm.reward import make_verifier
    from llm.rollout import Roller, make_sampler, stop_tokens

    stop = stop_tokens(policy, tokenizer, settings.rollout.stop)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else stop[0]
    sampler = make_sampler(settings, stop, pad, ranks)
    return Roller(sampler, tokenizer, make_verifier(settings.reward), stop, pad)


def sweep(args, free: dict[str, str]) -> None:
    """Every rule under every regime, several seeds; the same command again goes on where it stopped."""
    from llm import sweep as sweeps

    sweeps.run(args.config, _overrides(free), args.seeds, Path(args.out), args.dry_run, args.limit)


def compare(args, free: dict[str, str]) -> None:
    """A picture of a sweep beside the simulator's, and a table of where they agree in sign."""
    from llm import compare as comparison

    out = Path(args.out)
    if out.suffix not in (".png", ".pdf", ".svg"):
        raise InputError(f"--out is {args.out!r}, expected a .png, .pdf or .svg; the table goes beside it as .md")
    for line in comparison.run(Path(args.sweep), Path(args.sim) if args.sim else None, out):
        print(line)


# --- eval, spectrum ------------------------------------------------------------------------------------


def _finished(args, free: dict[str, str]):
    """Settings of a model folder or of a finished run."""
    folder = Path(args.folder)
    run = (folder / "config.toml").is_file()
    path = folder / "model" if run else folder
    if run and not path.is_dir():
        raise InputError(f"{folder}: this run is not complete, it has no model yet")
    return config.load(args.config or (folder / "config.toml" if run else "tiny"),
                       {**_overrides(free), "model.path": str(path), "model.lora_rank": 0}, alone=True)


def rollout(args, free: dict[str, str]) -> None:
    """Record rollouts of a model, for `fade-sim replay`."""
    import json

    settings, out = _finished(args, free), Path(args.out)
    if out.suffix != ".jsonl":
        raise InputError(f"--out is {args.out!r}, expected a .jsonl file")
    if out.exists():
        raise InputError(f"{out}: already exists")
    from llm.data import problems
    from llm.evaluate import record
    from llm.parallel import Ranks

    split = problems(settings.data)
    sets = {"all_train": split.train, **split.evaluation}
    if args.set not in sets:
        raise InputError(f"unknown --set {args.set!r}{nearest(args.set, sets)}")
    policy, tokenizer, _ = _policies(settings, Ranks())
    asked, lines, solved, judged = sets[args.set], [], 0, 0
    with _bar("recording", len(asked)) as advance:
        for row in record(policy, _roller(settings, policy, tokenizer), asked, args.group_size, settings.train.seed):
            lines.append(json.dumps(row))
            solved, judged = solved + sum(row["rewards"]), judged + len(row["rewards"])
            advance(len(lines), f"solve rate {solved / judged:.3f}")
    if not lines:
        raise InputError("no rollout could be judged: there is nothing to record")
    store.write_atomic(out, ("\n".join(lines) + "\n").encode())
    print(f"{len(lines)} prompts, {judged} rollouts, solve rate {solved / judged:.3f}: {out}")


def evaluate(args, free: dict[str, str]) -> None:
    """pass@k of a model folder or a finished run."""
    settings = _finished(args, free)
    from llm.data import problems
    from llm.evaluate import evaluate as run_eval
    from llm.parallel import Ranks
    from llm.reward import check_answers

    policy, tokenizer, _ = _policies(settings, Ranks())
    roller, sets = _roller(settings, policy, tokenizer), problems(settings.data).evaluation
    check_answers(roller.verifier, [p.answer for p in chain(*sets.values())])
    got = run_eval(policy, roller, sets, settings.data, Ranks(), settings.train.seed)
    _print_eval(args.folder, got)
    if args.json:
        store.write_atomic(Path(args.json), (store.to_json(got, indent=1) + "\n").encode())


def spectrum(args, free: dict[str, str]) -> None:
    """Spectrum of the difference of two checkpoints, matrix by matrix."""
    from llm.spectrum import print_spectrum

    print_spectrum(Path(args.before), Path(args.after), args.json)


def judge(args, free: dict[str, str]) -> int:
    """A person's own programs on their problems."""
    from llm.judge import command
    from llm.judge.limits import Limits

    limits = Limits(args.cpu_seconds, args.wall_seconds, args.memory_mb, args.processes)
    return command.run(Path(args.file), limits, args.slots, unsafe_local=args.unsafe_local, dry_run=args.dry_run,
                       out=args.json)


def data(args, free: dict[str, str]) -> None:
    """Problems of a public data set, converted."""
    from llm.datasets import convert
    from llm.datasets.cases import Ask

    settings = {}
    for text in args.set:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--set is {text!r}, expected KEY=VALUE")
        settings[key] = shared.parse_value(value)
    convert.run(args.source, args.path, Path(args.out), Ask(args.tests, args.keep_doubtful),
                dates=convert.window(args.window) if args.window is not None else None, limit=args.limit,
                size=args.size, seed=args.seed, settings=settings)


def overlap(args, free: dict[str, str]) -> int:
    """Problems for evaluation inside a training file."""
    from llm.datasets import leaks

    return leaks.run(Path(args.train), [Path(p) for p in args.test], args.ngram, args.share,
                     Path(args.clean) if args.clean else None)


def graduate(args, free: dict[str, str]) -> None:
    """The plan of a 7B or 32B run, and the files of the engine that runs it."""
    from llm.graduate import command

    command.run(args, _overrides(free))


# --- what they share -----------------------------------------------------------------------------------


def _overrides(free: dict[str, str]) -> dict:
    return {key: shared.parse_value(value) for key, value in free.items()}


def _notes(settings) -> None:
    for note in settings.notes:
        print(f"note: {note}", file=sys.stderr)


def _print_toml(raw: dict) -> None:
    import tomli_w

    print(tomli_w.dumps(raw), end="")


class _bar:
    """A progress bar on stderr with the few numbers that matter."""

    def __init__(self, title: str, total: int, quiet: bool = False, start: int = 0):
        self.title, self.total, self.quiet, self.start = title, total, quiet, start

    def __enter__(self):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(),
                   TextColumn("{task.fields[said]}"), TimeRemainingColumn())
        self.progress = Progress(*columns, console=Console(stderr=True, highlight=False), disable=self.quiet)
        self.progress.start()
        task = self.progress.add_task(self.title, total=self.total, completed=self.start, said="")
        return lambda step, said: self.progress.update(task, completed=step, said=said)

    def __exit__(self, *error):
        self.progress.stop()


def _headline(row: dict) -> str:
    shown = [f"solve {row['solve_rate']:.2f}, H {row['entropy']:.2f}"] if "solve_rate" in row else []
    if "pass@1" in row.get("eval", {}).get("held_out", {}):
        shown.append(f"held-out p@1 {row['eval']['held_out']['pass@1']['mean']:.2f}")
    if row.get("Lambda") is not None:
        shown.append(f"Lambda {row['Lambda']:.2f}{' ALARM' if row['alarm'] else ''}")
    return ", ".join(shown)


def _print_eval(title: str, got: dict) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}: pass@k, 95% interval by prompt", title_justify="left", box=None, pad_edge=False)
    keys = [k for k in next(iter(got.values())) if k.startswith("pass@")]
    for heading in ("problems", *keys, "entropy", "length"):
        table.add_column(heading, justify="left" if heading == "problems" else "right")
    for name, row in got.items():
        cells = [f"{row[k]['mean']:.3f} [{row[k]['low']:.3f}, {row[k]['high']:.3f}]" for k in keys]
        table.add_row(name.replace("_", " "), *cells, f"{row['entropy']:.3f}", f"{row['length']:.2f}")
    Console(highlight=False, width=None if sys.stdout.isatty() else 110).print(table)


def _events(settings, folder: Path, ranks):
    """A writer of TensorBoard event files, if asked for."""
    if not settings.probe.events or ranks.rank:
        return lambda row: None
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise InputError("probe.events needs the package tensorboardX: pip install tensorboardX") from None
    writer = SummaryWriter(str(folder / "events"))

    def write(row: dict) -> None:
        for key, value in row.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
                writer.add_scalar(key, value, row["step"])

    return write


def _meta(began: float, ranks) -> dict:
    """Facts that may differ between two identical runs; nowhere else in the folder."""
    import torch
    import transformers

    return {
        "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "seconds": round(time.time() - began, 2),
        "processes": ranks.size, "device": ranks.device, "version": __version__, "python": platform.python_version(),
        "torch": torch.__version__, "transformers": transformers.__version__, "machine": platform.machine(),
    }
