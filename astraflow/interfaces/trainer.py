"""TrainerBackend: forward, step, shards, save and restore on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from astraflow.interfaces.weights import Shard
from astraflow.records import PolicyVersion, TrainBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["StepReport", "TokenLoss", "TrainerBackend", "TrainerContext"]

TokenLoss: TypeAlias = "Callable[[Tensor, TrainBatch], tuple[Tensor, Mapping[str, Tensor]]]"
"""
``(logprobs [tokens] float32 with gradient, micro-batch) -> (loss, sums)``.

The loss is already divided by the totals of the whole mini-batch over all ranks, so the
backend only adds up micro-batches and ranks. ``sums`` are detached scalars that add up too.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerContext:
    """What a trainer adapter is built from, on each rank."""

    model_path: str
    """Folder or hub id of the starting checkpoint."""

    dtype: str
    """``bfloat16`` or ``float32``: type that computes and that is published."""

    master_dtype: str
    """``float32`` or ``bfloat16``: type of the weights that the optimizer moves."""

    optimizer: Any
    """``trainer.optimizer`` of the recipe."""

    total_updates: int
    """Optimizer steps that the whole run will take (count)."""

    tokens_per_microbatch: int
    """Tokens in one forward pass on one rank (tokens)."""

    temperature: float
    """Log-probabilities are of ``logits / temperature``, as the engine sampled them."""

    needs_reference: bool
    """True when the starting policy must stay in memory for a KL term."""

    settings: Any
    """The adapter's own section of the recipe, validated (its ``Plugin.settings``)."""

    seed: int
    """Seed of everything random in the trainer."""

    device: str
    """``cpu`` or ``cuda``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What one optimizer step did, the same on every rank."""

    loss: float
    """The mini-batch's loss over all ranks."""

    grad_norm: float
    """Global L2 norm before clipping."""

    skipped: bool
    """True if the gradient was not finite and weights and optimizer were left alone."""

    sums: Mapping[str, float]
    """What the loss returned, added up over micro-batches and ranks."""


class TrainerBackend(Protocol):
    """
    One rank's part of the model and optimizer.

    Every rank makes the same calls in the same order; all but ``version`` and ``close`` are
    collective.
    """

    version: PolicyVersion
    """Batches trained on; the caller advances it after a batch, ``restore`` sets it."""

    def logprobs(
        self, batch: TrainBatch, *, of: Literal["policy", "reference"] = "policy"
    ) -> Tensor:
        """Score this rank's sequences without gradient: ``[tokens]`` float32 (nats)."""
        ...

    def step(self, batch: TrainBatch, loss: TokenLoss) -> StepReport:
        """Forward and backward in micro-batches, then one optimizer step."""
        ...

    def shards(self) -> Iterator[Shard]:
        """Yield this rank's pieces of every tensor, in the same order each time."""
        ...

    def save(self, folder: Path) -> None:
        """Write this rank's weights, optimizer and RNG state into ``folder``."""
        ...

    def restore(self, folder: Path) -> None:
        """Read what ``save`` wrote, on any number of ranks."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...
