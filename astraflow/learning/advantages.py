"""Rewards to advantages: within the group of one prompt, and over the tokens of a batch."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from astraflow.errors import LossInputError

__all__ = ["batch_normalize", "group_normalize"]

# Added to a deviation before dividing, as in the published recipes.
_EPS = 1e-5


def group_normalize(
    rewards: Tensor, group_ids: Tensor, *, mode: Literal["group", "mean_only", "none"]
) -> Tensor:
    """
    Compare each reward with the others of its group.

    ``group`` gives ``(r - mean) / (deviation + 1e-5)`` with the sample deviation (N - 1);
    ``mean_only`` leaves the division out. A group whose rewards are all the same number gives
    exactly 0, compared by value: a deviation that is 0 in theory is 1e-8 in float32, and dividing
    by it would make advantages of about 1 out of nothing.

    Args:
        rewards: ``[sequences]`` float32.
        group_ids: ``[sequences]`` int64, equal within a group, in any order.
        mode: As ``algorithm.reward_norm``.

    Returns:
        ``[sequences]`` float32.

    Raises:
        LossInputError: a reward is not finite.

    Source:
        GRPO, arXiv:2402.03300, section 4.1.2; with the sample deviation, as the published recipes.
    """
    if not bool(torch.isfinite(rewards).all()):
        raise LossInputError("a reward is not finite")
    if mode == "none":
        return rewards.float().clone()
    values = rewards.double()
    _, inverse = torch.unique(group_ids, return_inverse=True)
    groups = int(inverse.max()) + 1 if len(inverse) else 0
    ones = torch.ones_like(values)
    count = torch.zeros(groups, dtype=torch.float64).index_add_(0, inverse, ones)
    mean = torch.zeros(groups, dtype=torch.float64).index_add_(0, inverse, values) / count
    centered = values - mean[inverse]
    low = torch.full((groups,), torch.inf, dtype=torch.float64)
    low = low.scatter_reduce_(0, inverse, values, "amin")
    high = torch.full((groups,), -torch.inf, dtype=torch.float64)
    high = high.scatter_reduce_(0, inverse, values, "amax")
    if mode == "group":
        squares = torch.zeros(groups, dtype=torch.float64).index_add_(0, inverse, centered**2)
        deviation = (squares / (count - 1).clamp(min=1)).sqrt()
        centered = centered / (deviation[inverse] + _EPS)
    equal = (high == low)[inverse]
    return torch.where(equal, torch.zeros_like(centered), centered).float()


def batch_normalize(advantages: Tensor, answer_mask: Tensor) -> Tensor:
    """
    Center and scale advantages over all answer tokens of a batch.

    Args:
        advantages: ``[tokens]`` float32.
        answer_mask: ``[tokens]`` bool; what lies outside stays out of the statistics and is 0.

    Returns:
        ``[tokens]`` float32, ``(A - mean) / (deviation + 1e-5)`` with the sample deviation, in
        float64 inside.

    Source:
        The published AstraFlow recipes; the M2PO paper normalizes within groups only.
    """
    values = advantages[answer_mask].double()
    result = torch.zeros_like(advantages, dtype=torch.float32)
    if values.numel() < 2 or bool(values.max() == values.min()):
        return result
    scaled = (values - values.mean()) / (values.std(unbiased=True) + _EPS)
    result[answer_mask] = scaled.float()
    return result
