"""What every command shows and notes down: the console, and the facts of a run that are not results."""

import platform
import sys
import time

from fade_sim import __version__


def new_console(stderr: bool = False):
    """A rich console: plain text, no markup."""
    from rich.console import Console

    # A pipe has no width of its own: keep tables readable instead of folded at 80.
    return Console(stderr=stderr, highlight=False, markup=False, width=None if sys.stdout.isatty() or stderr else 110)


def note(text: str) -> None:
    """What a person should know about how the input was read."""
    print(f"note: {text}", file=sys.stderr)


def meta(began: float, threads: int | None) -> dict:
    """Facts that may differ between two identical runs; nowhere else in the folder."""
    import matplotlib
    import numba
    import numpy

    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began)), "seconds": round(time.time() - began, 2),
        "threads": threads, "version": __version__, "python": platform.python_version(), "numpy": numpy.__version__,
        "numba": numba.__version__, "matplotlib": matplotlib.__version__, "machine": platform.machine(),
        "system": platform.system(),
    }
