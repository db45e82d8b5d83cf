"""Read YAML 1.2 into values that remember where they stand, so that an error can say so."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from astraflow.errors import RecipeError

__all__ = ["Located", "Place", "Scalar", "merge", "parse_override", "read_yaml"]

Scalar: TypeAlias = "str | int | float | bool | None"

# Far above what a recipe needs, far below Python's own limit; an alias can nest for ever.
_MAX_DEPTH = 32

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


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: a file with line and column, or a `--set` option."""

    file: str
    """Path as a person would type it, or the whole `--set` option."""

    line: int = 0
    """From 1; 0 for an option of the command line."""

    column: int = 0
    """From 1; 0 for an option of the command line."""

    def __str__(self) -> str:
        """Write it as editors and terminals link it."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(slots=True)
class Located:
    """A YAML value, the place it was written at, and the places of its keys."""

    value: dict[str, Located] | list[Located] | Scalar
    place: Place
    key_places: dict[str, Place] = field(default_factory=dict)

    def plain(self) -> object:
        """Return the value without its places."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Place]]:
        """Yield the path and place of each value below, mappings included."""
        yield path, self.place
        if isinstance(self.value, dict):
            for key, item in self.value.items():
                yield from item.walk((*path, key))
        elif isinstance(self.value, list):
            for index, item in enumerate(self.value):
                yield from item.walk((*path, str(index)))


def read_yaml(path: Path, *, shown_as: str) -> tuple[Located, list[RecipeError]]:
    """
    Read one mapping from a file; duplicate keys come back as errors, all of them.

    Raises:
        RecipeError: the file cannot be read, is not YAML, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"`{shown_as}` cannot be read: {error}") from error
    node = _compose(text, shown_as)
    problems: list[RecipeError] = []
    if not isinstance(node, MappingNode):
        raise RecipeError(
            "a recipe is a mapping of sections",
            where=f"{shown_as}:1:1",
            hint="start it with `model:` or `extends:`",
        )
    return _locate(node, shown_as, (), problems), problems


def parse_override(option: str) -> tuple[tuple[str, ...], Located]:
    """
    Split ``section.field=value`` of ``--set``; the value is read as YAML.

    Raises:
        RecipeError: there is no ``=``, a part of the path is empty, or the value is not YAML.
    """
    shown_as = f"--set {option}"
    dotted, equals, text = option.partition("=")
    path = tuple(dotted.strip().split("."))
    if not equals or not all(path):
        raise RecipeError(
            f"`{shown_as}` is not of the form `section.field=value`",
            where=shown_as,
            hint="for example `--set trainer.steps=10`",
        )
    node = _compose(text, shown_as)
    problems: list[RecipeError] = []
    value = _locate(node, shown_as, path, problems) if node else Located(None, Place(shown_as))
    if problems:
        raise problems[0]
    return path, _at_option(value, Place(shown_as))


def merge(parent: Located, child: Located) -> Located:
    """Lay a child over its parent: mappings merge key by key, anything else is replaced."""
    if not isinstance(parent.value, dict) or not isinstance(child.value, dict):
        return child
    merged = dict(parent.value)
    for key, item in child.value.items():
        merged[key] = merge(merged[key], item) if key in merged else item
    return Located(merged, child.place, {**parent.key_places, **child.key_places})


def _compose(text: str, shown_as: str) -> Node | None:
    try:
        node: Node | None = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{shown_as}:{mark.line + 1}:{mark.column + 1}" if mark else shown_as
        what = str(error.problem or error.context or "it is not YAML").strip()
        raise RecipeError(
            f"the YAML ends in an error: {what}",
            where=where,
            hint="check quotes, brackets and indentation on this line and the one above",
        ) from error
    except YAMLError as error:  # a character that no YAML file may hold; it carries no mark
        what = str(error).splitlines()[0]
        raise RecipeError(f"it is not YAML: {what}", where=shown_as) from error
    return node


def _locate(node: Node, file: str, path: tuple[str, ...], problems: list[RecipeError]) -> Located:
    place = Place(file, node.start_mark.line + 1, node.start_mark.column + 1)
    if len(path) > _MAX_DEPTH:
        raise RecipeError(
            f"`{'.'.join(path[:2])}...` nests more than {_MAX_DEPTH} levels deep",
            where=str(place),
            hint="look for an alias inside its own anchor",
        )
    if isinstance(node, MappingNode):
        return _locate_mapping(node, file, path, problems)
    if isinstance(node, SequenceNode):
        items = [
            _locate(item, file, (*path, str(index)), problems)
            for index, item in enumerate(node.value)
        ]
        return Located(items, place)
    assert isinstance(node, ScalarNode)
    return Located(_scalar(node), place)


def _locate_mapping(
    node: MappingNode, file: str, path: tuple[str, ...], problems: list[RecipeError]
) -> Located:
    items: dict[str, Located] = {}
    keys: dict[str, Place] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        place = Place(file, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        if key in keys:
            problems.append(
                RecipeError(
                    f"`{'.'.join((*path, key))}` is given twice, first at {keys[key]}",
                    where=str(place),
                    hint="delete one of the two lines",
                )
            )
            continue
        keys[key] = place
        items[key] = _locate(value_node, file, (*path, key), problems)
    start = Place(file, node.start_mark.line + 1, node.start_mark.column + 1)
    return Located(items, start, keys)


def _scalar(node: ScalarNode) -> Scalar:
    text = str(node.value)
    if node.style in ("'", '"', "|", ">"):
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _INF.fullmatch(text):
        return float("-inf" if text.startswith("-") else "inf")
    return text


def _at_option(value: Located, place: Place) -> Located:
    if isinstance(value.value, dict):
        items = {key: _at_option(item, place) for key, item in value.value.items()}
        return Located(items, place, dict.fromkeys(items, place))
    if isinstance(value.value, list):
        return Located([_at_option(item, place) for item in value.value], place)
    return Located(value.value, place)
