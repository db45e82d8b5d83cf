"""Read a spelled answer into a form: by its outermost structure first, leaves last."""

from __future__ import annotations

import re

from astraflow.grading.arguments import group_end
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
from astraflow.grading.numerals import read_number
from astraflow.grading.quantities import read_scalar
from astraflow.grading.splitting import (
    has_top_level,
    join_thousands,
    split_top_level,
    strip_outer,
)
from astraflow.grading.words import read_words

__all__ = ["is_grouped_list", "read"]

_COMMAS = frozenset([",", ";", "and", "or", "\\\\", "\\lor", "\\land", "\\wedge", "\\vee"])
_ORDERINGS = frozenset(["<", ">", "\\le", "\\ge", "\\ne"])
_REGION_SIGNS = frozenset(["\\cup", "\\cap", "\\setminus"])
_TEXT_JOIN = re.compile(r"\\text\{\s*,?\s*(and|or|AND|OR)\s*\}")
_WHOLE_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_GROUPED_LIST = re.compile(r"\d{3}(?:,\d{3}){2,}")
_EXPLANATION = re.compile(
    r"(?<=[\w})%])\s*(?:\\text\{\s+\((?!\s*(?:or|and|not)\b)|\(\s*(?:\\text\{)?\s*(?:since|because|as|where|approx\w*|"
    r"i\.e|which|when|rounded|about)\b|\\text\{\s*(?:since|because)\b).*$",
    re.DOTALL,
)
_CHOICE = re.compile(
    r"(?:\\text\{\s*)?(?:\((?P<round>[A-H])\)|(?P<dotted>[A-H])[.)])\s*\}?\s*(?P<value>\S.*)",
    re.DOTALL,
)
_REALS = re.compile(r"(?:the )?(?:set of )?(?:all )?real(?:s| numbers)", re.IGNORECASE)
_CHOICE_ONLY = re.compile(r"(?:choice|option|answer)?\s*\(?([A-H])[).:]?", re.IGNORECASE)
_MATRIX = re.compile(
    r"(.*?)\\begin\{([pbvBV]?matrix|smallmatrix|array)\}(.*)\\end\{\2\}([)\]|]?)", re.DOTALL
)
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|"
    "tau|phi|varphi|chi|psi|omega|ell|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega"
)
_POINT = re.compile(r"([A-Z])\s*(\(.*\))", re.DOTALL)
_RATIO_IN_WORDS = re.compile(r"(\d+)\s*(?:\\text\{\s*to\s*\}|to)\s*(?=\d)")
_MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_ORDINAL = re.compile(r"([-+]?\d+)\s*\^?\s*\{?\s*(?:\\text\{\s*)?(?:st|nd|rd|th)\s*\}*")
_UPRIGHT_MAGNITUDE = re.compile(rf"\\text\{{\s*({'|'.join(_MAGNITUDES)})\b\s*([^{{}}]*)\}}")
_MAGNITUDE = re.compile(rf"(?<=\d)\s*({'|'.join(_MAGNITUDES)})\b")
_BASED = re.compile(
    r"(?:\\text\{|\()?([0-9][0-9A-Za-z]*|[A-F][0-9A-F]*\d[0-9A-F]*)[)}]?\s*"
    r"(?:_\s*\{?\s*(?:\\text\{)?\s*(?:base\s*\}?)?\s*|"
    r"\\text\{\s*(?:in\s+)?base\s*\}?\s*|(?:in )?base\s+)"
    r"(\d+|[a-z]+)\s*\}*"
)
_BASE_WORDS = {
    word: str(value)
    for value, word in enumerate(
        ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 2
    )
}
_NAME = re.compile(
    rf"(?:\\(?:{_GREEK})(?![a-zA-Z])|[a-zA-Z]|\\text\{{[^{{}}]*\}}|m?\s*\\angle\s*[A-Za-z]{{1,3}})'*"
    r"(?:_\s*(?:\{[^{}]*\}|\w))?'*(?:\s*\([^()=]*\))?|[a-zA-Z][a-zA-Z ]*"
)
_TUPLE_OF_NAMES = re.compile(
    rf"\(((?:\\(?:{_GREEK})|[a-zA-Z])(?:_\{{?\w\}}?)?(?:\s*,\s*(?:\\(?:{_GREEK})|[a-zA-Z])(?:_\{{?\w\}}?)?)+)\s*\)"
)
_SET_BUILDER = re.compile(r"\s*([a-zA-Z])\s*(?:\\in\s*\\mathbb\{[RZN]\})?\s*[|:]\s*(.*)", re.DOTALL)
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![a-z])")


def read(text: str) -> Form | None:
    """Read one spelled answer; None for empty text."""
    text = _TEXT_JOIN.sub(lambda m: f" {m.group(1).lower()} ", _EXPLANATION.sub("", text))
    text = text.strip().rstrip(" .")
    text = join_thousands(_in_digits(_without_group(text)))
    if not text:
        return None
    if text == "\\mathbb{R}" or _REALS.fullmatch(text.removeprefix("\\text{").removesuffix("}")):
        return Region(text="\\mathbb{R}")
    whole = _WHOLE_TEXT.fullmatch(text)
    if whole and whole.group(1).strip():
        return _read_upright(whole.group(1).strip())
    return _read_structure(text)


def _without_group(text: str) -> str:
    """Take off TeX's braces around the whole; with commas in between they were meant as a set."""
    while text.startswith("{") and group_end(text, 0) == len(text):
        inner = text[1:-1].strip()
        if has_top_level(inner, frozenset([","])):
            return f"\\{{{inner}\\}}"
        text = inner
    return text


def _in_digits(text: str) -> str:
    r"""Write ``2.5 million`` as ``2.5\cdot 10^{6}``, and ``7th`` as 7."""
    if ordinal := _ORDINAL.fullmatch(text):
        return ordinal.group(1)
    if "illion" not in text and "thousand" not in text and "hundred" not in text:
        return text
    text = _UPRIGHT_MAGNITUDE.sub(
        lambda m: f"{m.group(1)} \\text{{{m.group(2)}}}" if m.group(2) else m.group(1), text
    )
    return _MAGNITUDE.sub(lambda m: rf"\cdot 10^{{{_MAGNITUDES[m.group(1)]}}}", text)


def is_grouped_list(text: str) -> list[str] | None:
    """Split ``100,200,300``: three full groups and more may be a list as well as a number."""
    return text.split(",") if _GROUPED_LIST.fullmatch(text) else None


def _read_upright(inner: str) -> Form | None:
    phrase = read_words(f"\\text{{{inner}}}")
    if phrase is not None and "," not in inner:
        parts = re.split(r"\s+(?:and|or)\s+", inner)
        if len(parts) > 1 and all(len(part) == 1 for part in parts):
            return Listing(items=tuple(Scalar(text=part) for part in parts))
        choice = _CHOICE_ONLY.fullmatch(inner)
        return Scalar(text=choice.group(1).upper()) if choice else Words(words=phrase)
    if len(inner) == 1 or _CHOICE_ONLY.fullmatch(inner):
        return Scalar(text=inner.strip("().:").upper())
    return read(inner)


def _read_structure(text: str) -> Form | None:
    matrix = _MATRIX.fullmatch(text)
    if matrix:
        return _read_matrix(matrix)
    if has_top_level(text, _ORDERINGS | _REGION_SIGNS) and not read_words(text):
        return _read_region(text)
    if "\\in" in text and has_top_level(text, frozenset(["\\in"])):
        label, _, rest = text.partition("\\in")
        inner = read(rest)
        return None if inner is None else Labelled(label=_label(label), form=inner)
    phrase = read_words(text)
    parts = [part for part in split_top_level(text, _COMMAS) if part]
    if len(parts) > 1 and (phrase is None or all(len(part) == 1 for part in parts)):
        return _read_list(parts)
    if phrase is not None:
        return Words(words=phrase)
    return _read_bracketed(text) or _read_single(text)


def _read_bracketed(text: str) -> Form | None:
    outer = strip_outer(text)
    if outer is None:
        return None
    opening, inner, closing = outer
    if opening == "{" and (built := _SET_BUILDER.fullmatch(inner)):
        return read(built.group(2))
    parts = split_top_level(inner, frozenset([",", ";"]))
    if len(parts) == 1:
        if opening in ("(", "["):
            return read(inner)
        if not inner:
            return Scalar(text="\\emptyset")
    forms = [read(part) for part in parts if part]
    kept = tuple(form for form in forms if form is not None)
    # ]2, 5[ is how half of the world writes an open interval
    return Listing(
        items=kept,
        opening="(" if opening == "]" else opening,
        closing=")" if closing == "[" else closing,
    )


def _read_single(text: str) -> Form | None:
    sides = split_top_level(text, frozenset(["=", "\\approx", "\\equiv"]))
    if len(sides) > 1:
        return _read_chain(sides)
    choice = _CHOICE.fullmatch(text)
    if choice and not choice["value"].startswith(("+", "-", "^", "/", "(", "=", "_", "\\cdot")):
        inner = read(choice["value"])
        letter = choice["round"] or choice["dotted"]
        return None if inner is None else Labelled(label=f"({letter})", form=inner)
    if _PLUS_MINUS.search(text):
        upper = _PLUS_MINUS.sub(lambda m: "+" if m.group() == "\\pm" else "-", text)
        lower = _PLUS_MINUS.sub(lambda m: "-" if m.group() == "\\pm" else "+", text)
        both = (read(upper.lstrip("+ ")), read(lower))
        return Listing(items=tuple(form for form in both if form is not None))
    based = _BASED.fullmatch(text)
    if based and read_number(text) is None:
        return Based(digits=based.group(1).upper(), base=_base(based.group(2)))
    point = _POINT.fullmatch(text)
    if point and isinstance(inner := _read_bracketed(point.group(2)), Listing):
        return Labelled(label=point.group(1), form=inner)
    terms = split_top_level(_RATIO_IN_WORDS.sub(r"\1:", text), frozenset([":"]))
    if len(terms) > 1 and all(terms):
        forms = tuple(read(term) for term in terms)
        return Ratio(items=tuple(f for f in forms if f is not None), texts=tuple(terms))
    return read_scalar(text)


def _base(name: str) -> str:
    return _BASE_WORDS.get(name, name)


def _read_list(parts: list[str]) -> Form | None:
    forms = [form for form in map(read, parts) if form is not None]
    labels = [form.label if isinstance(form, Labelled) else "" for form in forms]
    values = tuple(form.form if isinstance(form, Labelled) else form for form in forms)
    named = {label for label in labels if label}
    if len(named) == 1 and (labels[0] and (all(labels) or not any(labels[1:]))):
        return Labelled(label=labels[0], form=Listing(items=_flat(values)))
    if all(labels) and len(named) == len(labels):
        return Assignments(
            values=tuple(sorted(zip(labels, values, strict=True), key=lambda p: p[0]))
        )
    return Listing(items=_flat(tuple(forms)))


def _flat(forms: tuple[Form, ...]) -> tuple[Form, ...]:
    """Put the two values of a plus-minus sign among their neighbors."""
    flat: list[Form] = []
    for form in forms:
        if isinstance(form, Listing) and not form.opening:
            flat += form.items
        else:
            flat.append(form)
    return tuple(flat)


def _read_chain(sides: list[str]) -> Form | None:
    """Read ``x = 5``, ``x = 2+3 = 5`` and ``2+3 = 5``; anything else is a relation."""
    sides = [side for side in sides if side]
    if len(sides) == 1:
        return read(sides[0])
    first, last = sides[0], sides[-1]
    if (names := _TUPLE_OF_NAMES.fullmatch(first)) and (inner := read(last)) is not None:
        return _assigned([name.strip() for name in names.group(1).split(",")], inner)
    values = [read_number(side) for side in sides]
    if all(value is not None for value in values):
        exact = {value.value for value in values if value is not None}
        return read(last) if len(exact) == 1 else Relation(left=first, right=last)
    if not _is_name(first):
        if len(sides) == 2 and _is_name(last) and read_number(first) is not None:
            return Labelled(label=_label(last), form=read_scalar(first))
        return Relation(left=first, right=last)
    middle = [value.value for value in values[1:] if value is not None]
    if len(set(middle)) > 1 and not any(value.approximate for value in values if value):
        return Relation(left=sides[-2], right=last)
    inner = read(last)
    return None if inner is None else Labelled(label=_label(first), form=inner)


def _assigned(names: list[str], form: Form) -> Form:
    """Read ``(x, y) = (3, 4)`` as values by name, where their numbers agree."""
    if not isinstance(form, Listing) or len(form.items) != len(names):
        return form
    return Assignments(
        values=tuple(
            sorted(zip(map(_label, names), form.items, strict=True), key=lambda pair: pair[0])
        )
    )


def _is_name(side: str) -> bool:
    return _NAME.fullmatch(side.strip()) is not None


def _label(text: str) -> str:
    return re.sub(r"\s+|\\text\{|\}|\{", "", text)


def _read_matrix(match: re.Match[str]) -> Form | None:
    before, kind, body, _ = match.groups()
    before = before.strip().rstrip("([|").strip()
    if "\\begin" in body or "=" in before:
        return _labelled_matrix(match, before)
    factor = f"({before})" if before not in ("", "-") else before
    rows = []
    for row in re.split(r"\\\\", body):
        cells = [cell.strip() for cell in row.split("&")]
        if any(cells):
            forms = tuple(read_scalar(f"{factor}({cell})" if factor else cell) for cell in cells)
            rows.append(forms)
    return Matrix(rows=tuple(rows), determinant=kind in ("vmatrix", "Vmatrix"))


def _labelled_matrix(match: re.Match[str], before: str) -> Form | None:
    text = match.group()
    label, equals, rest = text.partition("=")
    if equals and "\\begin" not in label and (inner := read(rest)) is not None:
        return Labelled(label=_label(label), form=inner)
    return Scalar(text=text)


def _read_region(text: str) -> Form:
    return Region(text=text)
