"""M2PO: leave out the tokens that push the second moment of the log-ratio over a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.learning.ratios import require_usable

__all__ = ["Selection", "kept_ratio_loss", "second_moment_cut"]

# 0.1 * 0.1 lies above 0.01 in floating point, and log-probabilities come as float32: without a
# little room a batch that sits on the bound would be masked whole.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the rule decided for one set of tokens."""

    keep: Tensor
    """``[tokens]`` bool, a subset of the answer."""

    before: float
    """Mean squared log-ratio over the counted tokens (nats squared)."""

    after: float
    """The same over the counted tokens that are kept; 0 when none is."""

    cut: float
    """Largest squared log-ratio that is kept; infinite when nothing was cut, -1 when every
    counted token was."""

    counted_frac: float
    """Counted tokens per answer token, 0 to 1."""

    masked_frac: float
    """Answer tokens left out per answer token, 0 to 1."""


def second_moment_cut(
    log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor, *, bound: float
) -> Selection:
    """
    Keep the most tokens whose mean squared log-ratio stays within ``bound``.

    Counted are only tokens that clipping could act on: positive advantage and ratio above 1,
    or negative and below 1. They leave from the largest square down, equal ones together, until
    the mean over those left is within the bound; all other answer tokens stay. A token whose
    log-ratio is infinite is left out and not counted.

    Args:
        log_ratio: ``[tokens]`` float32, new minus behavior log-probability (nats).
        advantages: ``[tokens]`` float32.
        answer_mask: ``[tokens]`` bool, True where the policy wrote the token.
        bound: largest mean (nats squared), above 0; 0.04 in the paper.

    Raises:
        LossInputError: a log-ratio or advantage inside the answer is NaN.

    Source:
        M2PO, arXiv:2510.01161, Algorithm 1. The paper's own code decides per micro-batch and
        with a capped mean; this is the algorithm as printed, over whatever tokens are given.
    """
    require_usable(log_ratio, advantages, answer_mask)
    usable = answer_mask & torch.isfinite(log_ratio)
    counted = usable & (torch.sign(advantages) * torch.sign(log_ratio) > 0)
    squares = log_ratio.double() ** 2
    ordered = squares[counted].sort().values
    before, after, cut = _find_cut(ordered, bound * (1 + _TOLERANCE))
    keep = usable & ~(counted & (squares > cut))
    answer_tokens = max(int(answer_mask.sum()), 1)
    return Selection(
        keep=keep,
        before=before,
        after=after,
        cut=cut,
        counted_frac=ordered.numel() / answer_tokens,
        masked_frac=int((answer_mask & ~keep).sum()) / answer_tokens,
    )


def kept_ratio_loss(log_ratio: Tensor, advantages: Tensor, keep: Tensor) -> Tensor:
    """
    Weigh each kept token's advantage with its unclipped ratio.

    Args:
        log_ratio: ``[tokens]`` float32 with gradient, nats.
        advantages: ``[tokens]`` float32.
        keep: ``[tokens]`` bool.

    Returns:
        ``[tokens]`` float32, ``-ratio * advantage``; exactly 0, gradient included, where a
        token is not kept or has no advantage. To be divided by *all* answer tokens.

    Source:
        M2PO, arXiv:2510.01161, equation of the objective with its 0/1 mask.
    """
    active = keep & (advantages != 0)
    ratio = torch.where(active, log_ratio, 0.0).exp()
    return torch.where(active, -ratio * advantages, 0.0)


def _find_cut(ordered: Tensor, bound: float) -> tuple[float, float, float]:
    """
    Return mean before, mean after, and the largest square that stays.

    Args:
        ordered: ``[counted]`` float64, ascending.
        bound: as in :func:`second_moment_cut`, tolerance included.
    """
    count = ordered.numel()
    if count == 0:
        return 0.0, 0.0, math.inf
    means = ordered.cumsum(0) / torch.arange(1, count + 1, device=ordered.device)
    before = float(means[-1])
    if before <= bound:
        return before, before, math.inf
    # Means of an ascending list never fall, so what is admissible is a prefix; a prefix may end
    # only where a run of equal squares does.
    ends_a_run = torch.ones(count, dtype=torch.bool, device=ordered.device)
    ends_a_run[:-1] = ordered[:-1] != ordered[1:]
    admissible = (ends_a_run & (means <= bound)).nonzero()
    if admissible.numel() == 0:
        return before, 0.0, -1.0
    last = int(admissible[-1])
    return before, float(means[last]), float(ordered[last])
