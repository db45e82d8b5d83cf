"""What kinds of answers there are: the shapes that readers produce and comparisons match."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from astraflow.grading.numerals import Numeral
from astraflow.grading.units import Unit

__all__ = [
    "Assignments",
    "Based",
    "Form",
    "Labelled",
    "Listing",
    "Matrix",
    "Ratio",
    "Region",
    "Relation",
    "Scalar",
    "Words",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """One value or formula, with the unit it was given in."""

    text: str
    number: Numeral | None = None
    unit: Unit | None = None
    modulus: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """An answer in words; ``words`` is lower case and without articles."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    r"""Several values; ``opening`` is empty for a bare list, ``{`` for a set, else as written."""

    items: tuple[Form, ...]
    opening: str = ""
    closing: str = ""

    @property
    def ordered(self) -> bool:
        """True for tuples, vectors and intervals."""
        return self.opening in ("(", "[", "]", "<")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignments:
    """``x=3, y=7``: values by name, sorted by name."""

    values: tuple[tuple[str, Form], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """``x = 5``, ``f(x) = 2x+1``, ``x in [0, 1]``: a name and what it is."""

    label: str
    form: Form


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Rows of entries; ``determinant`` is True between vertical bars."""

    rows: tuple[tuple[Form, ...], ...]
    determinant: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A set of reals: inequalities, unions of intervals; needs algebra to compare."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """An equation that is not an assignment."""

    left: str
    right: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """``2:3`` and longer."""

    items: tuple[Form, ...]
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Based:
    """A numeral in a stated base."""

    digits: str
    base: str


Form: TypeAlias = (
    Scalar | Words | Listing | Assignments | Labelled | Matrix | Region | Relation | Ratio | Based
)
