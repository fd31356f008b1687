"""Problems with a verifiable answer, their split, and the order in which groups visit them.

A group is known by one number k, counted over the whole run: k decides its prompt (a fresh
permutation of the training prompts each epoch) and the random numbers of its rollouts. One integer
is therefore the whole data cursor: a resumed run neither repeats nor skips a prompt.
"""

import json
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fade_sim.errors import InputError
from fade_sim.overlap import normalise
from llm.settings import Data

SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}
HELD_OUT = "multiply"  # never trained in RL; pretraining has seen it
ALPHABET = "0123456789+-*="
_FORMATS = ("{}", "0{}", "00{}")  # of the digits: an answer has several correct spellings, so several success modes


SHOTS = "3 + 4 = 7\n12 + 5 = 17\n3 * 2 = 6\n8 + 2 - 3 = 7\n31 + 24 = 55\n12 * 3 = 36\n"
FEW_SHOT = {  # skill -> operation, first numbers, second numbers
    "add 1x1": ("+", range(1, 10), range(1, 10)), "multiply 1x1": ("*", range(2, 10), range(2, 10)),
    "add 2x1": ("+", range(10, 100), range(1, 10)), "multiply 2x1": ("*", range(10, 100), range(2, 10)),
    "add 2x2": ("+", range(10, 100), range(10, 100)),
}
FEW_SHOT_HELD_OUT = "add 2x2"


class Problem(NamedTuple):
    """A prompt, its answer and the skill it needs."""

    prompt: str
    answer: str
    skill: str


class Split(NamedTuple):
    """Training problems, and evaluation problems by name of the set."""

    train: list[Problem]
    evaluation: dict[str, list[Problem]]


def problems(data: Data) -> Split:
    """The problems of a run. Raises InputError on an unreadable file, or one that leaks into training."""
    if data.task == "file":
        train, test = read_problems(Path(data.train)), read_problems(Path(data.test))
        known = {normalise(p.prompt) for p in train}
        leaked = sum(normalise(p.prompt) in known for p in test)
        if leaked:
            raise InputError(f"{data.test}: {leaked} of {len(test)} prompts are training prompts too")
        return Split(train, {"train": train[: data.eval_prompts], "held_out": test[: data.eval_prompts]})
    train, test, skill = (few_shot if data.task == "few_shot" else arithmetic)(data)
    n = data.eval_prompts
    return Split(train, {"train": train[:n], "held_out": test[:n], "held_out_skill": skill[:n]})


def arithmetic(data: Data) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """(training, held-out, held-out skill) problems `aa+bb=` on numbers of two digits, disjoint."""
    order = np.random.default_rng([data.seed, 0xDA7A])
    everything = {name: [(a, b) for a in range(10, 100) for b in range(10, 100)] for name in ("add", "subtract")}
    everything[HELD_OUT] = [(a, b) for a in range(10, 100) for b in range(2, 10)]
    for pairs in everything.values():
        order.shuffle(pairs)
    room = min(len(pairs) for name, pairs in everything.items() if name != HELD_OUT)
    if data.train_prompts + data.test_prompts > room or data.test_prompts > len(everything[HELD_OUT]) // 2:
        raise InputError(f"data.train_prompts + data.test_prompts is {data.train_prompts + data.test_prompts}, "
                         f"expected at most {room}, and at most {len(everything[HELD_OUT]) // 2} test prompts")
    mixed = [_problem(name, *everything[name][i]) for i in range(data.train_prompts + data.test_prompts)
             for name in ("add", "subtract")]
    train, rest = mixed[: data.train_prompts], mixed[data.train_prompts :]
    skill = [_problem(HELD_OUT, *pair) for pair in everything[HELD_OUT][: data.test_prompts]]
    return train, rest[: data.test_prompts], skill


def few_shot(data: Data) -> tuple[list[Problem], list[Problem], list[Problem]]:
    """(training, held-out, held-out skill) problems after the same six solved lines, disjoint, the skills in turn.

    For a model that has read text but not these prompts: it knows the form from the lines above the question.
    """
    order = np.random.default_rng([data.seed, 0xF3])
    shown = {line.partition(" =")[0] for line in SHOTS.splitlines()}
    mixed, skill = [], []
    for name, (sign, first, second) in FEW_SHOT.items():
        pairs = [(a, b) for a in first for b in second if f"{a} {sign} {b}" not in shown]
        order.shuffle(pairs)
        rows = [Problem(f"{SHOTS}{a} {sign} {b} =", str(a + b if sign == "+" else a * b), name) for a, b in pairs]
        if name == FEW_SHOT_HELD_OUT:
            skill = rows[: data.test_prompts]
        else:
            mixed.append(rows)
    turns = [row for turn in zip_longest(*mixed) for row in turn if row is not None]  # the short lists end first
    total = data.train_prompts + data.test_prompts
    if total > len(turns):
        raise InputError(f"data.train_prompts + data.test_prompts is {total}, expected at most {len(turns)}")
    held = {i * total // data.test_prompts for i in range(data.test_prompts)}  # spread out: the same mixture of skills
    return ([row for i, row in enumerate(turns[:total]) if i not in held],
            [row for i, row in enumerate(turns[:total]) if i in held], skill)


def _problem(skill: str, a: int, b: int) -> Problem:
    value = {"add": a + b, "subtract": a - b, "multiply": a * b}[skill]
    return Problem(f"{a}{SIGNS[skill]}{b}=", str(value), skill)


def spelling(answer: str, rng: np.random.Generator) -> str:
    """One of the correct spellings of a whole number: leading zeros, or a plus sign."""
    digits = _FORMATS[rng.integers(len(_FORMATS))].format(answer.lstrip("-"))
    sign = "-" if answer.startswith("-") else ("", "+")[rng.integers(2)]
    return sign + digits


def pretraining_batch(data: Data, exclude: frozenset[str], size: int, rng: np.random.Generator) -> list[Problem]:
    """Problems of every skill, none of them among `exclude` (the prompts of training and evaluation)."""
    out: list[Problem] = []
    while len(out) < size:
        skill = ("add", "subtract", "multiply")[rng.integers(3)]
        a, b = int(rng.integers(10, 100)), int(rng.integers(2, 10) if skill == HELD_OUT else rng.integers(10, 100))
        problem = _problem(skill, a, b)
        if problem.prompt not in exclude:
            out.append(problem._replace(answer=spelling(problem.answer, rng)))
    return out


def read_problems(path: Path) -> list[Problem]:
    """JSONL of {"prompt": text, "answer": text, optional "skill": text}. Raises InputError, naming the line.

    An answer may also be an object, the tests of a program: it is kept as JSON text.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from None
    out = []
    for i, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("answer"), dict):
            row["answer"] = json.dumps(row["answer"])
        if not isinstance(row, dict) or not all(isinstance(row.get(k), str) and row[k] for k in ("prompt", "answer")):
            raise InputError(f"{path}: line {i} is not an object with texts 'prompt' and 'answer'")
        unknown = set(row) - {"prompt", "answer", "skill"}
        if unknown:
            raise InputError(f"{path}: line {i} has unknown key {sorted(unknown)[0]!r}; known: prompt, answer, skill")
        out.append(Problem(row["prompt"], row["answer"], str(row.get("skill", ""))))
    if not out:
        raise InputError(f"{path}: has no problems")
    return out


def prompt_of(k: int, prompts: int, seed: int) -> int:
    """Index of the training prompt of group k: position k mod n in the permutation of epoch k div n."""
    epoch, position = divmod(k, prompts)
    return int(np.random.default_rng([seed, 0xE90C, epoch]).permutation(prompts)[position])


def make_tokenizer():
    """A character tokenizer of the arithmetic alphabet, with an end and a padding token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *ALPHABET])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
