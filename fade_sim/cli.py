"""Argument parsing only: nothing heavy is imported before a command is known to be well formed."""

import argparse
import os
import signal
import sys
import threading

from fade_sim import __version__
from fade_sim.errors import InputError, nearest

COMMANDS = ("run", "reproduce", "sweep", "configs", "methods", "weights", "replay")
RESUMED = ("reproduce", "sweep")  # the same command goes on where it was stopped


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors."""

    def error(self, message: str):
        raise InputError(f"{message} (see {self.prog} --help)")


def build_parser() -> Parser:
    parser = Parser(prog="fade-sim", allow_abbrev=False, description=(
        "Policy-gradient weights in RL with verifiable rewards: simulate, compare, replay."))
    parser.add_argument("--version", action="version", version=f"fade-sim {__version__}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)

    run = sub.add_parser("run", allow_abbrev=False, help="compare rules under the same dynamics; writes a run folder",
                         description="Compare rules under the same dynamics: progress, a table, a run folder with "
                         "a figure. Any setting: --section.key value, e.g. --train.lr 20 --method.name power.")
    run.add_argument("config", nargs="?",
                     help="TOML file or name of a shipped config, see fade-sim configs (default: the main job)")
    run.add_argument("--seeds", type=_count, help="number of seeds (worlds and samples)")
    run.add_argument("--out", help="run folder to create (default: runs/<name>-<n>)")
    run.add_argument("--solve-rates", metavar="FILE", help="recorded rollouts that set the initial solve rates")
    run.add_argument("--threads", type=_count, help="worker threads (default: all cores; results do not depend on it)")
    run.add_argument("--quick", action="store_true", help="3 seeds and a fifth of the steps, unless given")
    run.add_argument("--dry-run", action="store_true", help="print the resolved config and stop")

    reproduce = sub.add_parser("reproduce", allow_abbrev=False, help="test the claims: scores, figures, one report",
                               description="Run every experiment, score its claim, draw it, and write report.html. "
                               "A stopped call goes on where it was.")
    reproduce.add_argument("names", nargs="*", metavar="NAME", help="experiments (default: all, in order)")
    size = reproduce.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="few seeds, in minutes")
    size.add_argument("--full", action="store_true", help="all seeds (the default)")
    reproduce.add_argument("--out", help="folder, new or to resume (default: runs/reproduce-full or -quick)")
    reproduce.add_argument("--threads", type=_count, help="worker threads (default: all cores)")
    reproduce.add_argument("--dry-run", action="store_true", help="list what would run and stop")

    sweep = sub.add_parser("sweep", allow_abbrev=False, help="a config over a grid of settings",
                           description="A config over a grid of settings: a table, a heat map, results.csv. Finished "
                           "points are never run again. Any setting: --section.key value.")
    sweep.add_argument("config", nargs="?", help="TOML file or name of a shipped config (default: the main job)")
    sweep.add_argument("--grid", action="append", metavar="KEY=V,V,...",
                       help="swept setting, e.g. method.delta=.3,.5,1; up to three times")
    sweep.add_argument("--metric", default="test_pass@1", help="what the picture shows (default test_pass@1)")
    sweep.add_argument("--seeds", type=_count, help="number of seeds (worlds and samples)")
    sweep.add_argument("--out", help="folder, new or to resume (default: runs/sweep-<name>-<axes>)")
    sweep.add_argument("--threads", type=_count, help="worker threads (default: all cores)")
    sweep.add_argument("--quick", action="store_true", help="3 seeds and a fifth of the steps, unless given")
    sweep.add_argument("--dry-run", action="store_true", help="list the points and stop")

    sub.add_parser("configs", allow_abbrev=False, help="list the shipped configs")

    methods = sub.add_parser("methods", allow_abbrev=False, help="list every rule, or describe one")
    methods.add_argument("name", nargs="?", help="a method: which GRPO is this?")

    weights = sub.add_parser("weights", allow_abbrev=False, help="table, masses, slope and peak of a rule",
                             description="Weights of a rule by number of successes, its masses, slope and peak. "
                             "Parameters of the rule: --alpha 3, --delta .5, ...")
    weights.add_argument("name", nargs="?", help="a method, or module:function of your own (rewards of a group in, "
                         "advantages out)")
    weights.add_argument("--all", action="store_true", help="one picture of every rule: masses, sign ratio, peaks")
    weights.add_argument("--group-size", type=_group_size, default=8, help="rollouts per prompt (default 8)")
    weights.add_argument("--figure", metavar="PNG", help="where to draw it (default: weights-NAME-GSIZE.png)")

    replay = sub.add_parser("replay", allow_abbrev=False, help="recorded rollouts under every rule",
                            description="Recorded rollouts (JSONL, CSV, or what verl, TRL, prime-rl and open-instruct "
                            "write) under every rule: solve rates, uniform groups, masses, sign ratio, mass by "
                            "difficulty, pass@k with intervals, FADE's gains.")
    replay.add_argument("file", metavar="PATH", help="JSONL or CSV file, name of a shipped recording, or a folder or "
                        "file of an engine's rollouts")
    replay.add_argument("--format", metavar="NAME",
                        help="verl, trl, prime-rl, open-instruct, rollouts (default: recognised)")
    replay.add_argument("--reward", metavar="FIELD", help="field of the reward (default: the engine's own)")
    replay.add_argument("--threshold", type=float, metavar="T",
                        help="rewards of at least T are successes (default: rewards are 0 or 1)")
    replay.add_argument("--group-size", type=_group_size, help="training group size (default: as recorded, at most 16)")
    replay.add_argument("--method", action="append", metavar="RULE",
                        help="only this rule: power, 'power(3)', module:function; may be repeated")
    replay.add_argument("--h-star", type=float, metavar="NATS", help="FADE's target entropy (default: half the first)")
    replay.add_argument("--figure", metavar="PNG", help="also draw it")
    replay.add_argument("--json", metavar="FILE", help="also write the numbers")
    parser.choices = sub.choices
    return parser


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of at least 1")
    return value


def _group_size(text: str) -> int:
    value = _count(text)
    if value > 4096:
        raise argparse.ArgumentTypeError(f"{text} is above 4096, the largest group that is tabulated")
    return value


def split_options(argv: list[str], wanted) -> tuple[list[str], dict[str, str]]:
    """Take `--key value` and `--key=value` out of argv for every key that `wanted` accepts."""
    rest, taken, i = [], {}, 0
    while i < len(argv):
        token = argv[i]
        key, equals, value = token[2:].partition("=") if token.startswith("--") else ("", "", "")
        if key and wanted(key):
            if not equals:
                i += 1
                if i == len(argv):
                    raise InputError(f"--{key} needs a value")
                value = argv[i]
            if key in taken:
                raise InputError(f"--{key} is given twice")
            taken[key] = value
        else:
            rest.append(token)
        i += 1
    return rest, taken


def parse(argv: list[str]):
    """(arguments, free options): dotted overrides of `run` and `sweep`, rule parameters of `weights`."""
    parser = build_parser()
    command = argv[0] if argv else ""
    if command and not command.startswith("-") and command not in COMMANDS:
        raise InputError(f"unknown command {command!r}{nearest(command, COMMANDS)}")
    free: dict[str, str] = {}
    if command in ("run", "sweep"):
        argv, free = split_options(argv, lambda key: "." in key)
    elif command == "weights":
        argv, free = split_options(argv, lambda key: key not in ("group-size", "figure", "help", "all"))
    given = [token.partition("=")[0] for token in argv if token.startswith("--")]
    twice = [name for name in given if given.count(name) > 1 and name not in ("--method", "--grid")]
    if twice:
        raise InputError(f"{command}: {twice[0]} is given twice")
    args, extra = parser.parse_known_args(argv)
    if extra:
        known = parser.choices[command]._option_string_actions if command in parser.choices else {}
        kind = "option" if extra[0].startswith("-") else "argument"
        hint = nearest(extra[0].partition("=")[0], known) if kind == "option" else ""
        raise InputError(f"{command}: unknown {kind} {extra[0]!r}{hint}")
    return args, free


def main(argv: list[str] | None = None) -> int:
    """Entry point of `fade-sim`. Bad input: one line on stderr and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? and loses nothing
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave as on Ctrl-C: nothing half-written
    if not argv:
        argv = ["--help"]
    try:
        args, free = parse(argv)
        from fade_sim import jobs

        return getattr(jobs, args.command)(args, free) or 0
    except InputError as error:
        print(f"fade-sim: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        left = "no half-written folder is left"
        if argv[0] in RESUMED:
            left = "what is finished is kept: the same command goes on from there"
        print(f"fade-sim: interrupted; {left}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone (`| head`): not an error
        return 0
    except OSError as error:
        print(f"fade-sim: error: {error.filename or 'output'}: {error.strerror or error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("fade-sim: error: not enough memory for these sizes", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
