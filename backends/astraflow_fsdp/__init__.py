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

    gradient_checkpointing: bool | Literal["half"] | None = None
    """Keep only each layer's input and compute the layer again in the backward pass: far less
    memory for about a third more time. `half` does so with every second layer, null with every
    layer on a GPU and with none on a CPU."""

    compile: bool = False
    """Compile each decoder layer and the log-probabilities: up to 1.8 times the speed on a GPU,
    after about a minute of compiling at the start."""

    attention: Literal[
        "auto", "sdpa", "flash_attention_2", "kernels-community/flash-attn2", "varlen"
    ] = "auto"
    """Attention kernels. `varlen` is torch's own kernel for packed sequences; `auto` takes it
    on a GPU, flash-attn if torch has none, and sdpa on a CPU."""

    layout: Literal["auto", "packed", "padded"] = "auto"
    """How sequences share a micro-batch: `packed` end to end, or one a row, `padded` on the
    right. `auto` packs where the kernels know where a sequence ends, and pads for sdpa and for
    models with Gated-DeltaNet layers."""

    logprob_chunk_tokens: int = Field(default=2048, ge=1)
    """Answer tokens whose logits exist at one time; bounds the largest tensor of a pass to this
    times the vocabulary (tokens)."""

    reshard_after_forward: bool = True
    """Free a layer's gathered weights after its forward pass and gather them again in the
    backward pass; off is faster and keeps the whole model on each GPU."""

    offload_optimizer: bool = False
    """Keep master weights and moments in host memory and step there; frees GPU memory and
    slows the step."""

    threads: int | None = Field(default=None, ge=1)
    """CPU threads of one rank when there is no GPU; null shares all cores among the ranks, as
    sampling seldom fills a core of its own (count)."""


def _build(context: TrainerContext) -> TrainerBackend:
    from astraflow_fsdp.backend import FsdpBackend

    return FsdpBackend(context)


def _export(folder: Path, out: Path, *, model_path: str, dtype: str) -> None:
    from astraflow_fsdp.export import export

    export(folder, out, model_path=model_path, dtype=dtype)


plugin: Plugin[TrainerBackend] = Plugin(
    name="fsdp",
    settings=FsdpSettings,
    build=_build,
    extra="train",
    needs=("torch", "transformers", "safetensors"),
    export=_export,
)
