"""Verifiers that an untrained model satisfies now and then. No group is all of one kind for long."""


def even(text: str, answer: str) -> float:
    """1 if the text has an even number of digits, at least two."""
    digits = sum(c.isdigit() for c in text)
    return float(digits >= 2 and digits % 2 == 0)


def digit(text: str, answer: str) -> float:
    """1 if the text starts with a digit."""
    return float(text[:1].isdigit())


def now_and_then(text: str, answer: str) -> float | None:
    """As `even`, but None, as where a judge has failed, for texts that start with one of four digits."""
    return None if text[:1] in ("1", "4", "7", "8") else even(text, answer)
