"""The final answer in a text, and numbers written in LaTeX read exactly. A grammar, never eval.

An answer is the content of the last \\boxed{} or \\fbox{}, braces balanced. Numbers are read as exact
rationals: 1/2^80 and 1/2^79 differ, whatever a floating-point tolerance would say.
"""

import re
from fractions import Fraction
from math import factorial
from typing import NamedTuple

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")  # one list of wrappers, for searching and for stripping
_MAX_NESTED = 8  # boxes around one answer
# Texts are a model's: reading one must not take long, whatever it says.
_MAX_LENGTH = 5_000  # characters of a number
_MAX_BITS = 20_000  # of a numerator or denominator
_MAX_STEPS = 300  # operations
_MAX_FACTORIAL = 1_000


def last_box(text: str) -> str | None:
    """Content of the last box, of boxes around it too; None without a box, or where the last is empty or not closed.

    >>> last_box(r"first \\boxed{4}, no: \\boxed{\\frac{3}{4}}"), last_box("17 or 23")
    ('\\\\frac{3}{4}', None)
    """
    for _ in range(_MAX_NESTED):
        found, at = None, 0
        while match := _BOX.search(text, at):
            end = _closing(text, match.end())
            if end is None:
                return None
            found, at = text[match.end() : end], end
        if found is None:
            return None
        if _BOX.search(found) is None:
            return clean(found) or None
        text = found
    return None


def _closing(text: str, at: int) -> int | None:
    """Index of the brace that closes the one before `at`; escaped braces are text."""
    depth = 1
    while at < len(text):
        c = text[at]
        depth += (c == "{") - (c == "}")
        if depth == 0:
            return at
        at += 2 if c == "\\" else 1
    return None


def answer_of(text: str) -> str:
    """A right answer, or the content of a box: the box inside it, if there is one, else the text. Idempotent."""
    inner = last_box(text) if _BOX.search(text) else None
    return clean(text) if inner is None else inner


def bold(text: str) -> str | None:
    """Content of the last **bold** text."""
    found = re.findall(r"\*\*([^*\n]+)\*\*", text)
    return clean(found[-1]) or None if found else None


def clean(text: str) -> str:
    """Without what is not part of an answer: math delimiters, bold marks, spacing commands, a final full stop."""
    before = None
    while text != before:
        before = text
        text = text.strip().removesuffix(".").strip()
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**")):
            if len(text) >= len(left + right) and text.startswith(left) and text.endswith(right):
                text = text[len(left) : -len(right)]
    text = re.sub(r"\\ |~", " ", re.sub(r"\\[!,;:]|\\(?:left|right)(?![a-z])", "", text))
    return " ".join(text.replace(r"\dfrac", r"\frac").replace(r"\tfrac", r"\frac").replace("\u2212", "-").split())


# --- exact numbers -------------------------------------------------------------------------------------


class Number(NamedTuple):
    """An exact number and how it was written."""

    value: Fraction
    computed: bool  # with + - or a product: an expression still to be evaluated, 12+5 for 17
    decimal: bool  # with a point


_TOKEN = re.compile(r"\s*(?:(\d{1,3}(?:\{?,\}?\d{3})+(?!\d)(?:\.\d+)?|\d+\.?\d*|\.\d+)|(\\[a-z]+)|(.))")


def number(text: str) -> Number | None:
    """The rational that a text denotes, or None: it is no number, not a rational one, or too large to be exact.

    >>> number(r"\\frac12").value, number("1,234.50").value, number("2^{-3}").value, number("x")
    (Fraction(1, 2), Fraction(2469, 2), Fraction(1, 8), None)
    """
    if len(text) > _MAX_LENGTH:
        return None
    try:
        parser = _Parser(text)
        value = parser.sum()
        return Number(value, parser.computed, parser.decimal) if parser.at == len(parser.tokens) else None
    except (_NoNumber, ZeroDivisionError, RecursionError):
        return None


class _NoNumber(Exception):
    """The text is not in the grammar."""


class _Parser:
    """Recursive descent: sum, product, power, factor."""

    def __init__(self, text: str):
        self.tokens = [("n", m[1]) if m[1] else ("c", m[2]) if m[2] else ("s", m[3])
                       for m in _TOKEN.finditer(text) if m[0].strip()]
        self.at, self.steps, self.computed, self.decimal = 0, 0, False, False

    def kept(self, value: Fraction) -> Fraction:
        """The value of one more operation, if it is small enough to go on with."""
        self.steps += 1
        if self.steps > _MAX_STEPS or max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
            raise _NoNumber
        return value

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("", "")

    def take(self, *wanted: str) -> bool:
        if self.peek()[1] in wanted and self.peek()[0] != "n":
            self.at += 1
            return True
        return False

    def need(self, symbol: str) -> None:
        if not self.take(symbol):
            raise _NoNumber

    def sum(self) -> Fraction:
        total = self.product()
        while self.peek()[1] in ("+", "-"):
            self.computed = True
            sign = 1 if self.take("+") else -1
            self.take("-")
            total = self.kept(total + sign * self.product())
        return total

    def product(self) -> Fraction:
        value = self.signed()
        while True:
            if self.take("*", r"\times", r"\cdot"):
                scientific = self.peek() == ("n", "10")
                self.computed = self.computed or not scientific
                value = self.kept(value * self.signed())
            elif self.take("/", r"\div"):
                value = self.kept(value / self.signed())
            else:
                return value

    def signed(self) -> Fraction:
        if self.take("-"):
            return -self.signed()
        if self.take("+"):
            return self.signed()
        return self.power()

    def power(self) -> Fraction:
        base = self.factor()
        while self.take("!"):
            if base.denominator != 1 or not 0 <= base <= _MAX_FACTORIAL:
                raise _NoNumber
            base = self.kept(Fraction(factorial(int(base))))
        if not self.take("^"):
            return base
        braced = self.take("{")
        exponent = self.signed()
        if braced:
            self.need("}")
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if exponent.denominator != 1 or bits * abs(exponent) > _MAX_BITS:
            raise _NoNumber
        return self.kept(base ** int(exponent))

    def factor(self) -> Fraction:
        kind, text = self.peek()
        if kind == "n":
            self.at += 1
            self.decimal |= "." in text
            value = _digits(text)
            if self.peek()[1] == r"\frac":  # a mixed number, 1\frac12
                if "." in text:
                    raise _NoNumber
                value = self.kept(value + self.fraction())
            return value
        if text == r"\frac":
            return self.fraction()
        for left, right in (("(", ")"), ("{", "}")):
            if self.take(left):
                value = self.sum()
                self.need(right)
                return value
        raise _NoNumber

    def fraction(self) -> Fraction:
        r"""\frac{a}{b}, or single digits without braces: \frac12."""
        self.need(r"\frac")
        parts = [self.part(), self.part()]
        return self.kept(parts[0] / parts[1])

    def part(self) -> Fraction:
        if self.take("{"):
            value = self.sum()
            self.need("}")
            return value
        kind, text = self.peek()
        if kind != "n":
            raise _NoNumber
        self.tokens[self.at : self.at + 1] = [("n", c) for c in text]  # LaTeX takes one digit
        self.at += 1
        return _digits(text[0])


def _digits(text: str) -> Fraction:
    plain = re.sub(r"[{},]", "", text).removesuffix(".")
    whole, _, rest = plain.partition(".")
    if not (whole + rest).isdecimal() or not (whole + rest).isascii():
        raise _NoNumber
    if len(whole + rest) > 4000:  # int() refuses more than 4300 digits
        raise _NoNumber
    return Fraction(int(whole + rest), 10 ** len(rest))
