"""The `fsdp` trainer adapter; importing this module imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from astraflow.interfaces import TrainerBackend, TrainerContext
from astraflow.plugins import Plugin
from astraflow.recipe.base import RecipeModel

__all__ = ["FsdpSettings", "plugin"]


class FsdpSettings(RecipeModel):
    """Settings of the FSDP2 trainer."""

    attention: Literal["auto", "sdpa", "varlen", "flash_attention_2"] = "auto"
    """Attention kernels: `varlen` is torch's own for packed sequences on GPUs and needs no extra
    package, `flash_attention_2` needs flash-attn, `sdpa` runs everywhere and builds a mask of
    tokens squared. `auto` takes `varlen` on a GPU and `sdpa` on a CPU."""

    checkpoint_every: int | None = Field(default=1, ge=1)
    """Decoder layers of which one recomputes its activations in the backward pass: 1 is every
    layer (least memory), 2 every second, null none (fastest)."""

    compile: bool = False
    """Compile each decoder layer; pays off on GPUs after a first slow step."""

    logprob_chunk_tokens: int = Field(default=2048, ge=16)
    """Rows that the LM head turns into logits at once, so that no tensor of tokens times
    vocabulary exists (tokens)."""

    offload_optimizer: bool = False
    """Keep weights, gradients and moments in host memory between uses; slow, for small GPUs."""


def _build(context: TrainerContext) -> TrainerBackend:
    from astraflow_fsdp.backend import FsdpBackend

    return FsdpBackend(context)


def _export(saved: Path, out: Path, *, model_path: str, dtype: str) -> None:
    from astraflow_fsdp.export import export_checkpoint

    export_checkpoint(saved, out, model_path=model_path, dtype=dtype)


plugin: Plugin[TrainerBackend] = Plugin(
    name="fsdp",
    settings=FsdpSettings,
    build=_build,
    extra="train",
    needs=("torch", "transformers"),
    export=_export,
)
