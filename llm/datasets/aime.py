"""AIME: any of its files, whose columns differ by who put them up. The answer is a whole number from 0 to 999.

Seen names: Problem or problem or question; Answer or answer (a number, or a text such as "033", "336^\\circ"),
or a `solution` that ends in a box; ID or id ("2024-I-1") and year.
"""

import re

from fade_sim.errors import InputError
from llm.datasets import prompts
from llm.datasets.cases import Ask, Found
from llm.math_answer import answer_of, last_box, number

COLUMNS = tuple(form for name in ("problem", "question", "answer", "solution", "id", "year")
                for form in (name, name.capitalize(), name.upper()))
_DEGREES = re.compile(r"\^?\s*\{?\s*(?:\\circ|°)\s*\}?|\\(?:text|mathrm)\{[^}]*\}")


def convert(row: dict, where: str, ask: Ask) -> Found:
    """A problem with its number. Raises InputError."""
    lower = {str(key).lower(): value for key, value in row.items()}
    statement = next((lower[k] for k in ("problem", "question") if isinstance(lower.get(k), str)), "")
    if not statement.strip():
        raise InputError(f"{where}: has no text 'problem' or 'question'; it has: {', '.join(map(str, row))}")
    name = str(lower.get("id") or "")
    year = re.search(r"20\d\d", f"{lower.get('year') or ''} {name}")
    return Found(prompts.number(statement), str(_number(lower, where)), f"aime {year[0]}" if year else "aime",
                 id=name if year else "")


def _number(row: dict, where: str) -> int:
    given = row.get("answer")
    if given is None and isinstance(row.get("solution"), str):
        given = last_box(row["solution"])
    if isinstance(given, str):
        found = number(answer_of(_DEGREES.sub("", given)))
        value = None if found is None or found.value.denominator != 1 else int(found.value)
    else:  # a column of numbers with a gap comes out of Parquet as 33.0
        whole = isinstance(given, int | float) and not isinstance(given, bool) and given == given // 1
        value = int(given) if whole else None
    if value is None or not 0 <= value <= 999:
        raise InputError(f"{where}: answer is {given!r:.60}, expected a whole number from 0 to 999")
    return value
