"""Sequences to micro-batches: packed end to end, or padded for layers that carry a state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from astraflow.records import TrainBatch

__all__ = ["MicroBatch", "arrange", "cut", "dummy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """What one forward pass gets, and which of its outputs are whose."""

    token_ids: Tensor
    """``[rows, length]`` int64."""

    position_ids: Tensor
    """``[rows, length]`` int64."""

    flat: Tensor
    """``[tokens]`` int64, where each real token lies in the flattened rows."""

    index: Tensor
    """``[tokens]`` int64, where each real token lies in the rank's batch."""

    part: TrainBatch
    """The sequences' own fields."""

    attention: dict[str, Any]
    """Arguments for the LM beside ids and positions."""


def cut(lengths: Sequence[int], *, budget: int, padded: bool) -> list[list[int]]:
    """
    Share sequences out into micro-batches of at most ``budget`` tokens, padding included.

    A single sequence longer than the budget gets a micro-batch of its own.
    """
    order = sorted(range(len(lengths)), key=lambda s: (-lengths[s], s))
    groups: list[list[int]] = []
    loads: list[int] = []
    for sequence in order:
        for group, load in enumerate(loads):
            # Sorted by length: in a padded micro-batch the first sequence is the longest.
            cost = lengths[groups[group][0]] if padded else lengths[sequence]
            if load + cost <= budget:
                groups[group].append(sequence)
                loads[group] += cost
                break
        else:
            groups.append([sequence])
            loads.append(lengths[sequence])
    return groups


def arrange(
    batch: TrainBatch, groups: Sequence[Sequence[int]], *, padded: bool, varlen: bool
) -> Iterator[MicroBatch]:
    """Lay out each micro-batch on the batch's device."""
    starts = batch.cu_seqlens.tolist()
    for group in groups:
        lengths = [starts[s + 1] - starts[s] for s in group]
        index = torch.cat([torch.arange(starts[s], starts[s + 1]) for s in group])
        index = index.to(batch.token_ids.device)
        part = _pick(batch, index, lengths)
        if padded:
            yield _padded(part, index, lengths)
        else:
            yield _packed(part, index, lengths, varlen=varlen)


def dummy(device: torch.device, *, varlen: bool) -> MicroBatch:
    """Return a micro-batch of two tokens that nobody scores, for ranks that have run out."""
    ids = torch.zeros(2, dtype=torch.int64, device=device)
    none = torch.zeros(2, device=device)
    part = TrainBatch(
        token_ids=ids,
        cu_seqlens=torch.tensor([0, 2], dtype=torch.int32, device=device),
        answer_mask=torch.zeros(2, dtype=torch.bool, device=device),
        behavior_logprobs=none,
        advantages=none,
        reference_logprobs=none,
    )
    return _packed(part, torch.arange(2, device=device), [2], varlen=varlen)


def _packed(
    part: TrainBatch, index: Tensor, lengths: Sequence[int], *, varlen: bool
) -> MicroBatch:
    device = part.token_ids.device
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    attention: dict[str, Any] = {}
    if varlen:
        longest = max(lengths)
        attention = {
            "cu_seq_lens_q": part.cu_seqlens,
            "cu_seq_lens_k": part.cu_seqlens,
            "max_length_q": longest,
            "max_length_k": longest,
        }
    return MicroBatch(
        token_ids=part.token_ids[None],
        position_ids=positions[None],
        flat=torch.arange(part.num_tokens, device=device),
        index=index,
        part=part,
        attention=attention,
    )


def _padded(part: TrainBatch, index: Tensor, lengths: Sequence[int]) -> MicroBatch:
    """
    Pad on the right, with no mask: every layer is causal, so no real token sees the padding.

    Packed, the state of a gated-delta-rule layer would leak from one sequence into the next.
    """
    device = part.token_ids.device
    longest = max(lengths)
    sizes = torch.tensor(lengths)
    rows = torch.repeat_interleave(torch.arange(len(lengths)), sizes)
    columns = torch.cat([torch.arange(length) for length in lengths])
    flat = (rows * longest + columns).to(device)
    ids = torch.zeros(len(lengths) * longest, dtype=torch.int64, device=device)
    ids[flat] = part.token_ids
    return MicroBatch(
        token_ids=ids.view(len(lengths), longest),
        position_ids=torch.arange(longest, device=device).expand(len(lengths), -1),
        flat=flat,
        index=index,
        part=part,
        attention={},
    )


def _pick(batch: TrainBatch, index: Tensor, lengths: Sequence[int]) -> TrainBatch:
    starts = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return TrainBatch(
        token_ids=batch.token_ids[index],
        cu_seqlens=starts.to(index.device),
        answer_mask=batch.answer_mask[index],
        behavior_logprobs=batch.behavior_logprobs[index],
        advantages=batch.advantages[index],
        keep_mask=None if batch.keep_mask is None else batch.keep_mask[index],
        reference_logprobs=(
            None if batch.reference_logprobs is None else batch.reference_logprobs[index]
        ),
    )
