"""A progress bar for a person who waits."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SILENT = 2.0  # seconds before a bar appears


@contextmanager
def bar(title: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A bar on standard error, from SILENT seconds on, where that is a terminal. What it yields is called for each one.

    total: how many there are; None: nobody knows, and the number done is shown alone.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = Progress(TextColumn(title), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn(),
                     console=Console(stderr=True, highlight=False))
    task = shown.add_task("", total=total)
    timer = threading.Timer(SILENT, shown.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda: shown.advance(task)
    finally:
        timer.cancel()
        timer.join()
        shown.stop()
