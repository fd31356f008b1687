"""Do training problems contain evaluation problems? Whole texts are compared, not phrases.

A leaked problem raises pass@k without any learning; shared stock phrases ("find the remainder when")
are no leak, and a filter on n-grams would remove them.
"""

from collections.abc import Iterable, Mapping

from fade_sim.errors import InputError


def normalise(text: str) -> str:
    """Case folded, every run of white space one blank."""
    if not isinstance(text, str):
        raise InputError(f"problem is {text!r}, expected text")
    return " ".join(text.casefold().split())


def remove_overlap(train: Iterable[str], benchmarks: Mapping[str, Iterable[str]]) -> tuple[list[int], dict[str, int]]:
    """(indices of the training problems to keep, number of removed ones per benchmark).

    A training problem is removed when its normalised text equals that of a benchmark's problem; one
    found in several benchmarks counts in each. Every benchmark is in the counts, also with 0.

    >>> remove_overlap(["What is  2+2?", "What is 3+3?"], {"demo": ["what is 2+2?"]})
    ([1], {'demo': 1})
    """
    known = {name: {normalise(text) for text in texts} for name, texts in benchmarks.items()}
    keep, removed = [], dict.fromkeys(known, 0)
    for i, text in enumerate(train):
        plain = normalise(text)
        found = [name for name, texts in known.items() if plain in texts]
        for name in found:
            removed[name] += 1
        if not found:
            keep.append(i)
    return keep, removed
