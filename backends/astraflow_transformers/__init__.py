"""The `transformers` inference adapter; importing this module imports neither torch nor transformers."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from astraflow.interfaces import InferenceBackend, InferenceContext
from astraflow.plugins import Plugin
from astraflow.recipe.base import RecipeModel

__all__ = ["TransformersSettings", "plugin"]


class TransformersSettings(RecipeModel):
    """Settings of the engine that samples with transformers, in the RaaS process itself."""

    max_batch: int = Field(default=256, ge=1, le=4096)
    """Samples decoded at once; more use the machine better and cost memory (count)."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes the first GPU that the recipe gives to rollout, else the CPU."""

    threads: int | None = Field(default=None, ge=1)
    """CPU threads of one operation; null leaves it to OMP_NUM_THREADS (count)."""


def _build(context: InferenceContext) -> InferenceBackend:
    from astraflow_transformers.backend import TransformersBackend

    return TransformersBackend(context)


plugin: Plugin[InferenceBackend] = Plugin(
    name="transformers",
    settings=TransformersSettings,
    build=_build,
    extra="train",
    needs=("torch", "transformers"),
)
