"""The one error that a person can cause: bad input, said in one line."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input from outside. Its message is one line: what, where, what was expected."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known name, or the list of all when none is close."""
    known = list(known)
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    rest = f", ... ({len(known)} in all)" if len(known) > 25 else ""
    return f"; known: {', '.join(known[:12] if rest else known)}{rest}"
