"""Objective: a recipe's algorithm, as the training loop calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from astraflow.errors import LossInputError
from astraflow.learning.kl import k3
from astraflow.learning.m2po import Selection, second_moment_selection
from astraflow.learning.ratios import clipped_loss, kept_loss, sequence_loss
from astraflow.recipe.schema import AlgorithmSection
from astraflow.records import TrainBatch

__all__ = ["MinibatchTotals", "Objective", "build_objective"]

# Defaults of the papers: DAPO's asymmetric bounds for tokens, GSPO's for whole sequences.
_CLIP_BOUNDS = {"grpo": (0.2, 0.28), "gspo": (3e-4, 4e-4), "dr_grpo": (0.2, 0.2)}


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchTotals:
    """What the losses of a mini-batch are divided by, over all ranks and micro-batches."""

    answer_tokens: int
    """Answer tokens, masked ones included (tokens)."""

    sequences: int
    """Sequences (count)."""

    max_new_tokens: int
    """Longest answer that the recipe admits (tokens)."""


class Objective(Protocol):
    """One algorithm."""

    needs_minibatch: bool
    """True if :meth:`select` must see the whole mini-batch before the backward pass."""

    def select(
        self, log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor
    ) -> tuple[Tensor, Mapping[str, float]]:
        """
        Decide which tokens of a whole mini-batch, over all ranks, are kept.

        Args:
            log_ratio: ``[tokens]`` float32, new minus behavior (nats), without gradient.
            advantages: ``[tokens]`` float32.
            answer_mask: ``[tokens]`` bool.

        Returns:
            ``[tokens]`` bool, and numbers to report.
        """
        ...

    def loss(
        self, logprobs: Tensor, batch: TrainBatch, totals: MinibatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """
        Return a micro-batch's share of the mini-batch's loss, and sums to report.

        Raises:
            LossInputError: a log-probability inside an answer is NaN.
        """
        ...


def build_objective(section: AlgorithmSection) -> Objective:
    """
    Build the recipe's objective.

    Raises:
        LossInputError: M2PO without a threshold.
    """
    if section.name == "m2po":
        if section.m2_threshold is None:
            raise LossInputError("M2PO needs `algorithm.m2_threshold`")
        return _M2po(section, section.m2_threshold)
    low, high = _CLIP_BOUNDS[section.name]
    return _Clipped(
        section,
        low=low if section.clip_low is None else section.clip_low,
        high=high if section.clip_high is None else section.clip_high,
    )


class _M2po:
    """M2PO, decided over the mini-batch or, for comparison with older code, per micro-batch."""

    def __init__(self, section: AlgorithmSection, bound: float) -> None:
        self._bound = bound
        self._kl_coef = section.kl_coef
        self.needs_minibatch = section.scope == "minibatch"

    def select(
        self, log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor
    ) -> tuple[Tensor, Mapping[str, float]]:
        selection = second_moment_selection(
            log_ratio, advantages, answer_mask, bound=self._bound
        )
        return selection.keep, _numbers(selection, int(answer_mask.sum()))

    def loss(
        self, logprobs: Tensor, batch: TrainBatch, totals: MinibatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = _log_ratio(logprobs, batch)
        keep = batch.keep_mask
        if keep is None:
            keep = second_moment_selection(
                log_ratio.detach(), batch.advantages, batch.answer_mask, bound=self._bound
            ).keep
        keep = keep & batch.answer_mask
        loss = kept_loss(log_ratio, batch.advantages, keep).sum()
        masked = (batch.answer_mask & ~keep).sum()
        return _finish(
            loss, log_ratio, logprobs, batch, totals.answer_tokens, self._kl_coef, masked
        )


class _Clipped:
    """GRPO, Dr. GRPO and GSPO: clipped ratios, and what their sum is divided by."""

    needs_minibatch = False

    def __init__(self, section: AlgorithmSection, *, low: float, high: float) -> None:
        self._name = section.name
        self._kl_coef = section.kl_coef
        self._low = low
        self._high = high

    def select(
        self, log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor
    ) -> tuple[Tensor, Mapping[str, float]]:
        return answer_mask & torch.isfinite(log_ratio), {}

    def loss(
        self, logprobs: Tensor, batch: TrainBatch, totals: MinibatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = _log_ratio(logprobs, batch)
        keep = batch.answer_mask & torch.isfinite(log_ratio.detach())
        if self._name == "gspo":
            values, clipped = sequence_loss(
                log_ratio,
                batch.advantages,
                keep,
                batch.cu_seqlens,
                low=self._low,
                high=self._high,
            )
        else:
            values, clipped = clipped_loss(
                log_ratio, batch.advantages, keep, low=self._low, high=self._high
            )
        divisor = {
            "grpo": totals.answer_tokens,
            "gspo": totals.sequences,
            # A constant, so that neither length nor success changes a token's weight.
            "dr_grpo": totals.sequences * totals.max_new_tokens,
        }[self._name]
        return _finish(
            values.sum() / divisor * totals.answer_tokens,
            log_ratio,
            logprobs,
            batch,
            totals.answer_tokens,
            self._kl_coef,
            clipped.sum(),
        )


def _finish(
    loss_sum: Tensor,
    log_ratio: Tensor,
    logprobs: Tensor,
    batch: TrainBatch,
    answer_tokens: int,
    kl_coef: float,
    masked: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Divide, add the KL term over all answer tokens, and gather sums."""
    mask = batch.answer_mask
    gaps = torch.where(mask, log_ratio.detach(), 0.0).clamp(-80.0, 80.0)
    sums = {
        "answer_tokens": mask.sum(),
        "ratio_sum": torch.where(mask, gaps.exp(), 0.0).sum(),
        "abs_log_ratio_sum": gaps.abs().sum(),
        "squared_log_ratio_sum": (gaps**2).sum(),
        "masked_sum": masked,
    }
    if batch.reference_logprobs is not None and kl_coef > 0:
        # Over masked tokens too: the pull towards the starting policy does not push it away.
        divergence = torch.where(mask, k3(logprobs, batch.reference_logprobs), 0.0)
        sums["kl_sum"] = divergence.detach().sum()
        loss_sum = loss_sum + kl_coef * divergence.sum()
    return loss_sum / max(answer_tokens, 1), sums


def _log_ratio(logprobs: Tensor, batch: TrainBatch) -> Tensor:
    """Return new minus behavior inside the answer and 0 outside, with gradient."""
    if bool(torch.isnan(logprobs.detach())[batch.answer_mask].any()):
        raise LossInputError("a log-probability inside an answer is NaN")
    return torch.where(batch.answer_mask, logprobs - batch.behavior_logprobs, 0.0)


def _numbers(selection: Selection, answer_tokens: int) -> dict[str, float]:
    total = max(answer_tokens, 1)
    return {
        "m2_before": selection.before,
        "m2_after": selection.after,
        "counted_frac": selection.counted / total,
        "masked_frac": selection.masked / total,
    }
