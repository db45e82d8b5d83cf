"""GSPO: one ratio a sequence, the geometric mean of its tokens' ratios."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["CLIP_HIGH", "CLIP_LOW", "sequence_means"]

CLIP_LOW = 3e-4
CLIP_HIGH = 4e-4


def sequence_means(values: Tensor, mask: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """
    Average ``values`` over the masked tokens of each sequence.

    Of log-ratios this is the log of GSPO's sequence ratio; of advantages, which are equal along
    an answer, it is the answer's advantage.

    Args:
        values: ``[tokens]`` float32.
        mask: ``[tokens]`` bool.
        cu_seqlens: ``[sequences + 1]`` int32.

    Returns:
        ``[sequences]`` float32 means, 0 where a sequence has no masked token; ``[sequences]``
        bool, True where it has one.

    Source:
        GSPO, arXiv:2507.18071, equation 7.
    """
    lengths = cu_seqlens.diff().long()
    row = torch.repeat_interleave(torch.arange(len(lengths), device=values.device), lengths)
    zeros = values.new_zeros(len(lengths))
    sums = zeros.index_add(0, row, torch.where(mask, values, 0.0))
    counts = zeros.index_add(0, row, mask.to(values.dtype))
    return sums / counts.clamp(min=1), counts > 0
