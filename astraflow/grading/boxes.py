r"""Where an answer stands in a completion: the last ``\boxed{...}``, or looser places."""

from __future__ import annotations

import re
from typing import Literal

from astraflow.grading.numerals import read_number
from astraflow.grading.spelling import spell

__all__ = ["AnswerPlace", "closed_boxes", "find_answer", "last_boxes"]

AnswerPlace = Literal["boxed", "any"]
"""What a recipe pays: only a box, or also tags, a ``####`` tail, a sentence, a bare number."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TAG_OPENS = re.compile(r"<answer>", re.IGNORECASE)
_TAG_ENDS = re.compile(r"</answer>", re.IGNORECASE)
_TAIL = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]*)$", re.MULTILINE)
_SENTENCE = re.compile(
    r"\b(?:the\s+(?:final\s+|correct\s+)?answer\s+is|(?:final\s+)?answer\s*(?:is\s*)?:)"
    r"[\s:*]*([^\n]*)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"(?<![0-9])[.!?](?:\s|$)|[.!?]\s+(?=[A-Z])|[.!?]?$")
_MATH_SPAN = re.compile(r"^(?:\$\$?(.+?)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\])")
_JOINED_BY = re.compile(r"[\s$.]*(?:,|;|and|or|,\s*and|,\s*or|&)?[\s$]*")


def find_answer(completion: str, *, place: AnswerPlace, truncated: bool) -> str | None:
    r"""
    Return the text of the final answer, or None where there is none.

    Args:
        completion: What the policy wrote, never the prompt.
        place: ``boxed`` looks for a box only. ``any`` then tries ``<answer>`` tags, a ``####``
            tail, "the answer is ...", and a completion that is nothing but a number.
        truncated: True when the completion was cut at the token limit; then only a box that
            was closed before the cut counts.
    """
    boxes = closed_boxes(completion)
    if boxes:
        start, end = boxes[-1]
        return completion[start:end]
    if place == "boxed" or truncated or _BOX.search(completion):
        return None
    tagged = _last_tag(completion)
    if tagged is not None:
        return tagged
    tail = _last(_TAIL, completion)
    if tail is not None:
        return tail.group(1)
    sentence = _last(_SENTENCE, completion)
    if sentence is not None:
        return _of_sentence(sentence.group(1))
    bare = completion.strip()
    return bare if len(bare) <= 200 and read_number(spell(bare)) is not None else None


def closed_boxes(text: str) -> list[tuple[int, int]]:
    """
    List the contents of all boxes that close, outermost only, as (start, end) offsets.

    One pass with a stack, so thousands of unclosed boxes cost no more than plain text.
    """
    opens = {match.end() - 1 for match in _BOX.finditer(text)}
    if not opens:
        return []
    stack: list[int] = []
    found: list[tuple[int, int]] = []
    for match in _BRACE.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(match.start())
        elif token == "}" and stack:
            start = stack.pop()
            if start in opens:
                while found and found[-1][0] > start:
                    found.pop()
                found.append((start + 1, match.start()))
    return found


def last_boxes(completion: str) -> list[str]:
    """
    Return the run of boxes at the end that only "and", "or" or a comma joins.

    Such a run is one answer written in pieces when the gold has as many values.
    """
    boxes = closed_boxes(completion)
    run: list[str] = []
    after = -1
    for start, end in reversed(boxes):
        if run:
            between = completion[end + 1 : after]
            if not _JOINED_BY.fullmatch(between):
                break
        run.append(completion[start:end])
        after = completion.rfind("\\", 0, start)
    return run[::-1]


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    found = None
    for found in pattern.finditer(text):  # noqa: B007  the last match is what we want
        pass
    return found


def _last_tag(text: str) -> str | None:
    """Return what the last pair of tags holds; each end is looked for once."""
    found, at = None, 0
    while opened := _TAG_OPENS.search(text, at):
        ended = _TAG_ENDS.search(text, opened.end())
        if ended is None:
            break
        found, at = text[opened.end() : ended.start()], ended.end()
    return found


def _of_sentence(rest: str) -> str | None:
    rest = rest.strip().replace("**", "")
    span = _MATH_SPAN.match(rest)
    if span:
        return next(group for group in span.groups() if group is not None)
    end = _SENTENCE_END.search(rest)
    answer = (rest[: end.start()] if end else rest).strip()
    return answer or None
