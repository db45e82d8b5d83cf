"""The `transformers` inference adapter; importing this module imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow.interfaces import InferenceBackend, InferenceContext
from astraflow.plugins import Plugin
from astraflow.recipe.base import RecipeModel
from astraflow.recipe.schema import Recipe

__all__ = ["TransformersSettings", "plugin"]


class TransformersSettings(RecipeModel):
    """Settings of the engine that samples with transformers in the RaaS process."""

    max_batch: int = Field(default=256, ge=1)
    """Answers decoded at once; more sample faster and take more memory for keys and values
    (count)."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model runs; `auto` takes a GPU when the recipe gives this instance one."""

    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine; null takes half the cores, since the trainer needs the other
    half (count)."""


def _refuses(recipe: Recipe) -> str:
    rollout = recipe.rollout
    if rollout.tensor_parallel > 1 or rollout.data_parallel > rollout.instances:
        return (
            "the `transformers` adapter holds one copy of the model on one device for each "
            "instance, and the recipe asks for rollout.tensor_parallel = "
            f"{rollout.tensor_parallel} and rollout.data_parallel = {rollout.data_parallel} "
            f"over {rollout.instances} instances; raise `rollout.instances` instead"
        )
    return ""


def _build(context: InferenceContext) -> InferenceBackend:
    from astraflow_transformers.backend import TransformersBackend

    return TransformersBackend(context)


plugin: Plugin[InferenceBackend] = Plugin(
    name="transformers",
    settings=TransformersSettings,
    build=_build,
    extra="train",
    needs=("torch", "transformers", "safetensors"),
    refuses=_refuses,
)
