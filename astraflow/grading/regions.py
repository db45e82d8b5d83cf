"""Sets of reals as people write them: inequalities, intervals, unions, all reals but a few."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import sympy

from astraflow.grading.algebra import UnreadableError
from astraflow.grading.limits import TooLargeError
from astraflow.grading.splitting import split_top_level, strip_outer, tokens

__all__ = ["Described", "read", "same_members"]

Side = Literal["gold", "answer"]
_SIGNS = ("<", ">", "\\le", "\\ge", "\\ne")
_MAX_DEGREE = 8
_FLIPPED = {"<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le", "\\ne": "\\ne"}
_OR = frozenset(["\\cup", "or", "\\lor", "\\vee", ",", ";"])
_AND = frozenset(["and", "\\land", "\\wedge", "\\cap"])
_REALS = re.compile(r"\\mathbb\s*\{R\}|\\text\{\s*all real(?:s| numbers)\s*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A set of reals with the name of its variable, or an inequality in several variables."""

    variable: str = ""
    members: Any | None = None
    """A sympy Set."""

    relation: tuple[str, str, str] | None = None
    """Left side, sign, right side; the sign is ``<``, ``\\le`` or ``\\ne``."""


def read(text: str, side: Side) -> Described:
    """
    Read a description of a set.

    Raises:
        UnreadableError: it describes none.
    """
    text = text.strip()
    for separators, join in ((_OR, sympy.Union), (_AND, sympy.Intersection)):
        parts = _parts(text, separators)
        if len(parts) > 1:
            described = [read(part, side) for part in parts]
            if any(part.members is None for part in described):
                raise UnreadableError(side, "joined inequalities in several variables")
            names = {part.variable for part in described if part.variable}
            if len(names) > 1:
                raise UnreadableError(side, "inequalities in different variables")
            return Described(
                variable=next(iter(names), ""), members=join(*(p.members for p in described))
            )
    without = split_top_level(text, frozenset(["\\setminus"]))
    if len(without) == 2:
        whole, hole = (read(part, side).members for part in without)
        if whole is None or hole is None:
            raise UnreadableError(side, "a difference of regions without bounds")
        members = whole - hole
        return Described(members=members)
    return _atom(text, side)


def same_members(gold: Any, answer: Any) -> bool:
    """Compare two sympy Sets piece by piece, ends by value."""
    if gold == answer:
        return True
    left, right = _pieces(gold), _pieces(answer)
    if len(left) != len(right):
        return False
    return all(
        a[0] == b[0] and all(sympy.simplify(x - y) == 0 for x, y in zip(a[1], b[1], strict=True))
        for a, b in zip(left, right, strict=True)
        if a != b
    )


def _parts(text: str, separators: frozenset[str]) -> list[str]:
    if strip_outer(text) is not None:
        return [text]
    return [part for part in split_top_level(text, separators) if part]


def _atom(text: str, side: Side) -> Described:
    if _REALS.fullmatch(text):
        return Described(members=sympy.S.Reals)
    if text == "\\emptyset":
        return Described(members=sympy.S.EmptySet)
    variable, found, rest = text.partition("\\in")
    if found and not rest.startswith(("f", "t")):
        return Described(variable=variable.strip(), members=read(rest, side).members)
    outer = strip_outer(text)
    if outer is not None:
        return _bracketed(*outer, side)
    return _inequality(text, side)


def _bracketed(opening: str, inner: str, closing: str, side: Side) -> Described:
    parts = split_top_level(inner, frozenset([","]))
    if opening == "{":
        return Described(members=sympy.FiniteSet(*(_end(part, side) for part in parts)))
    if len(parts) == 1:
        return read(inner, side)
    if len(parts) != 2:
        raise UnreadableError(side, "an interval needs two ends")
    low, high = (_end(part, side) for part in parts)
    return Described(
        members=sympy.Interval(
            low, high, left_open=opening in ("(", "]"), right_open=closing in (")", "[")
        )
    )


def _end(text: str, side: Side) -> Any:
    from astraflow.grading.symbolic import parse_formula

    value = parse_formula(text.strip().removeprefix("+"), side)
    if value.free_symbols or not value.is_extended_real:
        raise UnreadableError(side, "an end of an interval is not a real number")
    return sympy.nsimplify(value) if value.atoms(sympy.Float) else value


def _inequality(text: str, side: Side) -> Described:
    sides, signs = _sides(text)
    if not signs:
        raise UnreadableError(side, "no interval and no inequality")
    from astraflow.grading.symbolic import parse_formula

    formulas = [parse_formula(part, side) for part in sides]
    names = set().union(*(formula.free_symbols for formula in formulas))
    if len(names) == 1:
        variable = next(iter(names))
        solved = [
            _solve(left, sign, right, variable)
            for left, sign, right in zip(formulas, signs, formulas[1:], strict=False)
        ]
        return Described(variable=str(variable), members=sympy.Intersection(*solved))
    if len(signs) > 1 or not names:
        raise UnreadableError(side, "a chain of inequalities in several variables")
    left, sign, right = sides[0], signs[0], sides[1]
    if sign in (">", "\\ge"):
        left, sign, right = right, _FLIPPED[sign], left
    return Described(relation=(left, sign, right))


def _sides(text: str) -> tuple[list[str], list[str]]:
    sides, signs, start = [], [], 0
    for token, at, depth in tokens(text):
        if depth == 0 and token in _SIGNS:
            sides.append(text[start:at].strip())
            signs.append(token)
            start = at + len(token)
    sides.append(text[start:].strip())
    return sides, signs


def _solve(left: Any, sign: str, right: Any, variable: Any) -> Any:
    real = sympy.Symbol("x", real=True)
    left, right = left.subs(variable, real), right.subs(variable, real)
    relation = {
        "<": sympy.Lt,
        ">": sympy.Gt,
        "\\le": sympy.Le,
        "\\ge": sympy.Ge,
        "\\ne": sympy.Ne,
    }[sign](left, right)
    if relation in (True, sympy.true):
        return sympy.S.Reals
    if relation in (False, sympy.false):
        return sympy.S.EmptySet
    if left == real and not right.free_symbols:
        return relation.as_set()
    difference = left - right
    if difference.is_polynomial(real) and sympy.degree(difference, real) > _MAX_DEGREE:
        raise TooLargeError(f"an inequality of degree above {_MAX_DEGREE}")
    return sympy.solve_univariate_inequality(relation, real, relational=False)


def _pieces(members: Any) -> list[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """List intervals and points from left to right, each as (shape, ends)."""
    parts = members.args if isinstance(members, sympy.Union) else (members,)
    pieces: list[tuple[tuple[str, ...], tuple[Any, ...]]] = []
    for part in parts:
        if isinstance(part, sympy.Interval):
            shape = ("interval", str(part.left_open), str(part.right_open))
            pieces.append((shape, (part.start, part.end)))
        elif isinstance(part, sympy.FiniteSet):
            pieces += [(("point",), (point,)) for point in part.args]
        else:
            pieces.append((("other", str(part)), ()))
    return sorted(pieces, key=lambda p: float(p[1][0]) if p[1] else 0.0)
