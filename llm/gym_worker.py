"""A process that scores answers with the scorers of reasoning-gym: a JSON line in, a JSON line out.

Apart from the trainer, which ends it when a scorer takes too long. Some scorers evaluate an answer as
Python: those answers must first pass `harmless`, so that none of a model's text is run.
"""

import json
import os
import re
import resource
import sys

_MEMORY = 4 << 30  # bytes of address space
_LONGEST = 20_000  # characters of an answer
# Scorers that evaluate the answer, in reasoning-gym 0.1.25: as a list, for part of the score; as an expression.
LISTS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
EXPRESSIONS = frozenset({"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24",
                         "simple_integration"})
_NAMES = frozenset({"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "pi", "asin", "acos", "atan", "sinh", "cosh",
                    "tanh", "Abs"})
_EXPRESSION = re.compile(r"[0-9A-Za-z+\-*/^().,!\s]*")


def harmless(name: str, answer: str) -> bool:
    """False where a scorer would run an answer that does more than name values.

    A list with no bracket of a call calls nothing. An expression is numbers, operators, brackets,
    single letters and the functions above: no attribute, no text, no other name. So Integral(f, x) is no
    answer to an integral, which the scorers would take for one.
    """
    if len(answer) > _LONGEST:
        return False
    if name in LISTS:
        return "(" not in answer
    if name in EXPRESSIONS:
        words = re.findall(r"[A-Za-z][0-9A-Za-z]*", answer)
        return (_EXPRESSION.fullmatch(answer) is not None and not re.search(r"\.\s*[A-Za-z]", answer) and
                all(len(word) == 1 or word in _NAMES for word in words))
    return True


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # scorers print
    from llm.datasets import generated
    from llm.judge import values

    try:
        generated.package()
    except ValueError:
        print(json.dumps({"missing": True}), file=out, flush=True)
        return
    print(json.dumps({"ready": True}), file=out, flush=True)
    scorers: dict[str, object] = {}
    for line in sys.stdin:
        job = json.loads(line)
        try:
            key = json.dumps([job["gym"], job["config"]])
            if key not in scorers:
                scorers[key] = generated.dataset(job["gym"], {**job["config"], "seed": 0, "size": 1})
            entry = values.load(json.dumps(job["entry"]))
            if job["answer"] is None:
                got = {"known": isinstance(entry, dict) and {"question", "answer", "metadata"} <= set(entry)}
            elif not harmless(job["gym"], job["answer"]):
                got = {"score": 0.0}
            else:
                got = {"score": float(scorers[key].score_answer(job["answer"], entry))}
        except (Exception, RecursionError) as error:
            got = {"raised": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(got), file=out, flush=True)


if __name__ == "__main__":
    main()
