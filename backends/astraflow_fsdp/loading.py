"""Load a checkpoint, choose its attention, shard it with FSDP2."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM

from astraflow.interfaces import TrainerContext
from astraflow_fsdp.scoring import ScoredModel

__all__ = ["choose_attention", "has_recurrent_layers", "load_sharded", "published_dtypes"]

log = logging.getLogger(__name__)


def choose_attention(context: TrainerContext) -> tuple[str, str]:
    """Return the kernels' name for transformers and the reason, for the log."""
    wanted: str = context.settings.attention
    if wanted == "flash_attention_2":
        return "flash_attention_2", "the recipe says so"
    if wanted == "sdpa":
        return "sdpa", "the recipe says so"
    if wanted == "varlen" or context.device == "cuda":
        from astraflow_fsdp.varlen import NAME, register

        register()
        why = "the recipe says so" if wanted == "varlen" else "torch's own kernels for packed GPUs"
        return NAME, why
    return "sdpa", "this is a CPU"


def load_sharded(
    context: TrainerContext, mesh: DeviceMesh, attention: str, *, trainable: bool
) -> ScoredModel:
    """
    Load the checkpoint on each rank and keep this rank's shards.

    Every decoder layer is one FSDP group and what is left, embedding, norm and head, another; so
    tied weights stay in one group.
    """
    compute = getattr(torch, context.dtype)
    stored = getattr(torch, context.master_dtype) if trainable else compute
    lm = AutoModelForCausalLM.from_pretrained(
        context.model_path, dtype=stored, attn_implementation=attention
    )
    lm.train(trainable)
    for parameter in lm.parameters():
        parameter.requires_grad_(requires_grad=trainable)
    if trainable:
        _checkpoint_layers(lm, context.settings.checkpoint_every)
        if context.settings.compile:
            for layer in _layers(lm):
                layer.compile()
    model = ScoredModel(
        lm,
        temperature=context.temperature,
        chunk_tokens=context.settings.logprob_chunk_tokens,
    )
    if context.device == "cuda" and not context.settings.offload_optimizer:
        model = model.to("cuda")
    precision = MixedPrecisionPolicy(
        param_dtype=None if compute is stored else compute, reduce_dtype=torch.float32
    )
    offload: OffloadPolicy = (
        CPUOffloadPolicy() if context.settings.offload_optimizer else OffloadPolicy()
    )
    for layer in _layers(lm):
        fully_shard(layer, mesh=mesh, mp_policy=precision, offload_policy=offload)
    fully_shard(model, mesh=mesh, mp_policy=precision, offload_policy=offload)
    return model


def has_recurrent_layers(lm: Any) -> bool:
    """Tell whether some layer carries a state along the sequence, such as a gated delta rule."""
    kinds = getattr(lm.config.get_text_config(), "layer_types", None) or []
    return any("linear" in kind for kind in kinds)


def published_dtypes(lm: Any, dtype: torch.dtype) -> dict[str, torch.dtype]:
    """Return the type that each parameter is served in: float32 where the architecture keeps it."""
    kept: set[str] = set()
    for attribute in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
        kept |= set(getattr(lm, attribute, None) or ())
    return {
        name: torch.float32 if any(part in kept for part in name.split(".")) else dtype
        for name, _ in lm.named_parameters(remove_duplicate=True)
    }


def _layers(lm: Any) -> list[Any]:
    return list(lm.base_model.layers)


def _checkpoint_layers(lm: Any, every: int | None) -> None:
    """Have every n-th decoder layer recompute its activations in the backward pass."""
    if every is None:
        return
    for layer in _layers(lm)[::every]:
        layer.forward = _Recomputed(layer.forward)


class _Recomputed:
    """A forward pass that keeps only its inputs."""

    def __init__(self, forward: Any) -> None:
        self._forward = forward

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*arguments, **named)
        return checkpoint(self._forward, *arguments, use_reentrant=False, **named)
