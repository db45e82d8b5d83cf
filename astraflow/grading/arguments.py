r"""Arguments of LaTeX commands: find matching braces, unwrap fonts, brace bare arguments."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["brace_arguments", "group_end", "unwrap"]

_FONTS = "mathbf|boldsymbol|bm|mathit|mathcal|ensuremath|boxed|fbox|cancel|underline|hbox"
_FONT = re.compile(rf"\\(?:{_FONTS}|(?:textcolor|colorbox)\s*\{{[^{{}}]*\}})\s*\{{")
_TEXTS = (
    "textbf|textit|textrm|textnormal|textsf|texttt|textup|textsc|emph|mathrm|mathsf|mathtt|"
    "mathop|operatorname|mbox|text"
)
_TEXT = re.compile(rf"\\({_TEXTS})\s*\{{")
_FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "ln",
        "log",
        "exp",
        "lcm",
        "gcd",
        "min",
        "max",
        "det",
        "dim",
        "ker",
        "tr",
    ]
)
_NUMBER_LIKE = re.compile(r"[\s\d.,+\-*/^%():\\{}]*\d[\s\d.,+\-*/^%():]*")
_TAKES = re.compile(r"\\(frac|binom|sqrt|overline)(?![a-zA-Z])")
_NUM_ARGUMENTS = {"frac": 2, "binom": 2, "sqrt": 1, "overline": 1}
_ARGUMENT = re.compile(r"\\[a-zA-Z]+|\S")
_POWER_OF_PARENTHESES = re.compile(r"\^\s*\(")


def group_end(text: str, start: int) -> int:
    """Return the offset behind the group that opens at ``start``, or -1 if it never closes."""
    pairs = {"{": "}", "(": ")", "[": "]"}
    opening, closing = text[start], pairs[text[start]]
    depth = 0
    at = start
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == opening) - (text[at] == closing)
        at += 1
        if depth == 0:
            return at
    return -1


def unwrap(text: str) -> str:
    r"""
    Drop fonts and boxes around their contents, and bring all upright text to ``\text{...}``.

    ``\mathrm{e}`` becomes ``e``, ``\operatorname{lcm}`` ``\lcm``, ``\text{17}`` ``17``.
    """
    text = _replace_groups(text, _FONT, lambda _, inner: inner)
    return _replace_groups(text, _TEXT, _upright)


def brace_arguments(text: str) -> str:
    r"""Give ``\frac59``, ``\sqrt 3`` and ``x^(n+1)`` the braces that readers expect."""
    out: list[str] = []
    at = 0
    for match in _TAKES.finditer(text):
        if match.start() < at:
            continue
        out.append(text[at : match.end()])
        at = match.end()
        for _ in range(_NUM_ARGUMENTS[match.group(1)]):
            at = _take_argument(text, at, out, root=match.group(1) == "sqrt")
    out.append(text[at:])
    return _brace_powers("".join(out))


def _take_argument(text: str, at: int, out: list[str], *, root: bool) -> int:
    while at < len(text) and text[at] == " ":
        at += 1
    if root and at < len(text) and text[at] == "[":
        end = group_end(text, at)
        if end > 0:
            out.append(text[at:end])
            at = end
    while at < len(text) and text[at] == " ":
        at += 1
    if at >= len(text):
        return at
    if text[at] == "{" or (root and text[at] == "("):
        end = group_end(text, at)
        if end < 0:
            return at
        out.append("{" + brace_arguments(text[at + 1 : end - 1]) + "}")
        return end
    argument = _ARGUMENT.match(text, at)
    if argument is None or argument.group() in _NUM_ARGUMENTS:
        return at
    token = argument.group()
    if root and token.isdigit():
        digits = re.compile(r"\d+").match(text, at)
        token = digits.group() if digits else token
    out.append("{" + token + "}")
    return at + len(token)


def _brace_powers(text: str) -> str:
    while match := _POWER_OF_PARENTHESES.search(text):
        end = group_end(text, match.end() - 1)
        if end < 0:
            return text
        inner = text[match.end() : end - 1]
        text = f"{text[: match.start()]}^{{{inner}}}{text[end:]}"
    return text


def _replace_groups(
    text: str, pattern: re.Pattern[str], replace: Callable[[re.Match[str], str], str]
) -> str:
    out: list[str] = []
    at = 0
    while match := pattern.search(text, at):
        end = group_end(text, match.end() - 1)
        if end < 0:
            break
        inner = _replace_groups(text[match.end() : end - 1], pattern, replace)
        out += [text[at : match.start()], replace(match, inner)]
        at = end
    out.append(text[at:])
    return "".join(out)


def _upright(match: re.Match[str], inner: str) -> str:
    command, bare = match.group(1), inner.strip(" ~")
    if command == "operatorname" and bare in _FUNCTIONS:
        return f"\\{bare} "
    if command in ("mathrm", "mathop") and bare in _FUNCTIONS:
        return f"\\{bare} "
    if command == "mathrm" and len(bare) == 1 and bare in "eid" and inner == bare:
        return f" {bare} "
    if _NUMBER_LIKE.fullmatch(inner):
        return inner
    words = inner.replace("~", " ").replace("\\ ", " ")
    return f"\\text{{{words}}}"
