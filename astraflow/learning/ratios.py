"""
The surrogate losses, one value a token; whoever calls them sums and divides.

An overflowing ratio times a zero advantage or a masked token would be NaN, so what does not
count is set to ratio 1 *before* the exponential: its value and its gradient are exactly 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["clipped_loss", "kept_loss", "sequence_loss"]

# exp(80) is about 5e34: still finite in float32 after a product with any sane advantage.
_MAX_LOG_RATIO = 80.0


def kept_loss(log_ratio: Tensor, advantages: Tensor, keep: Tensor) -> Tensor:
    """
    M2PO: ``-ratio * advantage`` where kept, 0 elsewhere; nothing is clipped.

    Args:
        log_ratio: ``[tokens]`` float32 with gradient, new minus behavior (nats).
        advantages: ``[tokens]`` float32.
        keep: ``[tokens]`` bool.

    Returns:
        ``[tokens]`` float32.

    Source:
        M2PO, arXiv:2510.01161, the masked objective.
    """
    counts = keep & (advantages != 0)
    return torch.where(counts, -_ratio(log_ratio, counts) * advantages, 0.0)


def clipped_loss(
    log_ratio: Tensor, advantages: Tensor, keep: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """
    PPO's clipped surrogate with a lower and an upper bound of its own.

    Args:
        log_ratio: ``[tokens]`` float32 with gradient, new minus behavior (nats).
        advantages: ``[tokens]`` float32.
        keep: ``[tokens]`` bool.
        low: The ratio may fall to ``1 - low``.
        high: The ratio may rise to ``1 + high``.

    Returns:
        Loss ``[tokens]`` float32, and ``[tokens]`` bool where the clip took the gradient.

    Source:
        PPO, arXiv:1707.06347, equation 7; separate bounds as in DAPO, arXiv:2503.14476, eq. 10.
    """
    counts = keep & (advantages != 0)
    ratio = _ratio(log_ratio, counts)
    free = ratio * advantages
    bounded = ratio.clamp(1 - low, 1 + high) * advantages
    loss = torch.where(counts, -torch.minimum(free, bounded), 0.0)
    return loss, counts & (bounded < free)


def sequence_loss(
    log_ratio: Tensor,
    advantages: Tensor,
    keep: Tensor,
    cu_seqlens: Tensor,
    *,
    low: float,
    high: float,
) -> tuple[Tensor, Tensor]:
    """
    GSPO: one ratio a sequence, the geometric mean of its tokens' ratios, clipped as a whole.

    Args:
        log_ratio: ``[tokens]`` float32 with gradient, new minus behavior (nats).
        advantages: ``[tokens]`` float32, the same at each answer token of a sequence.
        keep: ``[tokens]`` bool.
        cu_seqlens: ``[sequences + 1]`` int32.
        low: The ratio may fall to ``1 - low``.
        high: The ratio may rise to ``1 + high``.

    Returns:
        Loss ``[sequences]`` float32, and ``[sequences]`` bool where the clip took the gradient.

    Source:
        GSPO, arXiv:2507.18071, equations 5 to 7.
    """
    sequences = len(cu_seqlens) - 1
    lengths = cu_seqlens.diff().long()
    owner = torch.repeat_interleave(torch.arange(sequences, device=lengths.device), lengths)
    zeros = torch.zeros(sequences, device=log_ratio.device)
    count = zeros.index_add(0, owner, keep.float()).clamp(min=1)
    masked = torch.where(keep, log_ratio, 0.0)
    mean = zeros.index_add(0, owner, masked) / count
    advantage = zeros.index_add(0, owner, torch.where(keep, advantages, 0.0)) / count
    return clipped_loss(mean, advantage, count > 0, low=low, high=high)


def _ratio(log_ratio: Tensor, counts: Tensor) -> Tensor:
    return torch.where(counts, log_ratio, 0.0).clamp(max=_MAX_LOG_RATIO).exp()
