"""torch.nn.attention.varlen as an attention of transformers: packed sequences on GPUs."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

__all__ = ["NAME", "register"]

NAME = "astraflow_varlen"


def register() -> None:
    """Make the kernels known to transformers; calling twice is harmless."""
    AttentionInterface.register(NAME, _attend)
    # The bounds of the sequences travel as `cu_seq_lens_q`; no mask of tokens squared is made.
    AttentionMaskInterface.register(NAME, _no_mask)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend within each packed sequence: tensors ``[1, heads, tokens, head_dim]``."""
    from torch.nn.attention.varlen import varlen_attn

    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
    bounds = kwargs["cu_seq_lens_q"]
    longest = int(kwargs["max_length_q"])
    tokens = [part[0].transpose(0, 1).contiguous() for part in (query, key, value)]
    output = varlen_attn(
        *tokens, bounds, bounds, longest, longest, scale=scaling, window_size=(-1, 0)
    )
    return output[None], None


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None
