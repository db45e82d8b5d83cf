"""What a rule says when it is broken, and the names that rules may compare with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
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
        """Add the place of each value involved; values nobody wrote are defaults."""
        values = "; ".join(
            f"{path} = {_value(resolved.recipe, path)} ({resolved.places.get(path, 'default')})"
            for path in self.paths[1:]
        )
        first = resolved.places.get(self.paths[0])
        where = str(first) if first else f"{self.paths[0]} is a default"
        return RecipeError(
            f"{self.what}{f' [{values}]' if values else ''}", where=where, hint=self.hint
        )


def _value(recipe: Recipe, path: str) -> object:
    value: Any = recipe
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, tuple) else getattr(value, part, None)
    return value
