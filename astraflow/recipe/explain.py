"""Turn pydantic's findings into errors that name key, value, place and cure."""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Mapping
from typing import Any, TypeGuard

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from astraflow.errors import RecipeError
from astraflow.recipe.located import Located, Place

__all__ = ["explain", "written_path"]


_SEPARATOR = re.compile(r"(?<=\d)[_, ](?=\d)")
_UNIT = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*[A-Za-z%]+")


def explain(error: ValidationError, tree: Located, model: type[BaseModel]) -> list[RecipeError]:
    """Describe each finding of one validation, in the order of the file."""
    findings: dict[tuple[str, ...], list[ErrorDetails]] = {}
    for detail in error.errors():
        findings.setdefault(written_path(detail, tree), []).append(detail)
    return [_explain_one(path, details, tree, model) for path, details in findings.items()]


def written_path(detail: ErrorDetails, tree: Located) -> tuple[str, ...]:
    """Return the path of the value that a finding is about, as somebody wrote it."""
    path = tuple(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return path
    # Where a field has several types, pydantic puts the one that was tried at the end.
    while not _node(tree, path)[1]:
        path = path[:-1]
    return path


def _explain_one(
    path: tuple[str, ...], details: list[ErrorDetails], tree: Located, model: type[BaseModel]
) -> RecipeError:
    kind = details[0]["type"]
    if kind == "extra_forbidden":
        return _unknown_key(path, tree, model)
    if kind == "missing":
        return _missing_key(path, tree, model)
    value, place = _find(tree, path)
    wanted = list(dict.fromkeys(_requirement(detail["type"], detail) for detail in details))
    cures = (_cure(detail["type"], value) for detail in details)
    return RecipeError(
        f"`{'.'.join(path)}` is {_show(value)}, but it must be {', or '.join(wanted)}",
        where=str(place),
        hint=next(filter(None, cures), "") or _about(model, path),
    )


def _unknown_key(path: tuple[str, ...], tree: Located, model: type[BaseModel]) -> RecipeError:
    section = _model_at(model, path[:-1])
    known = sorted(section.model_fields) if section else []
    near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.6)
    elsewhere = "" if near else _same_key_elsewhere(path[-1], model)
    if near:
        hint = f"did you mean `{near[0]}`"
    elif elsewhere:
        hint = f"did you mean `{elsewhere}`"
    else:
        hint = f"known here: {', '.join(known)}"
    parent, _ = _node(tree, path[:-1])
    place = parent.key_places.get(path[-1], parent.place)
    return RecipeError(f"unknown key `{'.'.join(path)}`", where=str(place), hint=hint)


def _same_key_elsewhere(key: str, model: type[BaseModel]) -> str:
    for name, field in model.model_fields.items():
        section = _as_model(field.annotation)
        if section and difflib.get_close_matches(key, section.model_fields, n=1, cutoff=0.85):
            near = difflib.get_close_matches(key, section.model_fields, n=1, cutoff=0.85)[0]
            return f"{name}.{near}"
    return ""


def _missing_key(path: tuple[str, ...], tree: Located, model: type[BaseModel]) -> RecipeError:
    node, _ = _node(tree, path[:-1])
    if isinstance(node.value, list):
        return RecipeError(
            f"`{'.'.join(path[:-1])}` has {len(node.value)} value(s), and it takes more",
            where=str(node.place),
            hint=_about(model, path[:-1]),
        )
    return RecipeError(
        f"`{'.'.join(path)}` is missing", where=str(node.place), hint=_about(model, path)
    )


def _requirement(kind: str, detail: ErrorDetails) -> str:
    ctx: Mapping[str, Any] = detail.get("ctx") or {}
    bounds = {
        "greater_than": "above {gt}",
        "greater_than_equal": "at least {ge}",
        "less_than": "below {lt}",
        "less_than_equal": "at most {le}",
        "literal_error": "one of {expected}",
        "string_too_short": "at least {min_length} character(s) long",
        "too_long": "a list of at most {max_length}",
    }
    words = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "int_parsing": "a whole number",
        "float_type": "a number",
        "float_parsing": "a number",
        "bool_type": "`true` or `false`",
        "string_type": "text",
        "finite_number": "a finite number",
        "tuple_type": "a list in brackets",
        "model_type": "a section of keys",
        "model_attributes_type": "a section of keys",
        "dict_type": "a section of keys",
    }
    if kind in bounds:
        return bounds[kind].format(**ctx)
    return words.get(kind, str(detail["msg"]).lower())


def _cure(kind: str, value: object) -> str:
    if isinstance(value, str) and value in ("None", "none", "nil"):
        return "write `null` to turn it off"
    if kind in ("int_type", "int_from_float") and _is_whole(value):
        return f"write `{int(value)}`"
    if isinstance(value, str) and kind in ("int_type", "float_type"):
        return _cure_of_number(value)
    if kind == "bool_type" and isinstance(value, str):
        return "YAML 1.2 reads yes, no, on and off as text; write `true` or `false`"
    if kind == "finite_number":
        return "write `null` where a field may be turned off"
    return ""


def _cure_of_number(text: str) -> str:
    bare = _SEPARATOR.sub("", text)
    unit = _UNIT.fullmatch(bare)
    if bare != text and _is_number(bare):
        return f"write `{bare}`, without anything between its digits"
    if unit:
        return f"write the bare number, such as `{unit[1]}`, in the unit that docs/recipes.md names"
    return f"write {text} without quotes" if _is_number(text) else ""


def _about(model: type[BaseModel], path: tuple[str, ...]) -> str:
    while path and path[-1].isdigit():
        path = path[:-1]
    if not path:
        return ""
    section = _model_at(model, path[:-1])
    field = section.model_fields.get(path[-1]) if section else None
    text = " ".join((field.description or "").split()) if field else ""
    return f"`{'.'.join(path)}`: {text}".rstrip(".") if text else ""


def _model_at(model: type[BaseModel], path: tuple[str, ...]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or part not in current.model_fields:
            return None
        current = _as_model(current.model_fields[part].annotation)
    return current


def _as_model(annotation: object) -> type[BaseModel] | None:
    """Find the section model in ``X``, ``X | None`` or ``Annotated[X, ...]``."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _node(tree: Located, path: tuple[str, ...]) -> tuple[Located, bool]:
    """Follow ``path`` as far as it is written; the bool says if it was written whole."""
    node = tree
    for part in path:
        if isinstance(node.value, dict) and part in node.value:
            node = node.value[part]
        elif isinstance(node.value, list) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
        else:
            return node, False
    return node, True


def _find(tree: Located, path: tuple[str, ...]) -> tuple[object, Place]:
    node, _ = _node(tree, path)
    return node.plain(), node.place


def _show(value: object) -> str:
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f"the text `{value if len(value) <= 80 else value[:77] + '...'}`"
    if isinstance(value, dict | list):
        return "a section" if isinstance(value, dict) else "a list"
    return f"`{value}`"


def _is_whole(value: object) -> TypeGuard[float]:
    return isinstance(value, float) and value.is_integer() and abs(value) < 1e15


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
