r"""Read one value with its unit: ``35 \text{ cm}``, ``45^\circ``, ``\$18.90``, ``28%``."""

from __future__ import annotations

import re

from astraflow.grading.forms import Scalar
from astraflow.grading.numerals import read_number
from astraflow.grading.units import Unit, is_unit_word, read_unit

__all__ = ["read_scalar"]

_TEXT_BEHIND = re.compile(r"(.*?[^_^\s{])\s*(?<![_^{])(\\text\{.*)", re.DOTALL)
_TEXT_BEFORE = re.compile(r"([-+]?)\s*\\text\{([^{}]*)\}\s*(.+)", re.DOTALL)
_DEGREES = re.compile(r"(.*?)\s*(\^\s*\\circ\b.*)", re.DOTALL)
_PERCENT = re.compile(r"(.*?)\s*(%\s*(?:\\text\{[^{}]*\})?)")
_BARE_UNIT = re.compile(
    r"(.*[\d})])(\s*)((?:[a-zA-Z]++\.?(?:\^\{?-?\d\}?)?[\s/\-]*+)++)", re.DOTALL
)
_LEAD_IN = re.compile(r".*:\s*|\s*(?:approximately|about|exactly|roughly|is)\s*", re.IGNORECASE)
_UPRIGHT = r"(?:\\text\{[^{}]*\}(?:\^\{?\d\}?)?\s*(?:\\cdot\s*)?)+"
_UPRIGHT_FRACTION = re.compile(rf"\\frac\{{({_UPRIGHT})\}}\{{({_UPRIGHT})\}}")
_TURNING = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_MODULUS = re.compile(
    r"\s*\(?\s*(?:\\text\{\s*mod\s*\}|\\bmod|\\pmod|\\mod|(?<![a-z])mod)\s*\{?\s*(\d+|[a-zA-Z])\s*\}?\s*\)?$"
)


def read_scalar(text: str) -> Scalar:
    """Read one value; a unit that cannot be told from algebra stays part of the formula."""
    text = text.strip()
    number = read_number(text)
    if number is not None:
        return Scalar(text=text, number=number)
    text = _UPRIGHT_FRACTION.sub(r"\1/\2", text)
    modulus = _MODULUS.search(text)
    if modulus and modulus.start() > 0:
        value = text[: modulus.start()]
        return Scalar(text=value, number=read_number(value), modulus=modulus.group(1))
    for split in (_currency, _degrees, _percent, _upright_unit, _bare_unit):
        found = split(text)
        if found is not None:
            value, unit = found
            return Scalar(text=value, number=read_number(value), unit=unit)
    return Scalar(text=text)


def _currency(text: str) -> tuple[str, Unit | None] | None:
    """A unit or a lead-in in front of the value."""
    match = _TEXT_BEFORE.fullmatch(text)
    if match is None:
        return None
    sign, words, rest = match.groups()
    if _LEAD_IN.fullmatch(words):
        inner = read_scalar(rest)
        return sign + inner.text, inner.unit
    if read_number(rest) is None:
        return None
    unit = read_unit(words)
    # "not 5", "at most 5", "January 5": what no table knows may change the value behind it
    return None if unit is None or unit.described else (sign + rest, unit)


def _upright_unit(text: str) -> tuple[str, Unit] | None:
    match = _TEXT_BEHIND.fullmatch(text)
    if match is None:
        return None
    value = match.group(1).removesuffix("\\cdot").strip()
    unit = read_unit(match.group(2))
    return (value, unit) if unit is not None and value else None


def _degrees(text: str) -> tuple[str, Unit] | None:
    match = _DEGREES.fullmatch(text)
    # the degrees of a sine's argument are no unit of the sine
    if match is None or not match.group(1) or _TURNING.search(match.group(1)):
        return None
    unit = read_unit(match.group(2))
    return None if unit is None else (match.group(1), unit)


def _percent(text: str) -> tuple[str, Unit] | None:
    match = _PERCENT.fullmatch(text)
    if match is None or not match.group(1):
        return None
    unit = read_unit(match.group(2))
    return None if unit is None else (match.group(1), unit)


def _bare_unit(text: str) -> tuple[str, Unit] | None:
    match = _BARE_UNIT.fullmatch(text)
    if match is None:
        return None
    value, blank, words = match.groups()
    letters = re.findall(r"[a-zA-Z]+", words)
    if read_number(value) is None or not all(map(is_unit_word, letters)):
        return None
    if not blank and (len(letters[0]) == 1 or not _known(letters)):
        return None
    unit = read_unit(words)
    return None if unit is None else (value, unit)


def _known(letters: list[str]) -> bool:
    unit = read_unit(" ".join(letters[:1]))
    return unit is not None and unit.dimensions != ((letters[0].lower(), 1),)
