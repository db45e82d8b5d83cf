"""How large an answer may be before any arithmetic looks at it."""

from __future__ import annotations

import re

__all__ = [
    "MAX_ANSWER_CHARS",
    "MAX_BITS",
    "TooLargeError",
    "check_length",
    "check_symbolic",
]

MAX_ANSWER_CHARS = 2000
"""Longest answer that is read (characters); the longest gold of the known datasets has 220."""

MAX_DEPTH = 30
"""Deepest nesting of braces and brackets (count); readers recurse on it."""

MAX_BITS = 1 << 17
"""Largest exact number (bits); arithmetic at this size takes under 10 ms."""

_MAX_POWER_DEPTH = 3
_MAX_EXPONENT = 10_000
_MAX_TERMS = 1000
_MAX_TERMS_WITH_LETTERS = 100
_MAX_SYMBOLIC_DEPTH = 16
_MAX_FACTORIAL = 2000
_MAX_DIGITS = 300
_MAX_OPERATIONS = 400

_POWER = re.compile(r"\^\s*\{?")
_BIG_SUM = re.compile(
    r"\\(?:sum|prod)\s*(?:_\s*\{?([^{}]*)\}?)?\s*\^\s*(\{(?:[^{}]|\{[^{}]*\})*\}|\S)"
)
_INTEGRAL = re.compile(r"\\int(?![a-z])\s*(_|\^)?")
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_FACTORIAL = re.compile(r"(\d+|[)}\]!])\s*!")
_LARGE_ARGUMENT = re.compile(r"\d{4}|\d\s*\^|!")
_BINOMIAL = re.compile(r"\\binom\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")
_INTEGER = re.compile(r"(?<![\d.])\d+")
_NUMBER_TO_POWER = re.compile(r"\d\s*\^\s*(?:\{\s*)?-?\s*(\d+)")


class TooLargeError(ValueError):
    """A number or a formula is too large to be an answer that anybody meant."""


def check_length(text: str) -> None:
    """
    Refuse text that is too long or too deeply nested to read.

    Raises:
        TooLargeError: it is.
    """
    if len(text) > MAX_ANSWER_CHARS:
        raise TooLargeError(f"{len(text)} characters, above {MAX_ANSWER_CHARS}")
    deepest = _depth(text)
    if deepest > MAX_DEPTH:
        raise TooLargeError(f"nested {deepest} deep, above {MAX_DEPTH}")


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "{([":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "})]":
            depth -= 1
    return deepest


def check_symbolic(text: str) -> None:
    """
    Refuse a formula that a computer algebra system would spend more than a moment on.

    Such a system evaluates powers of integers while it parses, inside one call that holds the
    interpreter, so nothing may depend on interrupting it.

    Args:
        text: A spelled formula (see :func:`astraflow.grading.spelling.spell`).

    Raises:
        TooLargeError: powers, factorials, binomials, sums or literals beyond the bounds here.
    """
    if any(len(literal) > _MAX_DIGITS for literal in _INTEGER.findall(text)):
        raise TooLargeError(f"a literal of more than {_MAX_DIGITS} digits")
    if sum(text.count(sign) for sign in "+-*/^") + text.count("\\") > _MAX_OPERATIONS:
        raise TooLargeError(f"more than {_MAX_OPERATIONS} operations")
    if _depth(text) > _MAX_SYMBOLIC_DEPTH:
        raise TooLargeError(f"a formula nested more than {_MAX_SYMBOLIC_DEPTH} deep")
    _check_powers(text, depth=1)
    _check_sums(text)
    _check_integrals(text)
    _check_factorials(text)


def _check_powers(text: str, *, depth: int) -> None:
    if depth > _MAX_POWER_DEPTH + 1:
        raise TooLargeError(f"powers nested more than {_MAX_POWER_DEPTH} deep")
    for exponent in _exponents(text):
        for literal in _INTEGER.findall(exponent):
            if int(literal) > _MAX_EXPONENT:
                raise TooLargeError(f"an exponent above {_MAX_EXPONENT}")
        for inner in _NUMBER_TO_POWER.findall(exponent):
            if int(inner) > 4:  # 9**4 still is below the bound, 10**5 is not
                raise TooLargeError(f"an exponent above {_MAX_EXPONENT}")
        if "!" in exponent and depth > 1:
            raise TooLargeError("a factorial in an exponent's exponent")
        _check_powers(exponent, depth=depth + 1)


def _exponents(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    while match := _POWER.search(text, at):
        start = match.end()
        if not match.group().endswith("{"):
            found.append(text[start : start + 1])
            at = start
            continue
        depth, end = 1, start
        while end < len(text) and depth:
            depth += (text[end] == "{") - (text[end] == "}")
            end += 1
        found.append(text[start : end - 1] if depth == 0 else text[start:end])
        at = end
    return found


def _check_sums(text: str) -> None:
    for match in _BIG_SUM.finditer(text):
        lower, upper = match.group(1) or "", match.group(2)
        index = lower.partition("=")[0].strip()
        letters = set(_LETTER.findall(text[match.start(2) :])) - {index, "e", "i"}
        most = _MAX_TERMS_WITH_LETTERS if letters else _MAX_TERMS
        bounds = [int(n) for n in _INTEGER.findall(lower + " " + upper)]
        if "^" in upper or "!" in upper or max(bounds, default=0) > most:
            raise TooLargeError(f"a sum or product of more than {most} terms")


def _check_integrals(text: str) -> None:
    """Allow one integral with bounds; one without is no answer yet."""
    found = _INTEGRAL.findall(text)
    if len(found) > 1 or "" in found:
        raise TooLargeError("an integral without bounds, or more than one")


def _check_factorials(text: str) -> None:
    for match in _FACTORIAL.finditer(text):
        argument = match.group(1)
        if argument.isdigit():
            if int(argument) > _MAX_FACTORIAL:
                raise TooLargeError(f"a factorial above {_MAX_FACTORIAL}!")
        elif argument == "!" or _LARGE_ARGUMENT.search(_group_before(text, match.start())):
            raise TooLargeError("a factorial of a large formula")
    for top in _BINOMIAL.findall(text):
        if "^" in top or "!" in top or max(map(int, _INTEGER.findall(top)), default=0) > 10**5:
            raise TooLargeError("a binomial coefficient of a large number")


def _group_before(text: str, closing: int) -> str:
    """Return the bracketed text that ends at ``closing``."""
    depth = 0
    for at in range(closing, -1, -1):
        depth += (text[at] in ")}]") - (text[at] in "({[")
        if depth == 0:
            return text[at:closing]
    return text[:closing]
