"""
M2PO's selection: which tokens may push the policy, so that the second moment stays bounded.

Four different rules go by this name in public code. Ours is Algorithm 1 of the paper over the
tokens that clipping could act on, with all answer tokens in the loss's denominator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.errors import LossInputError

__all__ = ["Selection", "second_moment_selection"]

# 0.1 ** 2 is above 0.01 in floating point; without a tolerance a batch that is exactly on the
# bound would lose every token.
_RELATIVE_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What M2PO decided over one set of tokens."""

    keep: Tensor
    """``[tokens]`` bool, a subset of the answer mask."""

    before: float
    """Mean squared log-ratio of the counted tokens (nats squared)."""

    after: float
    """The same over those that were kept; at most the bound."""

    cut: float
    """Largest squared log-ratio that a counted token may have; inf keeps all, -1 none."""

    counted: int
    """Tokens that clipping could act on (count)."""

    masked: int
    """Answer tokens that were not kept (count)."""


def second_moment_selection(
    log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor, *, bound: float
) -> Selection:
    """
    Keep the most tokens whose mean squared log-ratio stays within ``bound``.

    Counted are answer tokens that are pushed further the way they already went: advantage above
    0 with a ratio above 1, or below 0 with a ratio below 1. All others are kept and do not count.
    Counted tokens leave from the largest squared log-ratio down; equal ones leave together, so
    the result depends on no order. A log-ratio that is infinite is never kept.

    Args:
        log_ratio: ``[tokens]`` float, new minus behavior log-probability (nats).
        advantages: ``[tokens]`` float.
        answer_mask: ``[tokens]`` bool, True where the policy wrote the token.
        bound: Largest mean of the squared log-ratio over kept counted tokens (nats squared).

    Raises:
        LossInputError: a log-ratio or an advantage inside the answer is NaN.

    Source:
        M2PO, arXiv:2510.01161, Algorithm 1. We differ in two ways: the decision is made over the
        whole optimizer mini-batch, where public code decides per micro-batch; and ties leave
        together, where a fixed count of tokens would depend on their order.
    """
    inside = answer_mask
    if bool((torch.isnan(log_ratio) | torch.isnan(advantages))[inside].any()):
        raise LossInputError(
            "a log-ratio or an advantage inside an answer is NaN",
            hint="the policy or the recorded log-probabilities are broken; see the steps before",
        )
    finite = torch.isfinite(log_ratio) & inside
    pushed = ((advantages > 0) & (log_ratio > 0)) | ((advantages < 0) & (log_ratio < 0))
    counted = finite & pushed
    squares = log_ratio.double() ** 2
    chosen = squares[counted]
    before = float(chosen.mean()) if chosen.numel() else 0.0
    limit = bound * (1 + _RELATIVE_TOLERANCE)
    cut = torch.inf if before <= limit else _largest_cut(chosen, limit)
    keep = finite & ~(counted & (squares > cut))
    left = squares[keep & counted]
    return Selection(
        keep=keep,
        before=before,
        after=float(left.mean()) if left.numel() else 0.0,
        cut=float(cut),
        counted=int(counted.sum()),
        masked=int((inside & ~keep).sum()),
    )


def _largest_cut(squares: Tensor, limit: float) -> float:
    """Return the largest value whose prefix of the ascending order has a mean within the limit."""
    ordered = squares.sort().values
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, dtype=torch.float64)
    # A value qualifies by the mean over *all* its equals: look at the last of each run.
    last = torch.ones_like(ordered, dtype=torch.bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    allowed = ordered[last & (means <= limit)]
    return float(allowed[-1]) if allowed.numel() else -1.0
