"""The `megatron` trainer adapter: its settings and what it refuses; it cannot train yet."""

from __future__ import annotations

from pydantic import Field

from astraflow.errors import PluginError
from astraflow.interfaces import TrainerBackend, TrainerContext
from astraflow.plugins import Plugin
from astraflow.recipe.base import RecipeModel
from astraflow.recipe.models import find_facts
from astraflow.recipe.schema import Recipe

__all__ = ["MegatronSettings", "plugin"]


class MegatronSettings(RecipeModel):
    """Settings of the Megatron-Core trainer."""

    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that share each matrix (count)."""

    pipeline_parallel: int = Field(default=1, ge=1)
    """GPUs that the layers are spread over (count)."""


def _refuses(recipe: Recipe) -> str:
    facts = find_facts(recipe.model.path)
    if facts is not None and facts.linear_attention_layers:
        return (
            f"`{recipe.model.path}` has {facts.linear_attention_layers} Gated-DeltaNet layers, and "
            "Megatron-Core has no gated-delta-rule layer with packed sequences and no weight "
            "mapping for it; `trainer.backend=fsdp` trains this model"
        )
    return ""


_UNAVAILABLE = "the `megatron` adapter cannot train yet: its training path has not landed"


def _build(context: TrainerContext) -> TrainerBackend:
    raise PluginError(_UNAVAILABLE, hint="`--set trainer.backend=fsdp`")


plugin: Plugin[TrainerBackend] = Plugin(
    name="megatron",
    settings=MegatronSettings,
    build=_build,
    extra="megatron",
    refuses=_refuses,
    unavailable=_UNAVAILABLE,
)
