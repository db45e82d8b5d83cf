"""Say whether an answer's form matches the gold's, kind by kind."""

from __future__ import annotations

import re
from fractions import Fraction

from astraflow.grading.algebra import Algebra
from astraflow.grading.forms import (
    Assignments,
    Based,
    Form,
    Labelled,
    Listing,
    Matrix,
    Ratio,
    Region,
    Relation,
    Scalar,
    Words,
)
from astraflow.grading.numerals import Numeral, alike
from astraflow.grading.quantities import read_scalar
from astraflow.grading.splitting import canonical
from astraflow.grading.units import convertible
from astraflow.grading.words import number_of, read_words, words_alike

__all__ = ["matches"]


def matches(gold: Form, answer: Form, algebra: Algebra) -> bool:
    """
    Say whether ``answer`` is the gold, by the rules of its kind.

    Raises:
        AlgebraNeededError: ``algebra`` is a NoAlgebra and a formula must be compared.
        UnreadableError: a formula cannot be read.
        TooLargeError: a formula is beyond the limits.
    """
    if gold == answer:
        return True
    if isinstance(gold, Labelled) or isinstance(answer, Labelled):
        return _labelled(gold, answer, algebra)
    if isinstance(gold, Region) or isinstance(answer, Region):
        return _regions(gold, answer, algebra)
    for kind, compare in (
        (Words, _phrases),
        (Matrix, _matrices),
        (Ratio, _ratios),
        (Based, _based),
        (Relation, _relations),
        (Assignments, _assignments),
        (Listing, _listings),
    ):
        if isinstance(gold, kind) or isinstance(answer, kind):
            return compare(gold, answer, algebra)
    assert isinstance(gold, Scalar)
    assert isinstance(answer, Scalar)
    return _scalars(gold, answer, algebra)


def _labelled(gold: Form, answer: Form, algebra: Algebra) -> bool:
    """A name on one side only is ignored; two names must be one."""
    if isinstance(gold, Labelled) and isinstance(answer, Labelled):
        if gold.label == answer.label:
            return matches(gold.form, answer.form, algebra)
        return _as_equations(gold, answer, algebra)
    if isinstance(gold, Labelled):
        if isinstance(answer, Relation):
            return _as_equation_and_relation(gold, answer, algebra)
        if gold.label.startswith("(") and _is_letter(answer, gold.label):
            return True
        return matches(gold.form, answer, algebra)
    assert isinstance(answer, Labelled)
    if isinstance(gold, Relation):
        return isinstance(answer.form, Scalar) and algebra.same_relation(
            (gold.left, gold.right), (answer.label, answer.form.text)
        )
    if answer.label.startswith("(") and _is_letter(gold, answer.label):
        return True
    if isinstance(gold, Scalar) and canonical(gold.text) == answer.label:
        # "x = 5" never answers "x"
        return False
    return matches(gold, answer.form, algebra)


def _is_letter(form: Form, label: str) -> bool:
    return isinstance(form, Scalar) and form.text == label.strip("()")


def _as_equations(gold: Labelled, answer: Labelled, algebra: Algebra) -> bool:
    """``y = 2x`` and ``x = y/2`` are one line; ``x = 5`` and ``y = 5`` are not one value."""
    if not (isinstance(gold.form, Scalar) and isinstance(answer.form, Scalar)):
        return False
    if gold.form.number is not None or answer.form.number is not None:
        return False
    if gold.label not in answer.form.text and answer.label not in gold.form.text:
        return False
    return algebra.same_relation((gold.label, gold.form.text), (answer.label, answer.form.text))


def _as_equation_and_relation(gold: Labelled, answer: Relation, algebra: Algebra) -> bool:
    if not isinstance(gold.form, Scalar) or gold.form.number is not None:
        return False
    return algebra.same_relation((gold.label, gold.form.text), (answer.left, answer.right))


def _regions(gold: Form, answer: Form, algebra: Algebra) -> bool:
    texts = [_region_text(form) for form in (gold, answer)]
    if texts[0] is None or texts[1] is None:
        return False
    if canonical(texts[0]) == canonical(texts[1]):
        return True
    return algebra.same_region(texts[0], texts[1])


def _region_text(form: Form) -> str | None:
    if isinstance(form, Region):
        return form.text
    if isinstance(form, Scalar):
        return form.text if form.text == "\\emptyset" else None
    if isinstance(form, Listing) and form.opening:
        inner = [item.text for item in form.items if isinstance(item, Scalar)]
        brace = "\\" if form.opening == "{" else ""
        return f"{brace}{form.opening}{', '.join(inner)}{brace}{form.closing}"
    return None


def _phrases(gold: Form, answer: Form, algebra: Algebra) -> bool:
    del algebra
    if isinstance(gold, Words) and isinstance(answer, Words):
        return words_alike(gold.words, answer.words)
    phrase, other = (gold, answer) if isinstance(gold, Words) else (answer, gold)
    assert isinstance(phrase, Words)
    if not isinstance(other, Scalar):
        return False
    spoken_number = number_of(phrase.words)
    if spoken_number is not None and other.number is not None:
        return other.number.value == spoken_number
    known = {"\\emptyset": "no solution", "\\infty": "infinity"}.get(other.text)
    spoken = (known,) if known else read_words(f"\\text{{{other.text}}}")
    return spoken is not None and words_alike(phrase.words, spoken)


def _matrices(gold: Form, answer: Form, algebra: Algebra) -> bool:
    left, right = _rows(gold), _rows(answer)
    if left is None or right is None:
        return False
    kinds = {form.determinant for form in (gold, answer) if isinstance(form, Matrix)}
    if kinds != {False}:
        return False
    if any(isinstance(form, Listing) and len(_rows(form) or ()) == 1 for form in (gold, answer)):
        left, right = (_flattened(left), _flattened(right))
    if [len(row) for row in left] != [len(row) for row in right]:
        return False
    pairs = [pair for a, b in zip(left, right, strict=True) for pair in zip(a, b, strict=True)]
    return all(matches(a, b, algebra) for a, b in pairs)


def _rows(form: Form) -> list[tuple[Form, ...]] | None:
    if isinstance(form, Matrix):
        return list(form.rows)
    if not isinstance(form, Listing) or not form.ordered:
        return None
    nested = [item.items for item in form.items if isinstance(item, Listing) and item.ordered]
    if len(nested) == len(form.items) > 1:
        return nested
    if form.opening != "[":
        return [form.items]
    return None


def _flattened(rows: list[tuple[Form, ...]]) -> list[tuple[Form, ...]]:
    """Lay a row or a column flat; a larger matrix stays, and matches no tuple."""
    if len(rows) == 1 or all(len(row) == 1 for row in rows):
        return [tuple(cell for row in rows for cell in row)]
    return rows


def _ratios(gold: Form, answer: Form, algebra: Algebra) -> bool:
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        if len(gold.items) != len(answer.items):
            return False
        if all(map(_like_a_clock, (gold, answer))):
            return _same_time(gold.texts, answer.texts)
        numbers = [_numbers(form.items) for form in (gold, answer)]
        if numbers[0] is None or numbers[1] is None or 0 in numbers[0] + numbers[1]:
            return all(map(matches, gold.items, answer.items, [algebra] * len(gold.items)))
        return len({a / b for a, b in zip(numbers[0], numbers[1], strict=True)}) == 1
    ratio, other = (gold, answer) if isinstance(gold, Ratio) else (answer, gold)
    assert isinstance(ratio, Ratio)
    numbers = [_numbers(ratio.items)]
    if len(ratio.items) != 2 or not isinstance(other, Scalar) or other.number is None:
        return False
    return (
        numbers[0] is not None
        and numbers[0][1] != 0
        and "frac" in other.text
        and (numbers[0][0] / numbers[0][1] == other.number.value)
    )


def _same_time(gold: tuple[str, ...], answer: tuple[str, ...]) -> bool:
    """Morning or evening may be left out on one side, as a unit may."""
    mine, theirs = (re.sub(r"\\text|[{}.\s]", "", ":".join(t)).lower() for t in (gold, answer))
    if mine[-2:] in ("am", "pm") and theirs[-2:] in ("am", "pm"):
        return mine == theirs
    return mine.removesuffix("am").removesuffix("pm") == theirs.removesuffix("am").removesuffix(
        "pm"
    )


def _like_a_clock(ratio: Ratio) -> bool:
    minutes = ratio.texts[-1].split("\\")[0].split()[0]
    return len(ratio.texts) <= 3 and len(minutes) == 2 and minutes.isdigit() and int(minutes) < 60


def _numbers(items: tuple[Form, ...]) -> list[Fraction] | None:
    numbers = [item.number for item in items if isinstance(item, Scalar) and item.number]
    return [n.value for n in numbers] if len(numbers) == len(items) else None


def _based(gold: Form, answer: Form, algebra: Algebra) -> bool:
    """Two bases must be one; a base on one side only is ignored, as a unit is."""
    del algebra
    sides = []
    for form in (gold, answer):
        if isinstance(form, Based):
            sides.append((form.digits.lstrip("0"), form.base))
        elif isinstance(form, Scalar):
            sides.append((form.text.strip().upper().lstrip("0"), ""))
        else:
            return False
    (left, left_base), (right, right_base) = sides
    return left == right and (left_base == right_base or "" in (left_base, right_base))


def _relations(gold: Form, answer: Form, algebra: Algebra) -> bool:
    if isinstance(answer, Relation) and isinstance(gold, Scalar):
        return _names_value(answer.left) and matches(gold, read_scalar(answer.right), algebra)
    if not (isinstance(gold, Relation) and isinstance(answer, Relation)):
        return False
    return algebra.same_relation((gold.left, gold.right), (answer.left, answer.right))


def _names_value(side: str) -> bool:
    """
    Say whether the left side of an equation asks for the value on its right.

    An expression of several names such as ``m+n`` does; ``2x`` or ``x^2`` is an equation yet
    to be solved.
    """
    plain = re.sub(r"_\s*(?:\{[^{}]*\}|\w)|\\[a-zA-Z]+", "", side)
    letters = set(re.findall(r"[a-zA-Z]", plain))
    return len(letters) >= 2 or not re.search(r"\d", plain)


def _assignments(gold: Form, answer: Form, algebra: Algebra) -> bool:
    if isinstance(gold, Assignments) and isinstance(answer, Assignments):
        if [name for name, _ in gold.values] != [name for name, _ in answer.values]:
            return False
        pairs = zip(gold.values, answer.values, strict=True)
        return all(matches(a, b, algebra) for (_, a), (_, b) in pairs)
    named, other = (gold, answer) if isinstance(gold, Assignments) else (answer, gold)
    assert isinstance(named, Assignments)
    values = tuple(value for _, value in named.values)
    if not isinstance(other, Listing) or other.opening not in ("", "(", "<"):
        return False
    if len(values) != len(other.items):
        return False
    mine, theirs = (values, other.items) if named is gold else (other.items, values)
    return all(matches(a, b, algebra) for a, b in zip(mine, theirs, strict=True))


def _listings(gold: Form, answer: Form, algebra: Algebra) -> bool:
    if not (isinstance(gold, Listing) and isinstance(answer, Listing)):
        listing, other = (gold, answer) if isinstance(gold, Listing) else (answer, gold)
        assert isinstance(listing, Listing)
        # "1/2 or 0.5" is one value in two spellings
        return not listing.ordered and all(
            matches(*((item, other) if listing is gold else (other, item)), algebra)
            for item in listing.items
        )
    in_order = gold.ordered or answer.ordered
    if gold.ordered and answer.ordered and _brackets(gold) != _brackets(answer):
        return False
    if in_order and {"{"} & {gold.opening, answer.opening}:
        return False
    brackets = {gold.opening, answer.opening, gold.closing, answer.closing}
    # a half-open or closed interval is not a bare list of its ends
    if in_order and {"[", "]"} & brackets and not (gold.ordered and answer.ordered):
        return False
    mine, theirs = gold.items, answer.items
    if "{" in (gold.opening, answer.opening):
        mine, theirs = tuple(dict.fromkeys(mine)), tuple(dict.fromkeys(theirs))
    if len(mine) != len(theirs):
        return False
    if in_order or any(map(_is_ellipsis, mine)) or any(map(_is_ellipsis, theirs)):
        return all(matches(a, b, algebra) for a, b in zip(mine, theirs, strict=True))
    return _same_in_any_order(mine, theirs, algebra)


def _brackets(listing: Listing) -> tuple[str, str]:
    round_ones = {"<": "(", ">": ")"}
    return (
        round_ones.get(listing.opening, listing.opening),
        round_ones.get(listing.closing, listing.closing),
    )


def _is_ellipsis(form: Form) -> bool:
    return isinstance(form, Scalar) and "\\ldots" in form.text


def _names_figure(form: Scalar) -> bool:
    """The letters of an angle or a triangle are points in order, never factors."""
    return "\\angle" in form.text or "\\triangle" in form.text


def _same_in_any_order(mine: tuple[Form, ...], theirs: tuple[Form, ...], algebra: Algebra) -> bool:
    left = list(theirs)
    for item in mine:
        found = next((other for other in left if matches(item, other, algebra)), None)
        if found is None:
            return False
        left.remove(found)
    return True


def _scalars(gold: Scalar, answer: Scalar, algebra: Algebra) -> bool:
    if gold.modulus and answer.modulus and gold.modulus != answer.modulus:
        return False
    mine, theirs = gold.unit, answer.unit
    if mine is not None and theirs is not None:
        if not convertible(mine, theirs):
            return False
        ratio = theirs.factor / mine.factor
        if ratio != 1:
            return _converted(gold, answer, ratio)
    elif mine is not None or theirs is not None:
        unit = mine or theirs
        assert unit is not None
        if unit.is_percent:
            return _percent(gold, answer)
        if unit.is_angle and _in_radians(gold, answer, algebra):
            return True
    return _values(gold, answer, algebra)


def _values(gold: Scalar, answer: Scalar, algebra: Algebra) -> bool:
    if gold.number is not None and answer.number is not None:
        return alike(gold.number, answer.number)
    if canonical(gold.text) == canonical(answer.text):
        return True
    if any(_is_ellipsis(side) or _names_figure(side) for side in (gold, answer)):
        return False
    return algebra.same(gold.text, answer.text, gold_number=gold.number)


def _converted(gold: Scalar, answer: Scalar, ratio: Fraction) -> bool:
    if gold.number is None or answer.number is None:
        return False
    scaled = Numeral(value=answer.number.value * ratio, approximate=answer.number.approximate)
    return alike(gold.number, scaled)


def _percent(gold: Scalar, answer: Scalar) -> bool:
    """
    Compare where only one side has a percent sign: as shares, or with the sign ignored.

    The sign of an answer cannot be ignored where the gold is below 1, as 0.5 asks for a share.
    """
    if gold.number is None or answer.number is None:
        return canonical(gold.text) == canonical(answer.text)
    hundredth = Fraction(1, 100)
    if gold.unit is not None:
        share = Numeral(value=gold.number.value * hundredth, approximate=gold.number.approximate)
        return alike(gold.number, answer.number) or alike(share, answer.number)
    share = Numeral(value=answer.number.value * hundredth, approximate=answer.number.approximate)
    if alike(gold.number, share):
        return True
    return abs(gold.number.value) >= 1 and alike(gold.number, answer.number)


def _in_radians(gold: Scalar, answer: Scalar, algebra: Algebra) -> bool:
    degrees, radians = (gold, answer) if gold.unit is not None else (answer, gold)
    if "\\pi" not in radians.text or "\\pi" in degrees.text:
        return False
    return algebra.same_angle(degrees.text, radians.text)
