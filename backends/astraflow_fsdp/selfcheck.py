"""Self-check at the start: sequences that share a forward pass must score as they do alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from astraflow.errors import HardwareError
from astraflow.records import TrainBatch

__all__ = ["check_isolation", "probe_batch"]

_LENGTHS = (5, 19, 11)
# Other neighbors of the same lengths leave shapes and kernels as they are, so a sequence that
# is kept apart does not even round differently.
_NEIGHBOR_TOLERANCE = 1e-5
# Alone, the shapes are others: this is what rounding does then, and wrong positions exceed it.
_ALONE_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.2}


def check_isolation(
    score: Callable[[TrainBatch, list[list[int]]], Tensor],
    *,
    vocabulary: int,
    dtype: torch.dtype,
) -> float:
    """
    Score three short sequences together, then with other neighbors, then one by one.

    Collective: every rank makes the same passes.

    Args:
        score: Scores a batch in the given groups of sequences: ``[tokens]`` float32.
        vocabulary: Rows of the embedding (count).
        dtype: Type that computes.

    Returns:
        Largest mean difference of a sequence, together and alone (nats).

    Raises:
        HardwareError: neighbors change a sequence, or it differs from itself alone by more than
            rounding explains.
    """
    batch = probe_batch(_LENGTHS, vocabulary=vocabulary)
    everything = [list(range(len(_LENGTHS)))]
    together = score(batch, everything)
    middle = slice(_LENGTHS[0], _LENGTHS[0] + _LENGTHS[1])
    others = (batch.token_ids + 1) % vocabulary
    others[middle] = batch.token_ids[middle]
    moved = together - score(replace(batch, token_ids=others), everything)
    _require(float(moved[middle].abs().max()), _NEIGHBOR_TOLERANCE)
    alone = score(batch, [[sequence] for sequence in range(len(_LENGTHS))])
    gaps = torch.split(together - alone, list(_LENGTHS))
    worst = max(float(gap.abs().mean()) for gap in gaps)
    _require(worst, _ALONE_TOLERANCE[dtype])
    return worst


def probe_batch(lengths: tuple[int, ...], *, vocabulary: int) -> TrainBatch:
    """Return sequences of seeded random tokens, all but the first of each to be scored."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor(lengths)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    mask = torch.ones(int(starts[-1]), dtype=torch.bool)
    mask[starts[:-1]] = False
    return TrainBatch(
        token_ids=torch.randint(0, vocabulary, (len(mask),), generator=generator),
        cu_seqlens=starts.to(torch.int32),
        answer_mask=mask,
        behavior_logprobs=torch.zeros(len(mask)),
        advantages=torch.zeros(len(mask)),
    )


def _require(gap: float, tolerance: float) -> None:
    if not gap <= tolerance:  # NaN is refused too
        raise HardwareError(
            "sequences that share a forward pass change each other's log-probabilities by "
            f"{gap:.3g} nats; rounding explains {tolerance:g}",
            hint="`--set trainer.fsdp.layout=padded --set trainer.fsdp.attention=sdpa`",
        )
