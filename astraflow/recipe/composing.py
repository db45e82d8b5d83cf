"""Compose YAML 1.2 text into located values, event by event, within bounds that no text exceeds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from astraflow.errors import RecipeError
from astraflow.recipe.located import Located, Place, Scalar

__all__ = ["MAX_DEPTH", "compose"]

MAX_DEPTH = 32
"""Levels of nesting; far above what a recipe needs, far below Python's own limit."""

# Aliases of aliases multiply: what is counted is what stands there once all are written out.
_MAX_VALUES = 10_000

# The core schema of YAML 1.2 (chapter 10.3): `5e-6` is a number, `off` and `12:30` are text.
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INF = re.compile(r"[-+]?\.(inf|Inf|INF)")
_WORDS: dict[str, Scalar] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
    ".nan": float("nan"), ".NaN": float("nan"), ".NAN": float("nan"),
}  # fmt: skip
_MAX_DIGITS = 18  # what 64 bits hold; Python itself refuses to read thousands of digits
# Neither paths nor prompts hold these, and JSON cannot carry half of a surrogate pair.
_UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def compose(
    text: str, shown_as: str, problems: list[RecipeError], *, path: tuple[str, ...] = ()
) -> Located | None:
    """
    Compose the one document of a text; None when it is empty.

    Args:
        text: YAML.
        shown_as: The file's name in errors.
        problems: Takes keys given twice, keys that are no words, tags and unusable texts.
        path: Where in a recipe the text belongs.

    Raises:
        RecipeError: it is not YAML, or larger or deeper than a recipe can be.
    """
    _refuse_characters(text, shown_as)
    try:
        events = YAML(typ="safe", pure=True).parse(text)
        return _Composer(events, shown_as, problems).document(path)
    except MarkedYAMLError as error:
        raise _not_yaml(error, shown_as) from error
    except YAMLError as error:  # it carries no mark
        what = str(error).splitlines()[0]
        raise RecipeError(
            f"it is not YAML: {what}", where=shown_as, hint="write it as plain UTF-8 text"
        ) from error


def _refuse_characters(text: str, shown_as: str) -> None:
    bad = _UNUSABLE.search(text)
    if bad:
        before = text[: bad.start()]
        line, column = before.count("\n") + 1, bad.start() - before.rfind("\n")
        raise RecipeError(
            f"the character U+{ord(bad.group()):04X} stands in it, which no YAML may hold",
            where=f"{shown_as}:{line}:{column}",
            hint="delete it",
        )


class _Composer:
    def __init__(self, events: Iterator[Event], file: str, problems: list[RecipeError]) -> None:
        self._events = events
        self._file = file
        self._problems = problems
        self._values = 0
        # Each anchor's value, the values in it and its levels; None while it is still being read.
        self._anchors: dict[str, tuple[Located, int, int] | None] = {}

    def document(self, path: tuple[str, ...]) -> Located | None:
        found: Located | None = None
        documents = 0
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise RecipeError(
                        "the file holds another document, and a recipe is one",
                        where=str(self._place(event)),
                        hint="delete the line `---` and what follows it",
                    )
            elif not isinstance(event, DocumentEndEvent | StreamEndEvent) and documents:
                found = self._node(event, path)
        return found

    def _node(self, event: Any, path: tuple[str, ...]) -> Located:
        place = self._place(event)
        if len(path) > MAX_DEPTH:
            raise _too_deep(path, place)
        if isinstance(event, AliasEvent):
            return self._alias(event, path, place)
        self._refuse_tag(event, path, place)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        before = self._values
        self._count(1, place)
        if isinstance(event, ScalarEvent):
            located = Located(self._scalar(event, path, place), place)
        elif isinstance(event, SequenceStartEvent):
            located = Located(self._items(path), place)
        else:
            assert isinstance(event, MappingStartEvent)
            items, keys = self._pairs(path)
            located = Located(items, place, keys)
        if event.anchor is not None:
            self._anchors[event.anchor] = (located, self._values - before, _levels(located))
        return located

    def _alias(self, event: Any, path: tuple[str, ...], place: Place) -> Located:
        if event.anchor not in self._anchors:
            raise RecipeError(
                f"undefined alias `*{event.anchor}`",
                where=str(place),
                hint=f"put `&{event.anchor}` before the value that is meant, further up",
            )
        anchored = self._anchors[event.anchor]
        if anchored is None:
            raise RecipeError(
                f"the alias `*{event.anchor}` stands inside its own anchor, so it never ends",
                where=str(place),
                hint="write the value out",
            )
        located, values, levels = anchored
        if len(path) + levels > MAX_DEPTH:
            raise _too_deep(path, place)
        self._count(values, place)
        return _copy(located)

    def _items(self, path: tuple[str, ...]) -> list[Located]:
        items: list[Located] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._node(event, (*path, str(len(items)))))
        return items

    def _pairs(self, path: tuple[str, ...]) -> tuple[dict[str, Located], dict[str, Place]]:
        items: dict[str, Located] = {}
        keys: dict[str, Place] = {}
        while not isinstance(event := next(self._events), MappingEndEvent):
            place = self._place(event)
            key = self._key(event, path, place)
            value_event = next(self._events)
            value = self._node(value_event, (*path, key or "?"))
            if value.value is None and value_event.start_mark.index == value_event.end_mark.index:
                # Nothing is written, and the parser has gone on to the next line.
                value.place = self._after(event)
            if key in keys:
                self._problems.append(
                    RecipeError(
                        f"`{'.'.join((*path, key))}` is given twice, first at {keys[key]}",
                        where=str(place),
                        hint="delete one of the two lines",
                    )
                )
            elif key:
                keys[key], items[key] = place, value
        return items, keys

    def _key(self, event: Any, path: tuple[str, ...], place: Place) -> str:
        """Return a key; empty, with the problem told, when it is no word."""
        value = self._node(event, (*path, "?")).value
        if value == "<<":
            what = "`<<` merges mappings in YAML 1.1 and is no key in YAML 1.2"
            hint = "write the values out, or put them into a parent recipe: `extends: NAME`"
        elif isinstance(value, str) and value:
            return value
        else:
            shown = "a list or a mapping" if isinstance(value, list | dict) else f"`{event.value}`"
            what = f"a key is {shown}, but keys are words"
            hint = "`astraflow recipes` lists recipes to start from; docs/recipes.md has every key"
        self._problems.append(RecipeError(what, where=str(place), hint=hint))
        return ""

    def _scalar(self, event: Any, path: tuple[str, ...], place: Place) -> Scalar:
        text = str(event.value)
        bad = _UNUSABLE.search(text)
        if bad:
            self._problems.append(
                RecipeError(
                    f"`{'.'.join(path)}` holds the character U+{ord(bad.group()):04X}, which no "
                    "text of a recipe can hold",
                    where=str(place),
                    hint="delete it",
                )
            )
            text = _UNUSABLE.sub("", text)
        if event.style in ("'", '"', "|", ">"):
            return text
        return _plain(text)

    def _refuse_tag(self, event: Any, path: tuple[str, ...], place: Place) -> None:
        if event.ctag is not None:
            self._problems.append(
                RecipeError(
                    f"`{'.'.join(path)}` has the tag `{event.ctag}`, and a recipe has no tags",
                    where=str(place),
                    hint="write the plain value; quotes make a text of it",
                )
            )

    def _count(self, values: int, place: Place) -> None:
        self._values += values
        if self._values > _MAX_VALUES:
            raise RecipeError(
                f"more than {_MAX_VALUES} values, aliases written out",
                where=str(place),
                hint="a recipe has about a hundred; look for aliases of aliases",
            )

    def _after(self, event: Any) -> Place:
        return Place(self._file, event.end_mark.line + 1, event.end_mark.column + 1)

    def _place(self, event: Any) -> Place:
        return Place(self._file, event.start_mark.line + 1, event.start_mark.column + 1)


def _plain(text: str) -> Scalar:
    """Read a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        # Beyond 64 bits it is no count of anything: as a float it is refused as no whole number.
        return int(text) if len(text) <= _MAX_DIGITS else float(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF.fullmatch(text):
        return float("-inf" if text.startswith("-") else "inf")
    return text


def _copy(value: Located) -> Located:
    """Copy an anchor's value, so that what is done to it in one place is not done in the other."""
    if isinstance(value.value, dict):
        items = {key: _copy(item) for key, item in value.value.items()}
        return Located(items, value.place, dict(value.key_places))
    if isinstance(value.value, list):
        return Located([_copy(item) for item in value.value], value.place)
    return Located(value.value, value.place)


def _levels(value: Located) -> int:
    below = value.value
    items = below.values() if isinstance(below, dict) else below if isinstance(below, list) else ()
    return 1 + max((_levels(item) for item in items), default=0)


def _too_deep(path: tuple[str, ...], place: Place) -> RecipeError:
    return RecipeError(
        f"`{'.'.join(path[:2])}...` nests more than {MAX_DEPTH} levels deep",
        where=str(place),
        hint="a recipe has three levels; look for a bracket that is never closed",
    )


def _not_yaml(error: MarkedYAMLError, shown_as: str) -> RecipeError:
    mark = error.problem_mark or error.context_mark
    where = f"{shown_as}:{mark.line + 1}:{mark.column + 1}" if mark else shown_as
    what = str(error.problem or error.context or "it is not YAML").strip()
    hint = "check quotes, brackets and indentation on this line and the one above"
    if r"\t" in what:
        hint = "YAML indents with spaces, never with tabs"
    return RecipeError(f"the YAML ends in an error: {what}", where=where, hint=hint)
