"""What every rule looks at, and the wording that several of them share."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from astraflow.recipe.files import ResolvedRecipe
from astraflow.recipe.models import ModelFacts
from astraflow.recipe.problems import Known, Problem
from astraflow.recipe.schema import Recipe

__all__ = ["Case", "ignored"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One recipe, this installation, and what is known of the model."""

    resolved: ResolvedRecipe
    known: Known
    facts: ModelFacts | None

    @property
    def recipe(self) -> Recipe:
        """The values."""
        return self.resolved.recipe

    @property
    def engine(self) -> Any:
        """The inference adapter's own settings; None when it is not installed."""
        return _settings(self.recipe.rollout, self.recipe.rollout.backend)

    @property
    def tuning(self) -> Any:
        """The trainer adapter's own settings; None when it is not installed."""
        return _settings(self.recipe.trainer, self.recipe.trainer.backend)

    @property
    def ranks(self) -> int:
        """Ranks of the trainer (count)."""
        return self.recipe.trainer.gpus or self.recipe.trainer.cpu_ranks

    @property
    def ranks_path(self) -> str:
        """Where the number of ranks stands."""
        return "trainer.gpus" if self.recipe.trainer.gpus else "trainer.cpu_ranks"

    @property
    def running_limit(self) -> tuple[str, int | None]:
        """Path and value of the adapter's own limit of answers decoded at once by one copy."""
        for key in ("max_running_requests", "max_batch"):
            if hasattr(self.engine, key):
                path = f"rollout.{self.recipe.rollout.backend}.{key}"
                return path, getattr(self.engine, key)
        return "", None

    def written(self, path: str) -> bool:
        """Tell whether somebody wrote this value, rather than leaving its default."""
        return path in self.resolved.places


def _settings(section: BaseModel, backend: str) -> Any:
    """Return an adapter's settings from its section of a recipe, its defaults if it has none."""
    field = type(section).model_fields.get(backend)
    written = getattr(section, backend, None)
    if written is not None or field is None:
        return written
    for kind in typing.get_args(field.annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind()
    return None


def ignored(path: str, by: str, why: str) -> Problem:
    """Return the problem of a value that another one leaves without any effect."""
    return Problem(
        what=f"`{path}` would be ignored: {why}", paths=(path, by), hint=f"delete `{path}`"
    )
