"""
Micro-batches: which sequences share a forward pass, and how their tokens are laid out.

    packed   [1, tokens]           a a a b b c c c c      position_ids restart at each sequence
    padded   [rows, longest]       c c c c
                                   a a a 0                pads come last, so no token sees one
                                   b b 0 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from astraflow.records import TrainBatch

__all__ = ["Inputs", "MicroBatch", "cut", "idle_microbatch", "take"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What one forward pass reads, on the rank's device."""

    token_ids: Tensor
    """``[rows, columns]`` int64."""

    position_ids: Tensor
    """``[rows, columns]`` int64, from 0 in each sequence."""

    cu_seqlens: Tensor | None
    """``[sequences + 1]`` int32 when packed; None when padded."""

    longest_tokens: int
    """Length of the longest sequence (tokens)."""

    scored: Tensor
    """``[answer]`` int64, which tokens of the micro-batch are scored."""

    hidden_rows: Tensor
    """``[answer]`` int64, flat positions of the hidden states that predict them."""

    targets: Tensor
    """``[answer]`` int64, their token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some of a batch's sequences, on the rank's device."""

    batch: TrainBatch
    """The sequences, packed end to end, as losses read them."""

    inputs: Inputs
    """The same, as the model reads them."""

    index: Tensor
    """``[tokens]`` int64 on the CPU, where their tokens lie in the rank's batch."""


def cut(lengths: Sequence[int], *, limit_tokens: int, padded: bool) -> list[list[int]]:
    """
    Group sequences, longest first, so that each forward pass fits the limit.

    A sequence that alone exceeds the limit gets a pass of its own; recipe checks refuse those.

    Args:
        lengths: Tokens of each sequence.
        limit_tokens: Most tokens in one pass, pads included.
        padded: Whether every row costs as much as the longest.

    Returns:
        Indices into ``lengths``, one list a pass.
    """
    groups: list[list[int]] = []
    used = row = 0
    for sequence in sorted(range(len(lengths)), key=lambda s: (-lengths[s], s)):
        if not groups or used + (row if padded else lengths[sequence]) > limit_tokens:
            groups.append([])
            used, row = 0, lengths[sequence]
        groups[-1].append(sequence)
        used += row if padded else lengths[sequence]
    return groups


def take(
    batch: TrainBatch, sequences: Sequence[int], *, padded: bool, device: torch.device
) -> MicroBatch:
    """
    Pick sequences out of a batch and lay them out.

    Args:
        batch: The rank's batch, on the CPU.
        sequences: Which ones, in order.
        padded: The layout.
        device: Where the result goes.
    """
    starts = batch.cu_seqlens.tolist()
    pieces = [torch.arange(starts[s], starts[s + 1]) for s in sequences]
    index = torch.cat(pieces)
    lengths = torch.tensor([len(piece) for piece in pieces])

    def some(field: Tensor | None) -> Tensor | None:
        return None if field is None else field[index]

    picked = TrainBatch(
        token_ids=batch.token_ids[index],
        cu_seqlens=_starts(lengths),
        answer_mask=batch.answer_mask[index],
        behavior_logprobs=batch.behavior_logprobs[index],
        advantages=batch.advantages[index],
        keep_mask=some(batch.keep_mask),
        reference_logprobs=some(batch.reference_logprobs),
    )
    return MicroBatch(
        batch=_moved(picked, device),
        inputs=_lay_out(picked, lengths, padded, device),
        index=index,
    )


def idle_microbatch(batch: TrainBatch, *, padded: bool, device: torch.device) -> MicroBatch:
    """
    Return a micro-batch of one meaningless sequence without an answer.

    A rank with fewer micro-batches than others runs it, so that the collectives of their
    forward and backward passes find every rank. Its loss is exactly 0.
    """
    ids = torch.zeros(2, dtype=torch.int64)
    nothing = torch.zeros(2)
    idle = TrainBatch(
        token_ids=ids,
        cu_seqlens=torch.tensor([0, 2], dtype=torch.int32),
        answer_mask=torch.zeros(2, dtype=torch.bool),
        behavior_logprobs=nothing,
        advantages=nothing,
        keep_mask=None if batch.keep_mask is None else torch.zeros(2, dtype=torch.bool),
        reference_logprobs=None if batch.reference_logprobs is None else nothing,
    )
    micro = take(idle, [0], padded=padded, device=device)
    return MicroBatch(
        batch=micro.batch, inputs=micro.inputs, index=torch.zeros(0, dtype=torch.int64)
    )


def _lay_out(batch: TrainBatch, lengths: Tensor, padded: bool, device: torch.device) -> Inputs:
    offsets = torch.arange(batch.num_tokens) - torch.repeat_interleave(
        batch.cu_seqlens[:-1].long(), lengths
    )
    longest = int(lengths.max())
    if padded:
        row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        flat = row * longest + offsets
        token_ids = torch.zeros(len(lengths) * longest, dtype=torch.int64)
        token_ids[flat] = batch.token_ids
        token_ids = token_ids.view(len(lengths), longest)
        position_ids = torch.arange(longest).expand(len(lengths), -1)
    else:
        flat = torch.arange(batch.num_tokens)
        token_ids = batch.token_ids[None]
        position_ids = offsets[None]
    scored = batch.answer_mask.nonzero()[:, 0]
    return Inputs(
        token_ids=token_ids.to(device),
        position_ids=position_ids.to(device),
        cu_seqlens=None if padded else batch.cu_seqlens.to(device),
        longest_tokens=longest,
        scored=scored.to(device),
        hidden_rows=(flat[scored] - 1).to(device),
        targets=batch.token_ids[scored].to(device),
    )


def _moved(batch: TrainBatch, device: torch.device) -> TrainBatch:
    def to(field: Tensor | None) -> Tensor | None:
        return None if field is None else field.to(device)

    return TrainBatch(
        token_ids=batch.token_ids.to(device),
        cu_seqlens=batch.cu_seqlens.to(device),
        answer_mask=batch.answer_mask.to(device),
        behavior_logprobs=batch.behavior_logprobs.to(device),
        advantages=batch.advantages.to(device),
        keep_mask=to(batch.keep_mask),
        reference_logprobs=to(batch.reference_logprobs),
    )


def _starts(lengths: Tensor) -> Tensor:
    zero = torch.zeros(1, dtype=torch.int64)
    return torch.cat([zero, lengths.cumsum(0)]).to(torch.int32)
