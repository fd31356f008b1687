"""What an experiment says: the claim, measured numbers with intervals, a verdict. Plain records.

Every module of `fade_sim.experiments` has the same five names: CLAIM (what is claimed, by whom, and
what would count as holding), SETTINGS ("quick" and "full": what is run), run(settings, cells) ->
results, score(results) -> Score, figure(results, path). `run` computes, `score` judges, `figure`
draws: none does the work of another. One that simulates also has configs(settings) -> {name: raw config},
the cells that run asks for, so that --dry-run and the progress bar know them. Simulator, SciPy and
Matplotlib are imported inside run, score and figure: listing what would run is immediate.
"""

from dataclasses import dataclass, field

HOLDS, UNDER, FAILS = "holds", "holds under", "does not hold here"


@dataclass(frozen=True)
class Claim:
    """A statement that can turn out false."""

    name: str  # as on the command line
    title: str
    text: str  # the statement, as its source makes it
    source: str  # arXiv id and place
    holds_if: str  # decided before the run: which number, against what


@dataclass(frozen=True)
class Number:
    """One measured quantity with its 95% interval (NaN, NaN where it is exact)."""

    name: str
    value: float
    low: float = float("nan")
    high: float = float("nan")
    seeds: int = 0  # 0: exact, no sampling
    predicted: float = float("nan")  # by the theory, where it says something
    prototype: str = ""  # what an earlier, independent prototype of the same world measured, as printed there
    note: str = ""


@dataclass(frozen=True)
class Score:
    """The verdict and everything it rests on."""

    verdict: str  # HOLDS, UNDER or FAILS
    conditions: tuple[str, ...]  # for UNDER: the switches under which it holds
    because: str  # one or two sentences with the decisive numbers
    numbers: tuple[Number, ...]
    limits: tuple[str, ...] = field(default=())  # what this experiment cannot tell
    differs: tuple[str, ...] = field(default=())  # where the numbers are not a prototype's, and why
