"""What a rule says when it is broken, and the names that rules may compare with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from astraflow.errors import RecipeError
from astraflow.recipe.files import ResolvedRecipe
from astraflow.recipe.schema import Recipe

__all__ = ["Known", "Problem"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Names that a recipe may refer to in this installation."""

    inference_backends: Collection[str]
    trainer_backends: Collection[str]
    workflows: Collection[str]
    rewards: Collection[str]
    datasets: Collection[str]
    held_out: Collection[str] = ()
    """Those of ``datasets`` that are there to evaluate with."""
    plain: Collection[str] = ()
    """Those of ``datasets`` whose problems are lines to go on with, and no messages."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of those of ``datasets`` whose number is fixed (count)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One broken rule."""

    what: str
    """What is wrong, with the values in it."""

    paths: tuple[str, ...]
    """Dotted paths of every value involved; the first one is the one to change."""

    hint: str = ""
    """What to change."""

    severity: Literal["error", "warning"] = "error"
    """An error stops `run`; a warning is printed."""

    def locate(self, resolved: ResolvedRecipe) -> RecipeError:
        """
        Add the place of each value involved; values nobody wrote are defaults.

        The error stands where the last hand wrote: at an option before the recipe's own file,
        there before its parents, and in one file at the first path.
        """
        first = min(self.paths, key=lambda path: _distance(resolved, path))
        values = "; ".join(
            f"{path} = {_value(resolved.recipe, path)} ({resolved.places.get(path, 'default')})"
            for path in self.paths
            if path != first
        )
        place = resolved.places.get(first)
        where = str(place) if place else f"{first} is a default"
        return RecipeError(
            f"{self.what}{f' [{values}]' if values else ''}", where=where, hint=self.hint
        )


def _distance(resolved: ResolvedRecipe, path: str) -> int:
    place = resolved.places.get(path)
    if place is None:
        return 3
    if not place.line:
        return 0
    return 1 if place.file == resolved.file else 2


def _value(recipe: Recipe, path: str) -> object:
    value: Any = recipe
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, tuple) else getattr(value, part, None)
    return value
