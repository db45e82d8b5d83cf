"""Read a recipe's file or a `--set` option into values that remember where they stand."""

from __future__ import annotations

from pathlib import Path

from astraflow.errors import RecipeError
from astraflow.recipe.composing import MAX_DEPTH, compose
from astraflow.recipe.located import Located, Place

__all__ = ["parse_override", "read_yaml"]

# The longest shipped recipe has 2 KB; few-shot examples may make tens of it.
_MAX_BYTES = 200_000


def read_yaml(path: Path, *, shown_as: str) -> tuple[Located, list[RecipeError]]:
    """
    Read one mapping from a file; duplicate keys and the like come back as errors, all of them.

    Raises:
        RecipeError: the file cannot be read, is not YAML, or holds no mapping.
    """
    problems: list[RecipeError] = []
    tree = compose(_text(path, shown_as), shown_as, problems)
    if tree is None or not isinstance(tree.value, dict):
        raise RecipeError(
            "a recipe is a mapping of sections, and this file "
            + ("is empty" if tree is None else _shape(tree)),
            where=str(tree.place) if tree else f"{shown_as}:1:1",
            hint="start it with `model:` or `extends:`",
        )
    return tree, problems


def parse_override(option: str) -> tuple[tuple[str, ...], Located]:
    """
    Split ``section.field=value`` of ``--set``; the value is read as YAML.

    Raises:
        RecipeError: there is no ``=``, a part of the path is empty, or the value is not YAML.
    """
    shown_as = f"--set {option}"
    dotted, equals, text = option.partition("=")
    path = tuple(dotted.strip().split("."))
    if not equals or not all(path) or len(path) > MAX_DEPTH:
        raise RecipeError(
            f"`{shown_as}` is not of the form `section.field=value`",
            where=shown_as,
            hint="for example `--set trainer.steps=10`",
        )
    problems: list[RecipeError] = []
    place = Place(shown_as)
    try:
        value = compose(text, shown_as, problems, path=path) or Located(None, place)
    except RecipeError as error:
        # Its line and column count from the `=`, where no editor can go.
        raise RecipeError(error.what, where=shown_as, hint=error.hint) from error
    if problems:
        raise RecipeError(problems[0].what, where=shown_as, hint=problems[0].hint)
    return path, _at_option(value, place)


def _text(path: Path, shown_as: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(
            f"`{shown_as}` cannot be read: {error.strerror}",
            where=shown_as,
            hint="check the path and its permissions",
        ) from error
    if len(data) > _MAX_BYTES:
        raise RecipeError(
            f"`{shown_as}` is larger than {_MAX_BYTES:,} bytes, so it is no recipe",
            where=shown_as,
            hint="put data into a .jsonl file and name it at `data.train`",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = len(before) - (before.rfind(b"\n") + 1) + 1
        raise RecipeError(
            f"the byte 0x{data[error.start]:02x} is not UTF-8",
            where=f"{shown_as}:{before.count(10) + 1}:{column}",
            hint="save the file as UTF-8",
        ) from error


def _shape(tree: Located) -> str:
    return "holds a list" if isinstance(tree.value, list) else "holds one value"


def _at_option(value: Located, place: Place) -> Located:
    if isinstance(value.value, dict):
        items = {key: _at_option(item, place) for key, item in value.value.items()}
        return Located(items, place, dict.fromkeys(items, place))
    if isinstance(value.value, list):
        return Located([_at_option(item, place) for item in value.value], place)
    return Located(value.value, place)
