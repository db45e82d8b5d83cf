"""StepTally: what one step says about itself, gathered from its optimizer steps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from astraflow.interfaces import StepReport
from astraflow.trainer.minibatches import Batch

__all__ = ["StepTally", "gpu_memory"]


class StepTally:
    """
    Numbers of one batch.

    Args:
        batch: The whole batch.
        version: Version that the batch's first optimizer step starts from.
    """

    def __init__(self, batch: Batch, *, version: int) -> None:
        self._batch = batch
        self._version = version
        self._reports: list[StepReport] = []
        self._selected: list[Mapping[str, float]] = []
        self._mismatch: dict[str, float] = {}

    def add(self, report: StepReport) -> None:
        """Add one optimizer step."""
        self._reports.append(report)

    def note(self, numbers: Mapping[str, float], log_ratio: Tensor, index: Tensor) -> None:
        """
        Add what the objective said of a whole mini-batch.

        Before the first update the policy is the published version, so on samples of lag 0 the
        log-ratio is nothing but the mismatch between engine and trainer.
        """
        if not self._selected:
            train = self._batch.train
            fresh = torch.repeat_interleave(
                self._batch.min_versions == self._version, train.cu_seqlens.diff().long()
            )
            gaps = log_ratio[(fresh & train.answer_mask)[index]].double()
            if gaps.numel():
                self._mismatch = {
                    "mismatch_mean_abs": float(gaps.abs().mean()),
                    "mismatch_m2": float((gaps**2).mean()),
                    "mismatch_max_abs": float(gaps.abs().max()),
                }
        self._selected.append(numbers)

    def numbers(self) -> dict[str, float | int]:
        """Return means over the batch, ready for an event."""
        sums: dict[str, float] = {}
        for report in self._reports:
            for name, value in report.sums.items():
                sums[name] = sums.get(name, 0.0) + value
        tokens = max(sums.get("answer_tokens", 0.0), 1.0)
        means = {
            name.removesuffix("_sum"): value / tokens
            for name, value in sums.items()
            if name.endswith("_sum")
        }
        selected = {
            name: sum(numbers[name] for numbers in self._selected) / len(self._selected)
            for name in (self._selected[0] if self._selected else {})
        }
        lengths = self._batch.train.answer_mask.sum() / self._batch.train.num_sequences
        rounded = {
            "loss": sum(report.loss for report in self._reports) / len(self._reports),
            "grad_norm": sum(report.grad_norm for report in self._reports) / len(self._reports),
            "reward_mean": float(self._batch.rewards.mean()),
            "truncated_frac": float(self._batch.truncated.float().mean()),
            "answer_tokens_mean": float(lengths),
            "lag_mean": float((self._version - self._batch.min_versions.float()).mean()),
            **means,
            **selected,
            **self._mismatch,
        }
        return {
            "skipped_updates": sum(report.skipped for report in self._reports),
            **{name: round(value, 7) for name, value in rounded.items()},
        }


def gpu_memory() -> dict[str, int]:
    """Return what torch holds of this rank's GPU; nothing without one."""
    if not torch.cuda.is_available():
        return {}
    return {
        "gpu_reserved_bytes": torch.cuda.memory_reserved(),
        "gpu_peak_bytes": torch.cuda.max_memory_allocated(),
    }
