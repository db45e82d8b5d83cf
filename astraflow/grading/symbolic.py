"""Computer algebra for grading: parse with math-verify's parser, compare by evaluation."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Any, Literal, ParamSpec

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from math_verify import verify

from astraflow.grading import regions
from astraflow.grading.algebra import UnreadableError
from astraflow.grading.limits import TooLargeError, check_symbolic
from astraflow.grading.numerals import RELATIVE_TOLERANCE, Numeral

__all__ = ["SympyAlgebra", "parse_formula"]

# It says once per process that its timer is off; ours is outside, see pool.py
logging.getLogger("math_verify").setLevel(logging.ERROR)

Side = Literal["gold", "answer"]
Expression = Any  # sympy ships no types

_DIGITS = 30
_CLOSE = sympy.Float("1e-20", _DIGITS)
_POINTS = (
    (sympy.Rational(37, 23), sympy.Rational(11, 29), 1),
    (sympy.Rational(5, 7), sympy.Rational(13, 31), 1),
    (sympy.Rational(19, 6), sympy.Rational(7, 17), 1),
    (sympy.Rational(-17, 13), sympy.Rational(5, 19), -1),
    (sympy.Rational(-29, 11), sympy.Rational(3, 23), -1),
    (sympy.Integer(7), sympy.Integer(2), 1),
    (sympy.Integer(12), sympy.Integer(5), 1),
    (sympy.Integer(5), sympy.Integer(3), 1),
)
"""Start, step and direction of the values that variables take: positive, negative, whole."""

_REPEATED = (sympy.Sum, sympy.Product)
"""Their bounds are whole numbers, and they are only evaluated once these are known."""

_DEGREE = re.compile(r"(\d+(?:\.\d+)?|\([^()]*\))\s*\^\s*\\circ")
# the real root is meant, and computer algebra takes the principal one
_ODD_ROOT = re.compile(r"\\sqrt\s*\[(\d*[13579])\]\s*\{\s*-\s*(\d+(?:\.\d+)?)\s*\}")
_PRIME = re.compile(r"([a-zA-Z])('+)")
_TEXT_SUBSCRIPT = re.compile(r"_\s*\{\s*\\text\{\s*([a-zA-Z]+)\s*\}\s*\}")
_SUBSCRIPTED_E = re.compile(r"(?<![a-zA-Z\\])E\s*_\s*(?:\{([^{}]*)\}|(\w))")
_CONVERSION = ConversionConfig(lowercase_symbols=False)


_STUMBLES = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RecursionError,
    TypeError,
)
"""What sympy raises for formulas that it cannot handle; ValueError has subclasses of ours."""

P = ParamSpec("P")


def _refusing(method: Callable[P, bool]) -> Callable[P, bool]:
    """Turn what sympy stumbles over into an unreadable answer."""

    @wraps(method)
    def refuse(*args: P.args, **kwargs: P.kwargs) -> bool:
        try:
            return method(*args, **kwargs)
        except (UnreadableError, TooLargeError):
            raise
        except (*_STUMBLES, ValueError) as error:
            raise UnreadableError("answer", f"{type(error).__name__}: {error}") from error

    return refuse


class SympyAlgebra:
    """Implements :class:`astraflow.grading.algebra.Algebra`; runs in worker processes."""

    @_refusing
    def same(self, gold: str, answer: str, *, gold_number: Numeral | None) -> bool:
        """Say whether two formulas are equal wherever both are defined."""
        left, right = parse_formula(gold, "gold"), parse_formula(answer, "answer")
        if left == right:
            return True
        if not (_symbols(left) | _symbols(right)):
            return _same_constant(left, right, gold_number)
        if _same_at_points(left, right):
            return True
        imaginary = {sympy.Symbol("i"): sympy.I}
        if sympy.Symbol("i") not in _symbols(left) | _symbols(right):
            return False
        left, right = left.subs(imaginary), right.subs(imaginary)
        if not (_symbols(left) | _symbols(right)):
            return _same_constant(left, right, gold_number)
        return _same_at_points(left, right)

    @_refusing
    def same_angle(self, degrees: str, radians: str) -> bool:
        """Say whether an angle in degrees is the other one in radians."""
        turned = parse_formula(degrees, "gold") * sympy.pi / 180
        return _same_constant(turned, parse_formula(radians, "answer"), None)

    @_refusing
    def same_region(self, gold: str, answer: str) -> bool:
        """Say whether inequalities, intervals or unions describe one set of reals."""
        left, right = regions.read(gold, "gold"), regions.read(answer, "answer")
        if left.variable and right.variable and left.variable != right.variable:
            return False
        if left.members is not None and right.members is not None:
            return regions.same_members(left.members, right.members)
        if left.relation is None or right.relation is None:
            return False
        return _same_inequality(left.relation, right.relation)

    @_refusing
    def same_relation(self, gold: tuple[str, str], answer: tuple[str, str]) -> bool:
        """Say whether two equations have the same solutions, up to a constant factor."""
        left = parse_formula(gold[0], "gold") - parse_formula(gold[1], "gold")
        right = parse_formula(answer[0], "answer") - parse_formula(answer[1], "answer")
        if not _symbols(left) or _symbols(left) != _symbols(right):
            return False
        return _constant_ratio(left, right) is not None


@lru_cache(maxsize=512)
def parse_formula(text: str, side: Side) -> Expression:
    """
    Parse a spelled formula.

    Raises:
        UnreadableError: math-verify's parser does not know it.
        TooLargeError: it is beyond the limits, which are checked first.
    """
    check_symbolic(text)
    if "\\ldots" in text or not text.strip():
        raise UnreadableError(side, "no formula")
    text = _TEXT_SUBSCRIPT.sub(r"_{\1}", text)
    if "\\text" in text:
        raise UnreadableError(side, "words inside a formula")
    text = _ODD_ROOT.sub(r"(-\\sqrt[\1]{\2})", text)
    text = _DEGREE.sub(r"(\1 \\cdot \\frac{\\pi}{180})", text)
    text = _PRIME.sub(lambda m: f"{m.group(1)}_{{{'p' * len(m.group(2))}}}", text)
    # the parser takes E for the constant even where a subscript makes it a name
    text = _SUBSCRIPTED_E.sub(lambda m: f"X_{{E{m.group(1) or m.group(2)}}}", text)
    text = text.replace("\\hbar", "h_{bar} ")
    try:
        parsed = latex2sympy(text, normalization_config=None, conversion_config=_CONVERSION)
    except Exception as error:  # noqa: BLE001  the parser raises plain Exception for bad input
        raise UnreadableError(side, str(error).splitlines()[0] if str(error) else "?") from error
    if not isinstance(parsed, sympy.Expr):
        raise UnreadableError(side, f"a {type(parsed).__name__}, not a formula")
    return _plain(parsed)


def _plain(expression: Expression) -> Expression:
    """Name the constant e, make f(x) a symbol, and drop wrappers that evaluate nothing."""
    expression = expression.replace(
        lambda part: isinstance(part, sympy.core.function.AppliedUndef),
        lambda part: sympy.Symbol(str(part)),
    )
    expression = expression.replace(sympy.UnevaluatedExpr, lambda inner: inner)
    return expression.subs(sympy.Symbol("e"), sympy.E)


def _symbols(expression: Expression) -> set[Any]:
    return set(expression.free_symbols)


def _has_decimals(expression: Expression) -> bool:
    return bool(expression.atoms(sympy.Float))


def _value(expression: Expression, at: dict[Any, Any]) -> Expression | None:
    """Evaluate to 30 digits; None where the result is not a finite number."""
    if at and expression.has(*_REPEATED):
        expression, at = expression.subs(at), {}
    try:
        value = expression.evalf(_DIGITS, subs=at) if at else expression.evalf(_DIGITS)
    except (ValueError, TypeError, ZeroDivisionError, NotImplementedError, AttributeError):
        return None
    if not value.is_number or value.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        return None
    real, imaginary = value.as_real_imag()
    if not (real.is_Float or real.is_Rational) or not (imaginary.is_Float or imaginary.is_Rational):
        return None
    if abs(imaginary) < _CLOSE * max(1, abs(real)):
        return real
    return value


def _near(left: Expression, right: Expression, *, tolerance: Expression) -> bool:
    return bool(abs(left - right) <= tolerance * max(abs(left), abs(right)))


def _same_constant(left: Expression, right: Expression, gold: Numeral | None) -> bool:
    if left.is_infinite or right.is_infinite:
        return bool(left == right)
    values = _value(left, {}), _value(right, {})
    if values[0] is None or values[1] is None:
        return False
    if values[0] == 0 or values[1] == 0:
        return _is_zero(left) and _is_zero(right)
    approximate = _has_decimals(left) or _has_decimals(right)
    tolerance = _fraction(RELATIVE_TOLERANCE) if approximate else _CLOSE
    if _near(values[0], values[1], tolerance=tolerance):
        return not (gold and not gold.approximate and abs(values[0] - values[1]) >= 0.5)
    return gold is not None and not _has_decimals(right) and _rounds_to(values[1], gold)


def _is_zero(expression: Expression) -> bool:
    return expression.is_zero is True or expression.equals(0) is True


def _rounds_to(exact: Expression, gold: Numeral) -> bool:
    """A gold of three digits or more stands for a root or a multiple of pi that rounds to it."""
    if gold.places is None or gold.digits < 3 or not exact.is_real:
        return False
    half = Fraction(10) ** -gold.places / 2
    return bool(abs(exact - _fraction(gold.value)) <= _fraction(half))


def _fraction(value: Fraction) -> Expression:
    return sympy.Rational(value.numerator, value.denominator)


def _same_at_points(left: Expression, right: Expression) -> bool:
    """
    Compare at fixed points: equal wherever both are real, and at three points at least.

    Formulas with the imaginary unit are compared as complex numbers. Where no point decides,
    math-verify's own comparison does.
    """
    symbols = sorted(_symbols(left) | _symbols(right), key=str)
    loose = _has_decimals(left) or _has_decimals(right)
    tolerance = _fraction(RELATIVE_TOLERANCE) if loose else _CLOSE
    with_i = left.has(sympy.I) or right.has(sympy.I)
    # with |x| somebody thought of negative numbers, so they must agree there as well
    enough = any if left.has(sympy.Abs) or right.has(sympy.Abs) else all
    agreed = 0
    for at in _points(symbols, whole=left.has(*_REPEATED) or right.has(*_REPEATED)):
        values = _value(left, at), _value(right, at)
        if values[0] is None or values[1] is None:
            continue
        real = [value.is_real is True for value in values if value is not None]
        if not with_i and not enough(real):
            continue
        if not _near(values[0], values[1], tolerance=tolerance):
            return False
        agreed += 1
    if agreed:
        return agreed >= 3
    return bool(verify([left], [right], float_rounding=15, timeout_seconds=None))


def _points(symbols: list[Any], *, whole: bool = False) -> list[dict[Any, Any]]:
    return [
        {symbol: start + sign * step * index for index, symbol in enumerate(symbols)}
        for start, step, sign in _POINTS
        if start.is_Integer or not whole
    ]


def _constant_ratio(left: Expression, right: Expression) -> Expression | None:
    """Return right / left if it is one non-zero constant at all points, else None."""
    symbols = sorted(_symbols(left) | _symbols(right), key=str)
    ratios = []
    for at in _points(symbols):
        values = _value(left, at), _value(right, at)
        if values[0] is None or values[1] is None:
            continue
        if values[0] == 0 or values[1] == 0:
            if values[0] != values[1]:
                return None
            continue
        ratios.append(values[1] / values[0])
    if len(ratios) < 3:
        return None
    same = all(_near(ratio, ratios[0], tolerance=_CLOSE) for ratio in ratios[1:])
    return ratios[0] if same else None


def _same_inequality(gold: tuple[str, str, str], answer: tuple[str, str, str]) -> bool:
    """Compare ``left < right`` in several variables, up to a positive factor."""
    if gold[1] != answer[1]:
        return False
    left = parse_formula(gold[0], "gold") - parse_formula(gold[2], "gold")
    right = parse_formula(answer[0], "answer") - parse_formula(answer[2], "answer")
    ratio = _constant_ratio(left, right)
    return ratio is not None and (gold[1] == "\\ne" or bool(sympy.re(ratio) > 0))
