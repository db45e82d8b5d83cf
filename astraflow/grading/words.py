"""Answers in words: weekdays, yes and no, names of curves, letters of choices."""

from __future__ import annotations

import re

__all__ = ["is_placeholder", "number_of", "read_words", "words_alike"]

_NUMBER_WORDS = {
    word: value
    for value, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
}
_TENS = {
    word: 10 * value
    for value, word in enumerate(
        ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], 2
    )
}

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_PHRASE = re.compile(r"[A-Za-z][A-Za-z'’\-. ]*(?:[A-Za-z0-9' \-.]*)")  # noqa: RUF001
_SHORT = frozenset(["no", "yes", "up", "am", "pm", "tie"])
_NAMES_OF_FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "exp",
        "max",
        "min",
        "gcd",
        "lcm",
        "det",
        "mod",
    ]
)
_ARTICLES = frozenset(["a", "an", "the"])
_EMPTY = frozenset(
    ["no solution", "no solutions", "empty set", "no real solution", "no real solutions"]
)
_SYNONYMS = {
    "does not exist": "dne",
    "doesn't exist": "dne",
    "infinitely many solutions": "infinitely many",
    "infinite": "infinity",
    "not defined": "undefined",
} | dict.fromkeys(_EMPTY, "no solution")
_PLACEHOLDER = re.compile(
    r"(?:see|refer to|cf\.?|as shown|shown|proof|proven|qed|none given|not given|not available|"
    r"n/a|na|nan|null|unknown|tbd|todo|answer|omitted|\?+|-+|\.+)(?:$|\s(?:the\s|in\s)?"
    r"(?:figure|solution|answer|diagram|proof|above|below|text|picture|graph|explanation|table).*)",
    re.IGNORECASE,
)


def read_words(text: str) -> tuple[str, ...] | None:
    r"""
    Read a phrase, lower case and without articles; None where letters are mathematics.

    Inside ``\text`` two letters make a word. Bare letters do from three on, unless they run in
    the order of the alphabet, as a product of variables does.
    """
    upright = "\\text" in text
    plain = _TEXT.sub(lambda m: f" {m.group(1)} ", text).strip(" .!")
    if upright and any(c.isdigit() for c in _TEXT.sub("", text)):
        return None
    if not _PHRASE.fullmatch(plain):
        return None
    words = plain.replace("-", " ").split()
    if not any(_is_word(word, upright=upright) for word in words):
        return None
    if not upright and any(len(word) == 1 and word not in "aAI" for word in words[:-1]):
        return None
    lowered = [word.lower().strip(".,") for word in words]
    kept = tuple(word for word in lowered if word not in _ARTICLES)
    return kept or tuple(lowered)


def _is_word(word: str, *, upright: bool) -> bool:
    if word.lower() in _SHORT:
        return True
    if word.lower() in _NAMES_OF_FUNCTIONS or not word.isalpha():
        return "'" in word
    if upright:
        return len(word) >= 2
    return len(word) >= 3 and list(word) != sorted(word) and len(set(word)) > 1


def number_of(words: tuple[str, ...]) -> int | None:
    """Return the number below a hundred that the words say; None where they say none."""
    if len(words) == 1:
        return _NUMBER_WORDS.get(words[0], _TENS.get(words[0]))
    if len(words) == 2 and words[0] in _TENS:
        unit = _NUMBER_WORDS.get(words[1], 0)
        return _TENS[words[0]] + unit if 0 < unit < 10 else None
    return None


def words_alike(gold: tuple[str, ...], answer: tuple[str, ...]) -> bool:
    """Compare two phrases word by word; a few phrases have one meaning."""
    return _meaning(gold) == _meaning(answer)


def _meaning(words: tuple[str, ...]) -> str:
    phrase = " ".join(words)
    return _SYNONYMS.get(phrase, phrase)


def is_placeholder(text: str) -> bool:
    """Say whether a gold only points elsewhere ("see figure", "N/A") and can pay nobody."""
    plain = _TEXT.sub(lambda m: m.group(1), text).strip(" .!()")
    return _PLACEHOLDER.fullmatch(plain) is not None
