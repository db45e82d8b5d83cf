"""Attention: which kernels score a micro-batch, and torch's kernel for packed sequences."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from astraflow.errors import HardwareError

__all__ = ["choose_attention", "knows_sequence_ends", "register_varlen"]

_VARLEN = "astraflow_varlen"


def choose_attention(wanted: str, device: torch.device) -> str:
    """
    Turn the setting into the name of an implementation that transformers knows.

    Raises:
        HardwareError: the kernels that were asked for need a GPU or a library that is absent.
    """
    if device.type == "cpu":
        if wanted not in ("auto", "sdpa"):
            raise HardwareError(
                f"`trainer.fsdp.attention` = `{wanted}` needs a GPU",
                hint="`--set trainer.fsdp.attention=auto`",
            )
        return "sdpa"
    has_varlen = importlib.util.find_spec("torch.nn.attention.varlen") is not None
    has_flash = importlib.util.find_spec("flash_attn") is not None
    if wanted == "auto":
        fallback = "flash_attention_2" if has_flash else "sdpa"
        wanted = "varlen" if has_varlen else fallback
    if wanted == "flash_attention_2" and not has_flash:
        raise HardwareError(
            "`trainer.fsdp.attention` = `flash_attention_2` needs flash-attn",
            hint="`pip install 'astraflow-rl[flash-attn]'`, or `varlen`",
        )
    if wanted != "varlen":
        return wanted
    if not has_varlen:
        raise HardwareError(
            f"torch {torch.__version__} has no variable-length attention",
            hint="install torch 2.10 or later, or `--set trainer.fsdp.attention=sdpa`",
        )
    register_varlen()
    return _VARLEN


def knows_sequence_ends(attention: str) -> bool:
    """True if the kernels take ``cu_seqlens`` and so keep packed sequences apart."""
    return attention != "sdpa"


def register_varlen() -> None:
    """Offer torch's variable-length attention to transformers under our name."""
    from torch.nn.attention.varlen import varlen_attn
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_VARLEN, _build_varlen(varlen_attn))
    AttentionMaskInterface.register(_VARLEN, _no_mask)


def _build_varlen(varlen_attn: Any) -> Callable[..., tuple[Tensor, None]]:
    """Adapt torch's function, whose options differ from version to version."""
    parameters = inspect.signature(varlen_attn).parameters
    takes_scale, takes_groups = "scale" in parameters, "enable_gqa" in parameters
    # torch 2.10 says is_causal, later ones say it with a window.
    window = {"window_size": (-1, 0)} if "window_size" in parameters else {"is_causal": True}

    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """
        Attend within each packed sequence, causally.

        Args:
            module: The attention layer.
            query: ``[1, heads, tokens, width]``.
            key: ``[1, kv_heads, tokens, width]``.
            value: ``[1, kv_heads, tokens, width]``.
            attention_mask: Always None.
            scaling: Factor on the scores.
            kwargs: ``cu_seq_lens_q`` and ``max_length_q`` as transformers passes them down.

        Returns:
            ``[1, tokens, heads, width]``, and no attention weights.
        """
        groups = query.shape[1] // key.shape[1]
        q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        options: dict[str, Any] = dict(window)
        if takes_scale:
            options["scale"] = scaling
        if takes_groups:
            options["enable_gqa"] = groups > 1
        elif groups > 1:
            k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))
        bounds, longest = kwargs["cu_seq_lens_q"], kwargs["max_length_q"]
        out: Tensor = varlen_attn(q, k, v, bounds, bounds, longest, longest, **options)
        return out[None], None

    return attend


def _no_mask(*args: Any, **kwargs: Any) -> None:
    """Make no mask: the bounds of the sequences say it all."""
