"""A process that compares expressions with math-verify: a JSON line in, a JSON line out.

Apart from the trainer, which ends it when a comparison takes too long: math-verify's own timeouts use
signals, which work in a main thread alone. LaTeX is read with its grammar; its reader of plain
expressions, which evaluates text as Python, is not used.
"""

import json
import os
import resource
import sys

_MEMORY = 4 << 30  # bytes of address space
_RELATIVE = 1e-9  # numbers that math-verify calls equal may differ by this share: its own tolerance is absolute


def same(gold: str, answer: str) -> bool:
    """True where math-verify finds the answer equal to the gold one, and no number in them is far off."""
    from math_verify import LatexExtractionConfig, parse, verify

    ours, theirs = (parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
                    for text in (gold, answer))
    if not ours or not theirs or not verify(ours, theirs, timeout_seconds=None):
        return False
    return not far(ours[0], theirs[0])


def far(a, b) -> bool:
    """True where both are numbers, or collections of numbers, that differ by more than rounding."""
    import sympy

    parts = [list(x.args) if isinstance(x, (sympy.FiniteSet, sympy.Tuple)) else [x] for x in (a, b)]
    if not all(isinstance(x, sympy.Expr) and x.is_number for part in parts for x in part):
        return False
    left, right = ([complex(sympy.N(x, 30)) if not x.is_real else sympy.N(x, 30) for x in part] for part in parts)
    if len(left) != len(right):
        return True
    pairs = zip(sorted(left, key=_order), sorted(right, key=_order), strict=True)
    return any(abs(x - y) > _RELATIVE * max(abs(x), abs(y)) for x, y in pairs)


def _order(z) -> tuple[float, float]:
    return complex(z).real, complex(z).imag


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not speak for us
    try:
        import math_verify  # noqa: F401
    except ImportError:
        print(json.dumps({"missing": True}), file=out, flush=True)
        return
    import logging

    logging.disable(logging.CRITICAL)
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            got = {"same": same(job["gold"], job["answer"])}
        except (Exception, RecursionError) as error:
            got = {"same": False, "error": type(error).__name__}
        print(json.dumps(got), file=out, flush=True)


if __name__ == "__main__":
    main()
