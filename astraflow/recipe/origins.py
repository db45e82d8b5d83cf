"""The resolved recipe as YAML, each value with where it was written, or why it is the default."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from astraflow.recipe.files import ResolvedRecipe
from astraflow.recipe.located import Place

__all__ = ["explain_values"]

_COMMENT_COLUMN = 44


def explain_values(resolved: ResolvedRecipe) -> str:
    """
    Write every value of a recipe with its origin.

    The text is a recipe itself: reading it gives the same values. Defaults stand in comments.

    Args:
        resolved: A recipe without errors.
    """
    return "\n".join(_section(resolved.recipe, "", resolved.places, 0)) + "\n"


def _section(
    section: BaseModel, path: str, places: Mapping[str, Place], depth: int
) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        dotted = f"{path}.{name}" if path else name
        if isinstance(value, BaseModel):
            written = any(place.startswith(f"{dotted}.") for place in places)
            yield f"{'  ' * depth}{'' if written else '# '}{name}:"
            yield from _section(value, dotted, places, depth + 1)
            continue
        place = places.get(dotted)
        # A default stands in a comment: written down, it may contradict what it does not apply to.
        mark = "" if place is not None else "# "
        shown = f"{'  ' * depth}{mark}{name}: {_scalar(value)}"
        origin = str(place) if place is not None else f"default: {_why(field.description)}"
        yield f"{shown:{_COMMENT_COLUMN}}  # {origin}"


def _scalar(value: Any) -> str:
    """Write a value so that YAML 1.2 reads the same one: as JSON, which it contains."""
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False)


def _why(description: str | None) -> str:
    return " ".join((description or "no reason is written down").split())
