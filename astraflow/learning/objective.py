"""Objective: a recipe's algorithm as one loss over micro-batches that add up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from astraflow.learning import dr_grpo, grpo, gspo
from astraflow.learning.grpo import clipped_ratio_loss
from astraflow.learning.kl import k3
from astraflow.learning.m2po import kept_ratio_loss, second_moment_cut
from astraflow.learning.ratios import bounded_ratio, require_usable
from astraflow.recipe.schema import AlgorithmSection
from astraflow.records import TrainBatch

__all__ = ["MinibatchTotals", "Objective", "build_objective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MinibatchTotals:
    """Counts over the whole optimizer mini-batch, all ranks together: what losses divide by."""

    answer_tokens: int
    """Answer tokens, masked ones included (tokens)."""

    sequences: int
    """Sequences (count)."""

    max_new_tokens: int
    """Longest answer that sampling allows (tokens)."""


class Objective(Protocol):
    """What the trainer asks of an algorithm."""

    @property
    def needs_minibatch(self) -> bool:
        """True if ``select`` must see the whole mini-batch before the first backward pass."""
        ...

    def select(
        self, log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        """
        Decide which tokens of a whole mini-batch take part.

        Args:
            log_ratio: ``[tokens]`` float32, new minus behavior log-probability (nats), of all
                sequences of all ranks.
            advantages: ``[tokens]`` float32.
            answer_mask: ``[tokens]`` bool.

        Returns:
            ``[tokens]`` bool, a subset of ``answer_mask``; numbers for the metrics.

        Raises:
            LossInputError: a log-ratio or advantage inside an answer is NaN.
        """
        ...

    def loss(
        self, logprobs: Tensor, batch: TrainBatch, totals: MinibatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """
        Sum the losses of one micro-batch, already divided by the mini-batch's totals.

        Args:
            logprobs: ``[tokens]`` float32 with gradient, nats.
            batch: The micro-batch; ``keep_mask`` is what ``select`` returned.
            totals: of the whole mini-batch.

        Returns:
            The scalar loss; detached sums that add up over micro-batches and ranks.

        Raises:
            LossInputError: a log-ratio or advantage inside an answer is NaN.
        """
        ...


def build_objective(section: AlgorithmSection) -> Objective:
    """Return the objective that a recipe's algorithm section names."""
    if section.name == "m2po":
        return _M2po(
            bound=section.m2_threshold,
            needs_minibatch=section.scope == "minibatch" and section.m2_threshold is not None,
            kl_coef=section.kl_coef,
        )
    defaults = {"grpo": grpo, "gspo": gspo, "dr_grpo": dr_grpo}[section.name]
    low = defaults.CLIP_LOW if section.clip_low is None else section.clip_low
    high = defaults.CLIP_HIGH if section.clip_high is None else section.clip_high
    kind = {"grpo": _Grpo, "gspo": _Gspo, "dr_grpo": _DrGrpo}[section.name]
    return kind(clip_low=low, clip_high=high, kl_coef=section.kl_coef)


@dataclass(frozen=True, slots=True, kw_only=True)
class _M2po:
    """M2PO; without a bound, the plain importance-weighted policy gradient."""

    bound: float | None
    needs_minibatch: bool
    kl_coef: float

    def select(
        self, log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        if self.bound is None:
            return _keep_finite(log_ratio, advantages, answer_mask)
        chosen = second_moment_cut(log_ratio, advantages, answer_mask, bound=self.bound)
        _, numbers = _keep_finite(log_ratio, advantages, answer_mask)
        largest = numbers["max_abs_log_ratio"] ** 2
        return chosen.keep, numbers | {
            "m2_before": chosen.before,
            "m2_after": chosen.after,
            # A metrics file knows no infinity: without a cut, the largest square there is.
            "m2_cut": chosen.cut if math.isfinite(chosen.cut) else largest,
            "m2_all_masked": float(chosen.cut < 0),
            "counted_frac": chosen.counted_frac,
            "masked_frac": chosen.masked_frac,
        }

    def loss(
        self, logprobs: Tensor, batch: TrainBatch, totals: MinibatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = _log_ratio(logprobs, batch)
        keep = _takes_part(log_ratio, batch)
        if self.bound is not None and not self.needs_minibatch:
            keep = second_moment_cut(
                log_ratio.detach(), batch.advantages, batch.answer_mask, bound=self.bound
            ).keep
        losses = kept_ratio_loss(log_ratio, batch.advantages, keep)
        loss = losses.sum() / max(totals.answer_tokens, 1)
        return _with_kl(loss, logprobs, batch, totals, self.kl_coef, _sums(log_ratio, batch, keep))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Grpo:
    """GRPO with a token mean: every answer token of the mini-batch weighs the same."""

    clip_low: float
    clip_high: float
    kl_coef: float
    needs_minibatch: bool = False

    def select(
        self, log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor
    ) -> tuple[Tensor, dict[str, float]]:
        return _keep_finite(log_ratio, advantages, answer_mask)

    def loss(
        self, logprobs: Tensor, batch: TrainBatch, totals: MinibatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = _log_ratio(logprobs, batch)
        keep = _takes_part(log_ratio, batch)
        losses, clipped = clipped_ratio_loss(
            log_ratio,
            batch.advantages,
            keep,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
        )
        sums = _sums(log_ratio, batch, keep) | {"clipped_tokens": clipped.sum().float()}
        loss = losses.sum() / self._divisor(totals)
        return _with_kl(loss, logprobs, batch, totals, self.kl_coef, sums)

    def _divisor(self, totals: MinibatchTotals) -> float:
        return float(max(totals.answer_tokens, 1))


class _DrGrpo(_Grpo):
    """Dr. GRPO: the same token losses over a constant divisor."""

    def _divisor(self, totals: MinibatchTotals) -> float:
        return dr_grpo.constant_divisor(totals.sequences, totals.max_new_tokens)


class _Gspo(_Grpo):
    """GSPO: clipped sequence ratios, averaged over sequences."""

    def loss(
        self, logprobs: Tensor, batch: TrainBatch, totals: MinibatchTotals
    ) -> tuple[Tensor, dict[str, Tensor]]:
        log_ratio = _log_ratio(logprobs, batch)
        keep = _takes_part(log_ratio, batch)
        ratios, present = gspo.sequence_means(log_ratio, keep, batch.cu_seqlens)
        advantages, _ = gspo.sequence_means(batch.advantages, batch.answer_mask, batch.cu_seqlens)
        losses, clipped = clipped_ratio_loss(
            ratios, advantages, present, clip_low=self.clip_low, clip_high=self.clip_high
        )
        lengths = batch.cu_seqlens.diff().long()
        clipped_tokens = torch.repeat_interleave(clipped, lengths) & keep
        sums = _sums(log_ratio, batch, keep) | {"clipped_tokens": clipped_tokens.sum().float()}
        loss = losses.sum() / max(totals.sequences, 1)
        return _with_kl(loss, logprobs, batch, totals, self.kl_coef, sums)


def _log_ratio(logprobs: Tensor, batch: TrainBatch) -> Tensor:
    log_ratio = logprobs - batch.behavior_logprobs
    require_usable(log_ratio.detach(), batch.advantages, batch.answer_mask)
    return log_ratio


def _takes_part(log_ratio: Tensor, batch: TrainBatch) -> Tensor:
    """Return ``[tokens]`` bool: in the answer, not left out by ``select``, and finite."""
    keep = batch.answer_mask & torch.isfinite(log_ratio.detach())
    return keep if batch.keep_mask is None else keep & batch.keep_mask


def _keep_finite(
    log_ratio: Tensor, advantages: Tensor, answer_mask: Tensor
) -> tuple[Tensor, dict[str, float]]:
    require_usable(log_ratio, advantages, answer_mask)
    keep = answer_mask & torch.isfinite(log_ratio)
    sizes = log_ratio[keep].abs()
    return keep, {
        "max_abs_log_ratio": float(sizes.max()) if sizes.numel() else 0.0,
        "infinite_tokens": float((answer_mask & ~keep).sum()),
    }


def _sums(log_ratio: Tensor, batch: TrainBatch, keep: Tensor) -> dict[str, Tensor]:
    """Sum what the metrics want over answer tokens; infinite log-ratios count as masked."""
    finite = batch.answer_mask & torch.isfinite(log_ratio.detach())
    gaps = log_ratio.detach()[finite]
    return {
        "answer_tokens": batch.answer_mask.sum().float(),
        "masked_tokens": (batch.answer_mask & ~keep).sum().float(),
        "ratio_sum": bounded_ratio(gaps, torch.ones_like(gaps, dtype=torch.bool)).sum(),
        "abs_log_ratio_sum": gaps.abs().sum(),
        "squared_log_ratio_sum": gaps.square().sum(),
    }


def _with_kl(
    loss: Tensor,
    logprobs: Tensor,
    batch: TrainBatch,
    totals: MinibatchTotals,
    kl_coef: float,
    sums: dict[str, Tensor],
) -> tuple[Tensor, dict[str, Tensor]]:
    """Add the mean k3 over *all* answer tokens, those that the algorithm masked included."""
    if kl_coef == 0 or batch.reference_logprobs is None:
        return loss, sums
    kl_sum = k3(logprobs, batch.reference_logprobs, batch.answer_mask).sum()
    loss = loss + kl_coef * kl_sum / max(totals.answer_tokens, 1)
    return loss, sums | {"kl_sum": kl_sum.detach()}
