"""Self-check at the start: sequences that share a forward pass must score as they do alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from astraflow.errors import HardwareError
from astraflow.records import TrainBatch

__all__ = ["check_isolation", "probe_batch"]

# What rounding may move a log-probability by; leaking state moved it by 0.06 and more.
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 0.2}
_LENGTHS = (5, 19, 11)


def check_isolation(
    score: Callable[[TrainBatch, list[list[int]]], Tensor],
    *,
    vocabulary: int,
    dtype: torch.dtype,
) -> float:
    """
    Compare three short sequences scored together and one by one.

    Collective: every rank makes the same passes.

    Args:
        score: Scores a batch in the given groups of sequences: ``[tokens]`` float32.
        vocabulary: Rows of the embedding (count).
        dtype: Type that computes.

    Returns:
        Largest mean difference of a sequence (nats).

    Raises:
        HardwareError: they differ by more than rounding explains.
    """
    batch = probe_batch(_LENGTHS, vocabulary=vocabulary)
    together = score(batch, [list(range(len(_LENGTHS)))])
    alone = score(batch, [[sequence] for sequence in range(len(_LENGTHS))])
    gaps = [float(part.abs().mean()) for part in torch.split(together - alone, list(_LENGTHS))]
    worst = max(gaps)
    if not worst <= _TOLERANCE[dtype]:
        raise HardwareError(
            f"sequences that share a forward pass change each other's log-probabilities by "
            f"{worst:.3g} nats; rounding explains {_TOLERANCE[dtype]:g}",
            hint="`--set trainer.fsdp.layout=padded --set trainer.fsdp.attention=sdpa`",
        )
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
