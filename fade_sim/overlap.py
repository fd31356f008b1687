"""Do training problems contain evaluation problems? Whole texts are compared, not phrases.

A leaked problem raises pass@k without any learning; shared stock phrases ("find the remainder when")
are no leak, and a filter on single n-grams would remove them. `copies` counts n-grams, but a copy is
only what has a large share of them in one training problem.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

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


class Copy(NamedTuple):
    """An evaluation problem and the training problem that is closest to it."""

    test: int  # index of the evaluation problem
    train: int
    share: float  # of its n-grams that the training problem has; 1.0 where all words are the same


# Numbers whole, words, and signs that change what is asked; "12-5" is not "12 5", "well-known" is "well known".
_WORD = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+|(?<![^\W\d_])-|-(?![^\W\d_])|[+*/=<>^%]")


def words(text: str) -> list[str]:
    """Words, numbers and signs of arithmetic, whatever the case, the white space and the punctuation.

    >>> words("What  is 1,200 + 2.5?") == words("what is\\n1,200+2.5")
    True
    """
    return _WORD.findall(unicodedata.normalize("NFKC", normalise(text)).replace("\u2212", "-"))


def copies(train: Iterable[str], test: Sequence[str], n: int = 8, share: float = 0.5) -> list[Copy]:
    """The closest training problem of each evaluation problem that has one, in the order of `test`.

    Close is one with all the same words, or with at least `share` of the distinct phrases of `n` words
    of the evaluation problem. A problem of fewer than `n` phrases is little more than a stock phrase:
    only its words as a whole count.
    """
    whole: dict[tuple[str, ...], list[int]] = {}
    holders: dict[str, list[int]] = {}
    sizes = []
    for i, text in enumerate(test):
        theirs = words(text)
        whole.setdefault(tuple(theirs), []).append(i)
        phrases = _grams(theirs, n)
        sizes.append(len(phrases))
        for phrase in phrases if len(phrases) >= n else ():
            holders.setdefault(phrase, []).append(i)
    found: dict[int, Copy] = {}
    for j, text in enumerate(train):
        ours = words(text)
        shared = Counter(i for phrase in _grams(ours, n) for i in holders.get(phrase, ()))
        shares = {i: count / sizes[i] for i, count in shared.items()}
        shares |= dict.fromkeys(whole.get(tuple(ours), ()), 1.0)
        for i, value in shares.items():
            if value >= share and (i not in found or value > found[i].share):
                found[i] = Copy(i, j, value)
    return [found[i] for i in sorted(found)]


def _grams(all_words: list[str], n: int) -> set[str]:
    return {" ".join(all_words[i : i + n]) for i in range(len(all_words) - n + 1)}
