"""`fade-llm`: argument parsing only."""

import sys

from fade_sim import __version__
from fade_sim.cli import Parser
from fade_sim.errors import InputError


def main(argv: list[str] | None = None) -> int:
    """Entry point. Bad input: one line on stderr and exit code 2."""
    parser = Parser(prog="fade-llm", allow_abbrev=False, description=(
        "The language-model side of the same configs. It can check a config; training is not here yet."))
    parser.add_argument("--version", action="version", version=f"fade-llm {__version__}")
    sub = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=Parser)
    check = sub.add_parser("check", allow_abbrev=False,
                           help="read the [method] and [controller] of a config as the trainer will")
    check.add_argument("config", help="TOML file or name of a shipped config, the same as for fade-sim run")
    argv = sys.argv[1:] if argv is None else argv
    try:
        args = parser.parse_args(argv or ["--help"])
        from llm.config import check_config

        print(check_config(args.config))
        return 0
    except InputError as error:
        print(f"fade-llm: error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
