"""Is an output the expected one? As LiveCodeBench and HumanEval define it, exactly where they are exact.

Standard output (LiveCodeBench): blanks at the ends of the whole and of each line do not count; then
as many lines, and each line the same text, or the same numbers word for word as exact decimals of any
length. Values: Python's ==, where a tuple equals a list of the same elements. `tolerance` (0: none, as there) also
accepts numbers with |got - expected| <= tolerance * max(1, |expected|), where either has a fraction or exponent.
"""

import math
from decimal import Decimal, InvalidOperation
from itertools import zip_longest


def difference(got: str, expected: str, tolerance: float = 0.0) -> tuple[str, str] | None:
    """(expected, got) at the first line that differs, or None where the outputs are equal."""
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (got, expected))
    for i, (have, want) in enumerate(zip_longest(ours, theirs)):
        if have is None or want is None or not _same_line(have, want, tolerance):
            where = f"line {i + 1}: " if len(theirs) > 1 else ""
            return (where + want if want is not None else f"end of output after {i} lines",
                    where + have if have is not None else f"end of output after {i} lines")
    return None


def _same_line(have: str, want: str, tolerance: float) -> bool:
    if have == want:
        return True
    try:
        ours, theirs = ([Decimal(word) for word in line.split()] for line in (have, want))
    except InvalidOperation:
        return False
    return len(ours) == len(theirs) and all(map(lambda a, b: _same_number(a, b, tolerance), ours, theirs))


def _same_number(a: Decimal, b: Decimal, tolerance: float) -> bool:
    if a.is_nan() or b.is_nan():  # printed alike they are the same text
        return False
    if a == b:
        return True
    return bool(tolerance) and not (_whole(a) and _whole(b)) and _close(float(a), float(b), tolerance)


def _whole(a: Decimal) -> bool:
    """True for digits alone: 3 but not 3.0."""
    return a.as_tuple().exponent == 0


def _close(a: float, b: float, tolerance: float) -> bool:
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= tolerance * max(1.0, abs(b))


def same_value(got, expected, tolerance: float = 0.0) -> bool:
    """Equality of a returned value and the expected one."""
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(got) == len(expected) and all(map(lambda a, b: same_value(a, b, tolerance), got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(same_value(got[k], expected[k], tolerance) for k in got)
    if got == expected:
        return True
    numbers = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in (got, expected))
    if not tolerance or not numbers or not (isinstance(got, float) or isinstance(expected, float)):
        return False
    try:
        return _close(float(got), float(expected), tolerance)
    except OverflowError:
        return False


def shown(value, width: int = 60) -> str:
    """A text or value, shortened in the middle, on one line."""
    if isinstance(value, str):
        text = value.encode("unicode_escape").decode()
    else:
        try:
            text = repr(value)
        except (ValueError, RecursionError):  # an integer beyond 4300 digits, for one
            text = f"({type(value).__name__} too long to show)"
    return text if len(text) <= width else f"{text[: width - 20]} ... {text[-14:]}"
