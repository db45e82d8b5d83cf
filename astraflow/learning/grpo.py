"""GRPO: the ratio of each token, clipped on both sides."""

from __future__ import annotations

import torch
from torch import Tensor

from astraflow.learning.ratios import bounded_ratio

__all__ = ["CLIP_HIGH", "CLIP_LOW", "clipped_ratio_loss"]

CLIP_LOW = 0.2
CLIP_HIGH = 0.28


def clipped_ratio_loss(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor]:
    """
    Take the worse of ratio and clipped ratio, times the advantage.

    Args:
        log_ratio: ``[n]`` float32 with gradient, nats: of tokens, or of sequences for GSPO.
        advantages: ``[n]`` float32.
        mask: ``[n]`` bool, what takes part.
        clip_low: the ratio may fall to ``1 - clip_low``.
        clip_high: the ratio may rise to ``1 + clip_high``.

    Returns:
        ``[n]`` float32 losses, exactly 0 outside ``mask`` and at advantage 0; ``[n]`` bool,
        where clipping took the gradient away.

    Source:
        PPO, arXiv:1707.06347, equation 7; two bounds as in DAPO, arXiv:2503.14476.
    """
    active = mask & (advantages != 0) & torch.isfinite(log_ratio)
    ratio = bounded_ratio(log_ratio, active)
    unclipped = -ratio * advantages
    clipped = -ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    losses = torch.where(active, torch.maximum(unclipped, clipped), 0.0)
    return losses, active & (clipped > unclipped)
