"""Units of measure: split them from a value, and say when two name the same quantity."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

__all__ = ["Unit", "convertible", "is_unit_word", "read_unit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A product of powers of base quantities."""

    factor: Fraction
    """What one of this unit is in base units."""

    dimensions: tuple[tuple[str, int], ...]
    """Base quantities with their powers, sorted; an unknown word is a quantity of its own."""

    @property
    def measured(self) -> frozenset[tuple[str, int]]:
        """The powers of quantities that the tables know."""
        return frozenset(self.dimensions) - self.described

    @property
    def described(self) -> frozenset[tuple[str, int]]:
        """Words beside a quantity that no table knows, as in ``years old``."""
        return frozenset((base, power) for base, power in self.dimensions if base not in _BASES)

    @property
    def is_angle(self) -> bool:
        """True for degrees, whose value may also be given in radians."""
        return self.dimensions == (("degree", 1),)

    @property
    def is_percent(self) -> bool:
        """True for a percent sign."""
        return ("percent", 1) in self.dimensions


_LENGTH = {
    "m meter metre": 1,
    "km kilometer kilometre": 1000,
    "dm decimeter decimetre": Fraction(1, 10),
    "cm centimeter centimetre": Fraction(1, 100),
    "mm millimeter millimetre": Fraction(1, 1000),
    "nm nanometer nanometre": Fraction(1, 10**9),
    "inch inches in": Fraction(254, 10000),
    "foot feet ft": Fraction(3048, 10000),
    "yard yd": Fraction(9144, 10000),
    "mile mi": Fraction(1609344, 1000),
}
_TIME = {
    "s sec second": 1,
    "ms millisecond": Fraction(1, 1000),
    "min minute": 60,
    "h hr hour": 3600,
    "day": 86400,
    "week": 604800,
}
_MASS = {
    "g gram gm": 1,
    "mg milligram": Fraction(1, 1000),
    "kg kilogram": 1000,
    "lb pound-mass": Fraction(45359237, 100000),
    "oz ounce": Fraction(45359237, 1600000),
    "ton tonne": 10**6,
}
_OTHERS: dict[str, dict[str, int | Fraction]] = {
    "dollar": {"dollar usd buck": 1, "cent": Fraction(1, 100)},
    "pound": {"pound gbp": 1, "pence": Fraction(1, 100)},
    "euro": {"euro eur": 1},
    "rupee": {"rupee rs": 1},
    "yen": {"yen": 1},
    "degree": {"degree deg": 1},
    "month": {"month": 1, "year yr": 12},
    "percent": {"percent percentage pct": 1},
    "kelvin": {"kelvin": 1},
    "celsius": {"celsius": 1},
    "fahrenheit": {"fahrenheit": 1},
    "ampere": {"ampere amp": 1},
    "byte": {"byte": 1},
    "bit": {"bit": 1},
    "mole": {"mole mol": 1},
}
_DERIVED: dict[str, tuple[int | Fraction, tuple[tuple[str, int], ...]]] = {
    "l liter litre": (Fraction(1, 1000), (("m", 3),)),
    "ml milliliter millilitre cc": (Fraction(1, 10**6), (("m", 3),)),
    "gallon gal": (Fraction(3785411784, 10**12), (("m", 3),)),
    "acre": (Fraction(40468564224, 10**7), (("m", 2),)),
    "hectare ha": (10**4, (("m", 2),)),
    "mph": (Fraction(1609344, 3600000), (("m", 1), ("s", -1))),
    "kph kmph kmh": (Fraction(1000, 3600), (("m", 1), ("s", -1))),
    "n newton": (1000, (("g", 1), ("m", 1), ("s", -2))),
    "j joule": (1000, (("g", 1), ("m", 2), ("s", -2))),
    "kj kilojoule": (10**6, (("g", 1), ("m", 2), ("s", -2))),
    "erg": (Fraction(1, 10**4), (("g", 1), ("m", 2), ("s", -2))),
    "w watt": (1000, (("g", 1), ("m", 2), ("s", -3))),
    "kw kilowatt": (10**6, (("g", 1), ("m", 2), ("s", -3))),
    "pa pascal": (1000, (("g", 1), ("m", -1), ("s", -2))),
    "hz hertz": (1, (("s", -1),)),
    "dozen": (12, ()),
}
_SINGLE_LETTERS = frozenset("mshgLNJW")
_WORD = re.compile(
    r"\\text\{([^{}]*)\}|(\\circ|%)|\^\s*(?:\{\s*(-?\d)\s*\}|(-?\d))|([a-zA-Z]+)|(/)|(\\cdot|[-.\s*])"
)
_IGNORED = frozenset(
    ["of", "the", "a", "an", "approximately", "about", "exactly", "each", "total", "and"]
)
_QUALIFIERS = frozenset(
    [
        "not", "no", "non", "never", "neither", "nor", "none", "isn't", "wrong", "incorrect",
        "false", "least", "most", "than", "or", "above", "below", "under", "over", "between",
        "except", "minus", "plus", "without", "unless", "up",
    ]
)  # fmt: skip
"""Words that change what a number says, so that they are no unit: "at most 17", "not 17"."""


def _table() -> dict[str, tuple[Fraction, tuple[tuple[str, int], ...]]]:
    table: dict[str, tuple[Fraction, tuple[tuple[str, int], ...]]] = {}
    bases: dict[str, dict[str, Any]] = {"m": _LENGTH, "s": _TIME, "g": _MASS, **_OTHERS}
    for base, names in bases.items():
        for words, factor in names.items():
            for word in words.split():
                table[word] = (Fraction(factor), ((base, 1),))
    for words, (factor, dimensions) in _DERIVED.items():
        for word in words.split():
            table[word] = (Fraction(factor), dimensions)
    return table


_TABLE = _table()
_BASES = frozenset(base for _, dimensions in _TABLE.values() for base, _ in dimensions)


def is_unit_word(word: str) -> bool:
    """Say whether a bare word behind a number is a unit rather than a product of letters."""
    lowered = word.lower()
    if len(word) == 1:
        return word in _SINGLE_LETTERS
    return lowered in _TABLE or _singular(lowered) in _TABLE or len(word) >= 4


def read_unit(text: str) -> Unit | None:
    r"""
    Read ``\text{ cm}^{2}``, ``^\circ``, ``km/h``, ``square inches``, ``\text{ miles per hour}``.

    Returns None for text that names no unit. Words that no table knows are units of their own.
    """
    words = _words(text.strip().removeprefix("^"))
    if not words or not _QUALIFIERS.isdisjoint(word.lower() for word in words):
        return None
    factor = Fraction(1)
    powers: Counter[str] = Counter()
    sign, pending = 1, 1
    at = 0
    while at < len(words):
        word = words[at].lower().strip(".")
        at += 1
        if word in ("/", "per"):
            sign = -1
        elif word in ("square", "sq", "cubic", "cu"):
            pending = 2 if word.startswith("sq") else 3
        elif word and word not in _IGNORED:
            power = pending * sign
            pending = 1
            if at < len(words) and words[at].startswith("^"):
                power = int(words[at][1:]) * sign
                at += 1
            scale, dimensions = _lookup(word)
            factor *= scale**power
            for base, exponent in dimensions:
                powers[base] += exponent * power
    dimensions = tuple(sorted((base, power) for base, power in powers.items() if power))
    return Unit(factor=factor, dimensions=dimensions) if dimensions else None


def convertible(one: Unit, other: Unit) -> bool:
    """
    Say whether two units measure one quantity; a bare degree also fits a temperature.

    What is counted or described may be named on one side only: years old, percent increase.
    """
    if one.dimensions == other.dimensions:
        return True
    if one.measured and one.measured == other.measured and not (one.described and other.described):
        return True
    names = {base for unit in (one, other) for base, _ in unit.dimensions}
    return names in ({"degree", "celsius"}, {"degree", "fahrenheit"})


def _words(text: str) -> list[str]:
    """Split into words, slashes and powers; empty when something else is in the text."""
    words: list[str] = []
    at = 0
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None or match.end() == at:
            return []
        at = match.end()
        inside, sign, braced, bare, letters, slash, _ = match.groups()
        if inside is not None:
            inner = _words(inside) if inside.strip() else []
            if inside.strip() and not inner:
                return []
            words += inner
        elif sign:
            words.append("percent" if sign == "%" else "degree")
        elif braced or bare:
            words.append(f"^{braced or bare}")
        elif letters:
            words.append({"squared": "^2", "cubed": "^3"}.get(letters.lower(), letters))
        elif slash:
            words.append("/")
    if words[:1] == ["degree"] and len(words) == 2 and words[1].lower() in ("c", "f"):
        return ["celsius" if words[1].lower() == "c" else "fahrenheit"]
    return words


def _lookup(word: str) -> tuple[Fraction, tuple[tuple[str, int], ...]]:
    known = _TABLE.get(word) or _TABLE.get(_singular(word))
    return known if known else (Fraction(1), ((_singular(word), 1),))


def _singular(word: str) -> str:
    for ending, instead in (("ies", "y"), ("ches", "ch"), ("shes", "sh"), ("s", "")):
        if word.endswith(ending) and len(word) > len(ending) + 1:
            return word[: -len(ending)] + instead
    return word
