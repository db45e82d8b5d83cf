"""Log-ratios of new to behavior policy: which may enter a loss, and ratios that stay finite."""

from __future__ import annotations

import torch
from torch import Tensor

from astraflow.errors import LossInputError

__all__ = ["bounded_ratio", "require_usable"]

# exp(20) is 4.9e8: far beyond any ratio that teaches something, far below the end of float32.
_LARGEST_LOG_RATIO = 20.0


def require_usable(log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor) -> None:
    """
    Refuse what no rule can repair: NaN, or an advantage that is not finite, inside an answer.

    An infinite log-ratio passes; the losses leave such a token out and count it.

    Args:
        log_ratio: ``[tokens]`` float, nats.
        advantages: ``[tokens]`` float.
        answer_mask: ``[tokens]`` bool.

    Raises:
        LossInputError: as above, with how many tokens are affected.
    """
    bad = answer_mask & (torch.isnan(log_ratio) | ~torch.isfinite(advantages))
    count = int(bad.sum())
    if count:
        first = int(bad.nonzero()[0])
        raise LossInputError(
            f"{count} of {int(answer_mask.sum())} answer tokens have a log-ratio or an "
            f"advantage that is not a number, the first at token {first}: log-ratio "
            f"{float(log_ratio[first])}, advantage {float(advantages[first])}",
            hint="look for NaN in the weights, or lower `trainer.optimizer.lr`",
        )


def bounded_ratio(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """
    Exponentiate where ``mask`` is True; 1 with no gradient elsewhere.

    Masked entries are replaced *before* the exponential: 0 times infinity would be NaN in the
    gradient. Above 20 nats the value is cut and has no gradient.

    Args:
        log_ratio: ``[n]`` float32, nats.
        mask: ``[n]`` bool.

    Returns:
        ``[n]`` float32.
    """
    return torch.where(mask, log_ratio, 0.0).clamp(max=_LARGEST_LOG_RATIO).exp()
