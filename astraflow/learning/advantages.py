"""Advantages: rewards compared inside their group, then over all answer tokens of the batch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from astraflow.errors import LossInputError

__all__ = ["batch_normalize", "group_normalize"]

_EPS = 1e-5


def group_normalize(
    rewards: Tensor, group_ids: Tensor, *, mode: Literal["group", "mean_only", "none"]
) -> Tensor:
    """
    Compare each reward with those of its group.

    ``group`` subtracts the group's mean and divides by its sample deviation (N - 1) plus 1e-5,
    ``mean_only`` only subtracts, ``none`` keeps rewards as they are. A group whose rewards are
    all equal gets exactly 0 in the first two, whatever rounding its mean suffers.

    Args:
        rewards: ``[sequences]`` float32.
        group_ids: ``[sequences]`` int64, any labels; equal ones form a group.
        mode: as above.

    Returns:
        ``[sequences]`` float32.

    Raises:
        LossInputError: a reward is not finite.

    Source:
        GRPO, arXiv:2402.03300, section 4.1.2; `mean_only` is Dr. GRPO, arXiv:2503.20783.
    """
    if not bool(torch.isfinite(rewards).all()):
        raise LossInputError(f"a reward is not finite: {rewards[~torch.isfinite(rewards)][0]}")
    if mode == "none":
        return rewards.float()
    labels, group = torch.unique(group_ids, return_inverse=True)
    values = rewards.double()
    zeros = values.new_zeros(len(labels))
    sizes = zeros.index_add(0, group, torch.ones_like(values))
    means = zeros.index_add(0, group, values) / sizes
    centered = values - means[group]
    if mode == "group":
        variances = zeros.index_add(0, group, centered**2) / (sizes - 1).clamp(min=1)
        centered = centered / (variances.sqrt()[group] + _EPS)
    # By comparison of extremes: a deviation that is only rounding would blow up to about 1.
    highest = zeros.scatter_reduce(0, group, values, "amax", include_self=False)
    lowest = zeros.scatter_reduce(0, group, values, "amin", include_self=False)
    return torch.where((highest == lowest)[group], 0.0, centered).float()


def batch_normalize(advantages: Tensor, answer_mask: Tensor) -> Tensor:
    """
    Bring the answer tokens' advantages to mean 0 and sample deviation 1.

    Every answer token counts once, so long answers weigh more. Statistics are float64. The
    shift can turn the sign of a small advantage, which the M2PO paper, having no such step,
    never sees.

    Args:
        advantages: ``[tokens]`` float32.
        answer_mask: ``[tokens]`` bool, True where the policy wrote the token.

    Returns:
        ``[tokens]`` float32, 0 outside the answers; all 0 when the advantages are all equal.

    Raises:
        LossInputError: an answer token's advantage is not finite.
    """
    values = advantages[answer_mask].double()
    result = torch.zeros_like(advantages, dtype=torch.float32)
    if values.numel() == 0:
        return result
    if not bool(torch.isfinite(values).all()):
        raise LossInputError("the advantage of an answer token is not finite")
    if bool(values.min() == values.max()):
        return result
    result[answer_mask] = ((values - values.mean()) / (values.std() + _EPS)).float()
    return result
