"""EvaluationPlan: what is evaluated; a recipe stands for it so that RaaS's own code runs it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from astraflow.errors import RecipeError
from astraflow.plugins import recipe_type
from astraflow.recipe.models import find_facts
from astraflow.recipe.schema import Recipe

__all__ = ["EvaluationPlan", "stand_in_recipe"]

# Room for a long problem in front of the answer.
_PROMPT_TOKENS = 2000
# All problems wait in the engine's queue, and the wait counts; nothing here waits for a lease.
_REQUEST_TIMEOUT_S = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Everything that a result depends on."""

    model: str
    """Folder or hub id that the adapter loads."""

    label: str
    """What the person typed."""

    datasets: tuple[str, ...]
    """Known names or paths."""

    samples: int
    """Answers per problem (count)."""

    temperature: float
    """0 is greedy."""

    max_new_tokens: int
    """Longest answer (tokens)."""

    max_rows: int | None
    """Only the first rows of each dataset (count)."""

    backend: str
    """Inference adapter."""

    gpus: int
    """GPUs; 0 uses the CPU (count)."""

    dtype: str
    """Type of the weights."""

    thinking: bool
    """Passed to the chat template."""

    answer: str
    """``boxed`` or ``any``."""

    instruction: str | None
    """Put after each problem; None takes the recipes' default."""

    root: Path | None
    """Folder with local datasets."""

    seed: int
    """Seed of the samples and of the bootstrap."""

    reproducible: bool = False
    """Decode each problem alone, so that an answer does not depend on its neighbors."""

    version: int = 0
    """Step of the run's checkpoint; 0 for a model of its own."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """The adapter's settings, as in its section of a recipe."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return values

    def identity(self) -> dict[str, Any]:
        """Return what an answer depends on, to tell one evaluation from another."""
        values = self.to_json()
        # how it was typed, and the folder of the data, whose content has a hash of its own
        for name in ("label", "root"):
            del values[name]
        return values


def stand_in_recipe(plan: EvaluationPlan) -> Recipe:
    """
    Return a recipe whose rollout side is the plan's.

    Raises:
        RecipeError: a value is out of its bounds.
    """
    facts = find_facts(plan.model)
    longest = _PROMPT_TOKENS + plan.max_new_tokens
    if facts is not None and facts.max_position:
        longest = min(longest, facts.max_position)
    workflow: dict[str, Any] = {"answer": plan.answer}
    if plan.instruction is not None:
        workflow["instruction"] = plan.instruction
    values = {
        "seed": plan.seed,
        "model": {
            "path": plan.model,
            "dtype": plan.dtype,
            "context_length": longest,
            "thinking": plan.thinking,
        },
        "rollout": {
            "backend": plan.backend,
            "gpus": plan.gpus,
            "data_parallel": max(plan.gpus, 1),
            "max_new_tokens": min(plan.max_new_tokens, longest - 1),
            "request_timeout_s": _REQUEST_TIMEOUT_S,
            **_engine(plan),
        },
        "workflow": workflow,
        "data": {
            "train": plan.datasets[0] if plan.datasets else "none",
            "max_prompt_tokens": max(longest - plan.max_new_tokens, 1),
        },
        "dataflow": {"max_staleness": 0 if plan.reproducible else 8},
        "trainer": {"steps": 1, "batch_size": 8},
    }
    try:
        return recipe_type().model_validate_json(json.dumps(values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RecipeError(f"`{where}` of the evaluation: {first['msg'].lower()}") from error


def _engine(plan: EvaluationPlan) -> dict[str, Any]:
    """Return the adapter's section; here no trainer needs half of the CPU engine's cores."""
    settings = dict(plan.settings)
    if plan.backend == "transformers" and not plan.gpus:
        settings.setdefault("threads", len(os.sched_getaffinity(0)))
    return {plan.backend: settings} if settings else {}
