"""Attention for decoding: grouped queries without copies of keys and values for each head."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__all__ = ["DECODE_ATTENTION", "register"]

DECODE_ATTENTION = "astraflow_decode"


def register() -> None:
    """Offer the attention to transformers under our name."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(DECODE_ATTENTION, _attend)
    AttentionMaskInterface.register(DECODE_ATTENTION, sdpa_mask)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """
    Attend.

    With one new token a row, the query heads that share keys stand in for query positions. The
    usual way repeats keys and values for each head, which took half of a decoding step.

    Args:
        module: The attention layer.
        query: ``[rows, heads, tokens, width]``.
        key: ``[rows, kv_heads, past, width]``.
        value: ``[rows, kv_heads, past, width]``.
        attention_mask: ``[rows or 1, 1, tokens, past]`` bool, or None.
        scaling: Factor on the scores.
        kwargs: Not used here.

    Returns:
        ``[rows, tokens, heads, width]``, and no attention weights.
    """
    rows, heads, tokens, width = query.shape
    if tokens > 1:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        attended: Tensor = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )[0]
        return attended, None
    grouped = query.view(rows, key.shape[1], heads // key.shape[1], width)
    out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
    return out.reshape(rows, 1, heads, value.shape[-1]), None
