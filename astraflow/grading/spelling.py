r"""One spelling for what people and models write: Unicode, LaTeX and plain text to plain LaTeX."""

from __future__ import annotations

import re
import unicodedata

from astraflow.grading.arguments import brace_arguments, unwrap

__all__ = ["spell"]

_SYMBOLS = {
    **dict.fromkeys("−–—‐‑‒―﹣－", "-"),  # noqa: RUF001
    **dict.fromkeys("×✕✖", r"\times "),  # noqa: RUF001
    **dict.fromkeys("·⋅•∙", r"\cdot "),
    "∗": "*",
    "÷": r"\div ",
    "π": r"\pi ",
    "∞": r"\infty ",
    "≤": r"\le ",
    "⩽": r"\le ",
    "≥": r"\ge ",
    "⩾": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "∪": r"\cup ",
    "∩": r"\cap ",
    "∅": r"\emptyset ",
    "∈": r"\in ",
    "ℝ": r"\mathbb{R}",
    "°": r"^\circ ",
    "º": r"^\circ ",
    "±": r"\pm ",
    "∓": r"\mp ",
    "…": r"\ldots ",
    "⋯": r"\ldots ",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "∠": r"\angle ",
    "′": "'",  # noqa: RUF001
    "’": "'",  # noqa: RUF001
    "‘": "'",  # noqa: RUF001
    "。": ".",
    "、": ",",
    "∶": ":",  # noqa: RUF001
    "⁄": "/",
    "∕": "/",  # noqa: RUF001
    "∖": r"\setminus ",  # noqa: RUF001
    "£": r"\pounds ",
    "₁": "_1",
}
_GREEK = {
    symbol: rf"\{name} "
    for symbol, name in zip(
        "αβγδεζηθικλμνξρστυφχψωΓΔΘΛΞΠΣΦΨΩ",  # noqa: RUF001
        [
            "alpha",
            "beta",
            "gamma",
            "delta",
            "epsilon",
            "zeta",
            "eta",
            "theta",
            "iota",
            "kappa",
            "lambda",
            "mu",
            "nu",
            "xi",
            "rho",
            "sigma",
            "tau",
            "upsilon",
            "phi",
            "chi",
            "psi",
            "omega",
            "Gamma",
            "Delta",
            "Theta",
            "Lambda",
            "Xi",
            "Pi",
            "Sigma",
            "Phi",
            "Psi",
            "Omega",
        ],
        strict=True,
    )
}
_FOREIGN = str.maketrans(_SYMBOLS | _GREEK)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_RAISED_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_LOWERED_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
# a bar over each digit of a period, as a combining character
_BARRED_RUN = re.compile("(?:[0-9][\u0304\u0305])+")
_ROOT_OF = re.compile(r"([√∛∜])\s*(\([^()]*\)|\{[^{}]*\}|\d+(?:\.\d+)?|[a-zA-Zπ])")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}

_NAMES = {
    "dfrac": "frac",
    "tfrac": "frac",
    "cfrac": "frac",
    "nicefrac": "frac",
    "sfrac": "frac",
    "dbinom": "binom",
    "tbinom": "binom",
    "leq": "le",
    "leqslant": "le",
    "geq": "ge",
    "geqslant": "ge",
    "neq": "ne",
    "cdots": "ldots",
    "dots": "ldots",
    "dotsc": "ldots",
    "dotsb": "ldots",
    "varnothing": "emptyset",
    "lbrace": "{",
    "rbrace": "}",
    "lvert": "|",
    "rvert": "|",
    "vert": "|",
    "mid": "|",
    "infin": "infty",
    "bar": "overline",
    "Reals": "mathbb{R}",
    "R": "mathbb{R}",
    "ast": "cdot",
    "backslash": "setminus",
    "bullet": "cdot",
    "euro": "text{euro}",
    "pounds": "text{pound}",
    "smallsetminus": "setminus",
    "lnot": "neg",
    "iff": "Leftrightarrow",
    "implies": "Rightarrow",
}
_DROPPED = frozenset(
    [
        "displaystyle",
        "textstyle",
        "scriptstyle",
        "limits",
        "nolimits",
        "left",
        "right",
        "middle",
        "big",
        "Big",
        "bigg",
        "Bigg",
        "bigl",
        "bigr",
        "Bigl",
        "Bigr",
        "biggl",
        "biggr",
        "Biggl",
        "Biggr",
        "therefore",
        "rm",
        "bf",
        "it",
        "sf",
        "cal",
        "mathstrut",
        "strut",
        "noindent",
        "centering",
        "tiny",
        "scriptsize",
        "footnotesize",
        "large",
        "Large",
        "LARGE",
        "huge",
        "Huge",
        "small",
        "normalsize",
        "relax",
        "null",
    ]
)
_SPACES = frozenset(
    ["quad", "qquad", "thinspace", "medspace", "thickspace", "enspace", "hfill", "space"]
)
_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
_BARE_NAMES = (
    "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|ln|log|exp|min|max|gcd|det|arg"
)
_REWRITES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\\s*\[[^\[\]]*\]", r"\\\\"),  # \\[4pt] between rows
        (r"\\begin\{array\}\s*\{[^{}]*\}", r"\\begin{array}"),
        (r"\\(?:hspace|vspace|hskip|phantom|label|tag|color)\*?\s*\{[^{}]*\}", " "),
        (r"\\not\s*=", r"\\ne "),
        (r"\\[()\[\]](?![a-zA-Z])", " "),
        (r"(?<=\d)\s*\\!\s*", ""),
        (r"(?<=\d)\s*(?:\\,|\{,\}|\{\\,\}|,\\!)\s*(?=\d{3}(?!\d))", ""),
        (r"\{,\}", ","),
        (r"\\!", ""),
        (r"(?<!\\)\\[,;: >/]|~", " "),
        (r"\\%", "%"),
        (r"\\#", "#"),
        (r"\\&", " and "),
        (r"\\degree|\^\s*\{\s*\\circ\s*\}|\{\}\^\\circ", r"^\\circ "),
        (r"\^\s*\{\s*(?:\\prime\s*)+\}|\^\s*\\prime", "'"),
        (r"\.\.\.+", r"\\ldots "),
        (r"(?<![<>!=\\])==(?!=)", "="),
        (r"<=|=<", r"\\le "),
        (r">=", r"\\ge "),
        (r"(?<=\s)!=(?!=)", r"\\ne "),  # 5!=120 is a factorial
        (r"\b(?:np|math|sympy)\.(?=[a-z])", ""),
        (r"(?<=\d)\.(?=\s*[-+*/^)}])", ""),
        (r"\*\*", "^"),
        (r"\*", r"\\cdot "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\text\s*\{\s*([:;,]?)\s*\}", r"\1 "),
    )
)
_PLAIN_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<![a-zA-Z\\])sqrt(?=\s*[({\d])", r"\\sqrt"),
        (r"(?<![a-zA-Z\\])cbrt(?=\s*[({])", r"\\sqrt[3]"),
        (r"(?<![a-zA-Z\\])pi(?![a-zA-Z])", r"\\pi "),
        (r"(?<![a-zA-Z\\])(?:infinity|inf|oo)(?![a-zA-Z])", r"\\infty "),
        (r"(?<![a-zA-Z\\])theta(?![a-zA-Z])", r"\\theta "),
        (rf"(?<![a-zA-Z\\])({_BARE_NAMES})(?=\s*[\^(\\0-9]|\s+[a-z](?![a-zA-Z]))", r"\\\1 "),
        (r"\^\s*(-?\d+)(?![\d.])", r"^{\1}"),
        (r"_\s*(\d+)", r"_{\1}"),
        (r"(?<![\d.])\.(?=\d)", "0."),
        (r"\s+", " "),
    )
)
# A backslash that somebody escaped twice; behind \\begin two of them end a row.
_DOUBLED = re.compile(
    r"\\\\(?=(?:[dt]?frac|sqrt|pi|text|mathrm|left|right|cdot|times|infty|leq?|geq?|pm)(?![a-z]))"
)
_QUOTES = (("**", "**"), ("``", "''"), ("`", "`"), ('"', '"'), ("'", "'"), ("\u201c", "\u201d"))
# Possessive: a run that does not end the text is not tried again in smaller pieces.
_TRAILING = re.compile(r"(?:[\s.,;:]|\\++(?=$|[\s.,;:])|(?<!\\)\$|\*\*)++$")
_LEADING = re.compile(r"^(?:[\s=:,;]|\*\*|\\approx(?![a-z])|\\sim(?![a-z]))+")


def spell(text: str) -> str:
    r"""
    Rewrite ``text`` in the one spelling that the readers of this package know.

    Values are never changed: ``\dfrac12`` becomes ``\frac{1}{2}``, full-width digits become
    digits, ``12{,}500`` becomes ``12500``, ``2*x**2`` becomes ``2\cdot x^{2}``, delimiters and
    closing punctuation go. ``\text{...}`` stays, as words and units need it.
    """
    text = _unquoted(text)
    if not text.isascii():
        text = _from_unicode(text)
    text = "".join(c for c in text if c >= " " or c in "\n\t") if _has_controls(text) else text
    if "$" in text:
        text = _without_dollars(text)
    if not text.isdigit():
        text = _plain_latex(text)
    text = _TRAILING.sub("", _LEADING.sub("", text))
    return text.strip()


def _unquoted(text: str) -> str:
    """Take off quotation marks and Markdown around the whole answer."""
    text = text.strip()
    for opening, closing in _QUOTES:
        whole = text.startswith(opening) and text.endswith(closing)
        inner = text[len(opening) : -len(closing)]
        if whole and inner and opening not in inner and closing not in inner:
            return inner
    return text


def _has_controls(text: str) -> bool:
    return not text.isprintable()


def _from_unicode(text: str) -> str:
    text = _RAISED_RUN.sub(lambda m: "^{" + m.group().translate(_RAISED) + "}", text)
    text = _LOWERED_RUN.sub(lambda m: "_{" + m.group().translate(_LOWERED) + "}", text)
    text = _BARRED_RUN.sub(lambda m: rf"\overline{{{m.group()[::2]}}}", text)
    text = _ROOT_OF.sub(_root, text)
    text = "".join(_vulgar(c) if unicodedata.category(c) == "No" else c for c in text)
    text = text.translate(_FOREIGN)
    text = unicodedata.normalize("NFKC", text).translate(_FOREIGN)
    return "".join(c for c in text if unicodedata.category(c) not in ("Cf", "Co", "Cs"))


def _root(match: re.Match[str]) -> str:
    inner = match.group(2)
    if inner[0] in "({":
        inner = inner[1:-1]
    return f"{_ROOTS[match.group(1)]}{{{inner}}}"


def _vulgar(character: str) -> str:
    parts = unicodedata.normalize("NFKC", character).split("\u2044")
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else character


def _without_dollars(text: str) -> str:
    """Drop math delimiters; keep a currency sign, which is escaped or alone."""
    text = text.replace("\\$", "\x01")
    if text.count("$") == 1:
        text = re.sub(r"\$(?=\s*-?[\d.])", "\x01", text)
    text = text.replace("$", " ")
    return text.replace("\x01", r"\text{dollar}")


def _plain_latex(text: str) -> str:
    if "\\begin" not in text:
        text = _DOUBLED.sub(r"\\", text)
    text = text.replace(r"\left.", "").replace(r"\right.", "")
    text = _COMMAND.sub(_rename, text)
    text = unwrap(text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    for pattern, replacement in _PLAIN_WORDS:
        text = pattern.sub(replacement, text)
    return brace_arguments(text)


def _rename(match: re.Match[str]) -> str:
    name = match.group(1)
    if name in _DROPPED:
        return ""
    if name in _SPACES:
        return " "
    new = _NAMES.get(name)
    if new is None:
        return match.group()
    if new == "|":
        return "|"
    return f"\\{new}"
