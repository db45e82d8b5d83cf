r"""Cut a spelled answer at separators that stand outside of all brackets."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = [
    "canonical",
    "has_top_level",
    "join_thousands",
    "split_top_level",
    "strip_outer",
    "tokens",
]

_TOKEN = re.compile(r"\\\\|\\[a-zA-Z]+|\\.|[a-zA-Z]+|\d+(?:\.\d+)?|\s+|.", re.DOTALL)
_OPENING = frozenset(["{", "(", "[", "\\{", "\\langle", "\\lfloor", "\\lceil"])
_CLOSING = frozenset(["}", ")", "]", "\\}", "\\rangle", "\\rfloor", "\\rceil"])
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_LOOSE_SPACE = re.compile(r"(?<![\d,])\s+|\s+(?![\d,])")


def canonical(text: str) -> str:
    """Drop blanks that carry no meaning; those next to digits or commas may, and stay."""
    return _LOOSE_SPACE.sub("", text)


def tokens(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield each token with its offset and the bracket depth around it."""
    depth = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token in _CLOSING or (token == "\\end"):
            depth -= 1
        yield token, match.start(), depth
        if token in _OPENING or token == "\\begin":
            depth += 1


def join_thousands(text: str) -> str:
    """Drop the commas of ``12,500`` outside of brackets; inside, a comma parts two values."""
    if "," not in text:
        return text
    depth_at = {at: depth for _, at, depth in tokens(text)}
    return _THOUSANDS.sub(
        lambda m: m.group() if depth_at.get(m.start(), 1) else m.group().replace(",", ""), text
    )


def split_top_level(text: str, separators: frozenset[str]) -> list[str]:
    """Split at tokens of ``separators`` outside of brackets; one part if there is none."""
    parts: list[str] = []
    start = 0
    for token, at, depth in tokens(text):
        if depth == 0 and token in separators:
            parts.append(text[start:at].strip())
            start = at + len(token)
    parts.append(text[start:].strip())
    return parts


def has_top_level(text: str, wanted: frozenset[str]) -> bool:
    """Say whether a token of ``wanted`` stands outside of all brackets."""
    return any(depth == 0 and token in wanted for token, _, depth in tokens(text))


def strip_outer(text: str) -> tuple[str, str, str] | None:
    r"""
    Take off one pair of brackets that spans the whole text.

    Returns:
        Opening, inner text and closing, with ``{`` for ``\{`` and ``<`` for ``\langle``; None
        when no pair spans it. Openings and closings may differ, as intervals need.
    """
    found = list(tokens(text))
    if len(found) < 2:
        return None
    first, last = found[0][0], found[-1][0]
    if first not in ("(", "[", "\\{", "\\langle", "]") or last not in (
        ")",
        "]",
        "\\}",
        "\\rangle",
        "[",
    ):
        return None
    inner_start, inner_end = len(first), found[-1][1]
    if first in _OPENING and last in _CLOSING:
        spans = all(depth > 0 for _, _, depth in found[1:-1])
    else:
        spans = first == "]" or last == "["
    if not spans:
        return None
    names = {"\\{": "{", "\\}": "}", "\\langle": "<", "\\rangle": ">"}
    return names.get(first, first), text[inner_start:inner_end].strip(), names.get(last, last)
