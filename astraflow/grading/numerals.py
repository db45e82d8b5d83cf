"""Numbers that need no algebra: exact fractions of what is written, and how it was written."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from astraflow.grading.limits import MAX_BITS, TooLargeError

__all__ = ["RELATIVE_TOLERANCE", "Numeral", "alike", "read_number", "rounds_to"]

RELATIVE_TOLERANCE = Fraction(1, 10**6)
"""Largest relative distance of two numbers of which one is a decimal."""

_INTEGER = re.compile(r"[-+]?\d{1,4000}")
_DECIMAL = re.compile(r"([-+]?)(\d*)\.(\d+)|([-+]?)(\d+)\.")
_SCIENTIFIC = re.compile(
    r"([-+]?\d+(?:\.\d+)?|[-+]?\.\d+)\s*"
    r"(?:[eE]\s*\{?([-+]?\d{1,4})\}?|(?:\\times|\\cdot|[x×])\s*10\s*\^\s*\{?\s*([-+]?\s*\d{1,4})\s*\}?)"  # noqa: RUF001
)
_GROUPED = re.compile(r"(?<![\d.,])(\d{1,3}(?:,\d{3})+)(?![\d,])")
_SPACED = re.compile(r"(?<![\d.,])(\d{1,3}(?: \d{3})+)(?![\d,])")
_MIXED = re.compile(r"([-+]?)\s*(\d+)\s*(?:\s|and)\s*(\d+)\s*/\s*(\d+)")
_REPEATING = re.compile(r"(\d*)\.(\d*)\\(?:overline|dot)\s*\{\s*(\d+)\s*\}")
_PARENTHESIZED = re.compile(r"([-+]?)(\d*)\.(\d*)\((\d+)\)")
_DOTTED = re.compile(r"\\dot\s*\{?\s*(\d)\s*\}?\s*(\d*)\s*\\dot\s*\{?\s*(\d)\s*\}?")
_TRAILING_DOTS = re.compile(r"(\d*)\.(\d{3,40})\s*\\ldots")
_TOKEN = re.compile(
    r"\s*(?:(\d+\.\d+|\.\d+|\d+)|(\\frac|\\binom|\\cdot|\\times|\\div)(?![a-zA-Z])|([-+*/^!(){}]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Numeral:
    """A number and how it was written."""

    value: Fraction
    """What is written, exactly."""

    approximate: bool = False
    """True when a decimal point or a decimal mantissa is part of it."""

    places: int | None = None
    """Decimal places of a lone decimal (negative for ``4.5e33``); None for anything else."""

    digits: int = 0
    """Significant digits of a lone decimal (count)."""


def read_number(text: str) -> Numeral | None:
    """
    Read a number, or arithmetic on numbers; None where letters or roots need algebra.

    Raises:
        TooLargeError: the value has more than ``MAX_BITS`` bits.
    """
    text = text.strip()
    if _INTEGER.fullmatch(text):
        return Numeral(value=Fraction(int(text)))
    if not any(c.isdigit() for c in text):
        return None
    text = _GROUPED.sub(lambda m: m.group().replace(",", ""), text)
    if "," in text:
        return None
    text = _SPACED.sub(lambda m: m.group().replace(" ", ""), text)
    return _lone(text) or _mixed(text) or _evaluate(text)


def alike(gold: Numeral, answer: Numeral) -> bool:
    """
    Say whether two numbers agree: exactly, or within the tolerance if one is a decimal.

    A gold written as an integer is exact, so a decimal must also round to it.
    """
    if gold.value == answer.value:
        return True
    if not (gold.approximate or answer.approximate):
        return False
    distance = abs(gold.value - answer.value)
    if not gold.approximate and gold.value.denominator == 1 and 2 * distance >= 1:
        return False
    if distance <= RELATIVE_TOLERANCE * abs(gold.value):
        return True
    return not answer.approximate and rounds_to(answer.value, gold)


def rounds_to(exact: Fraction, gold: Numeral) -> bool:
    """
    Say whether a rounded gold stands for this exact fraction.

    It does when rounding gives the gold and the fraction is the simpler number of the two
    (``0.333`` for 1/3, never ``2.5`` for 27/11).
    """
    if gold.places is None or gold.digits < 2 or exact.denominator >= gold.value.denominator:
        return False
    unit = Fraction(10) ** -gold.places
    return 2 * abs(exact - gold.value) <= unit


def _lone(text: str) -> Numeral | None:
    match = _DECIMAL.fullmatch(text)
    if match:
        sign, whole, part = match.group(1, 2, 3) if match.group(3) else (*match.group(4, 5), "")
        return _decimal(sign or "", whole, part or "", shift=0)
    match = _SCIENTIFIC.fullmatch(text)
    if match:
        exponent = int((match.group(2) or match.group(3)).replace(" ", ""))
        mantissa = match.group(1)
        sign = mantissa[0] if mantissa[0] in "+-" else ""
        whole, _, part = mantissa.lstrip("+-").partition(".")
        return _decimal(sign, whole, part, shift=exponent)
    return None


def _decimal(sign: str, whole: str, part: str, *, shift: int) -> Numeral:
    if len(whole) + len(part) > 4000:
        raise TooLargeError("a literal of more than 4000 digits")
    value = Fraction(int(whole + part or "0")) * Fraction(10) ** (shift - len(part))
    significant = (whole + part).lstrip("0")
    return Numeral(
        value=-value if sign == "-" else value,
        approximate=bool(part),
        places=len(part) - shift if part else None,
        digits=len(significant),
    )


def _mixed(text: str) -> Numeral | None:
    match = _MIXED.fullmatch(text)
    if match is None or int(match.group(4)) == 0:
        return None
    value = int(match.group(2)) + Fraction(int(match.group(3)), int(match.group(4)))
    return Numeral(value=-value if match.group(1) == "-" else value)


def _evaluate(text: str) -> Numeral | None:
    whole = _PARENTHESIZED.fullmatch(text)
    if whole:
        text = f"{whole.group(1)}{_periodic(*whole.groups()[1:])}"
    text = _DOTTED.sub(r"\\overline{\1\2\3}", text)
    text, repeating = _REPEATING.subn(lambda m: _periodic(*m.groups()), text)
    text = _TRAILING_DOTS.sub(_written_out, text)
    tokens = _tokens(text)
    if tokens is None:
        return None
    reader = _Arithmetic(tokens)
    try:
        value = reader.expression()
    except _NotANumberError:
        return None
    if reader.at != len(tokens):
        return None
    approximate = any("." in token for token in tokens)
    return Numeral(value=value, approximate=approximate and not repeating)


def _tokens(text: str) -> list[str] | None:
    tokens: list[str] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            return None
        tokens.append(match.group().strip())
        at = match.end()
    return tokens


def _periodic(whole: str, fixed: str, period: str) -> str:
    """Write ``0.1 overline 6`` as the fraction it is."""
    nines = "9" * len(period) + "0" * len(fixed)
    top = int(whole + fixed + period or "0") - int(whole + fixed or "0")
    return rf"({top}/{nines})"


def _written_out(match: re.Match[str]) -> str:
    """Read ``0.1666...`` as repeating when a period shows at least three times over."""
    whole, digits = match.groups()
    for size in (1, 2, 3, 6):
        for fixed in range(0, 4):
            rest = digits[fixed:]
            repeats = 3 if size < 3 else 2
            if len(rest) >= repeats * size and rest == (rest[:size] * len(rest))[: len(rest)]:
                return _periodic(whole, digits[:fixed], rest[:size])
    return match.group()


class _NotANumberError(Exception):
    """The text is not arithmetic on numbers."""


class _Arithmetic:
    """Recursive descent over tokens; every value is an exact fraction of bounded size."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        if not token:
            raise _NotANumberError
        self.at += 1
        return token

    def expression(self) -> Fraction:
        value = self.term()
        while self.peek() in ("+", "-"):
            sign = self.take()
            other = self.term()
            value = _bounded(value + other if sign == "+" else value - other)
        return value

    def term(self) -> Fraction:
        value = self.signed()
        while True:
            token = self.peek()
            if token in ("*", "\\cdot", "\\times"):
                self.take()
                value = _bounded(value * self.signed())
            elif token in ("/", "\\div"):
                self.take()
                value = _bounded(_divide(value, self.signed()))
            elif token in ("(", "\\frac", "\\binom"):
                value = _bounded(value * self.power())
            else:
                return value

    def signed(self) -> Fraction:
        if self.peek() in ("-", "+"):
            return -self.signed() if self.take() == "-" else self.signed()
        return self.power()

    def power(self) -> Fraction:
        base = self.atom()
        if self.peek() == "!":
            self.take()
            base = _factorial(base)
            if self.peek() == "!":
                raise _NotANumberError
        if self.peek() != "^":
            return base
        self.take()
        return _raise(base, self.group() if self.peek() == "{" else self.signed_atom())

    def signed_atom(self) -> Fraction:
        if self.peek() == "-":
            self.take()
            return -self.power()
        return self.power()

    def atom(self) -> Fraction:
        token = self.peek()
        if token in ("(", "{"):
            return self.group()
        self.take()
        if token == "\\frac":
            return _divide(self.group(), self.group())
        if token == "\\binom":
            return _choose(self.group(), self.group())
        if not (token[0].isdigit() or token[0] == "."):
            raise _NotANumberError
        return self.literal(token)

    def literal(self, token: str) -> Fraction:
        if len(token) > 4000:
            raise TooLargeError("a literal of more than 4000 digits")
        value = Fraction(token)
        if "." not in token and self.is_plain_fraction():
            # 3\frac{1}{2} is three and a half in every textbook
            value += self.atom()
        return value

    def is_plain_fraction(self) -> bool:
        shape = self.tokens[self.at : self.at + 7]
        return (
            len(shape) == 7
            and shape[0] == "\\frac"
            and shape[1] == shape[4] == "{"
            and shape[3] == shape[6] == "}"
            and shape[2].isdigit()
            and shape[5].isdigit()
        )

    def group(self) -> Fraction:
        closing = {"(": ")", "{": "}"}.get(self.take())
        if closing is None:
            raise _NotANumberError
        value = self.expression()
        if self.take() != closing:
            raise _NotANumberError
        return value


def _bounded(value: Fraction) -> Fraction:
    if value.numerator.bit_length() > MAX_BITS or value.denominator.bit_length() > MAX_BITS:
        raise TooLargeError(f"a number of more than {MAX_BITS} bits")
    return value


def _divide(top: Fraction, bottom: Fraction) -> Fraction:
    if bottom == 0:
        raise _NotANumberError
    return top / bottom


def _factorial(value: Fraction) -> Fraction:
    if value.denominator != 1 or value < 0:
        raise _NotANumberError
    if value > 8000:  # 8000! has 91,000 bits
        raise TooLargeError("a factorial above 8000!")
    return Fraction(math.factorial(int(value)))


def _choose(top: Fraction, bottom: Fraction) -> Fraction:
    if top.denominator != 1 or bottom.denominator != 1 or top < 0 or bottom < 0:
        raise _NotANumberError
    if top > 10**5:
        raise TooLargeError("a binomial coefficient of a number above 100000")
    return _bounded(Fraction(math.comb(int(top), int(bottom))))


def _raise(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or (base == 0 and exponent < 0):
        raise _NotANumberError
    if base in (0, 1, -1):
        return base ** (int(exponent) % 2 if base == -1 else min(int(exponent), 1))
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > MAX_BITS:
        raise TooLargeError(f"a power of more than {MAX_BITS} bits")
    return base ** int(exponent)
