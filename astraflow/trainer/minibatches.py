"""A batch's tensors and advantages, and its split over optimizer updates and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from safetensors.torch import load
from torch import Tensor

from astraflow.learning import batch_normalize, group_normalize
from astraflow.recipe.schema import AlgorithmSection
from astraflow.records import TrainBatch

__all__ = [
    "Batch",
    "read_batch",
    "select",
    "split_over_ranks",
    "split_over_updates",
    "token_index",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch as the dataflow service packed it, with advantages."""

    train: TrainBatch
    """All sequences, on the CPU."""

    rewards: Tensor
    """``[sequences]`` float32."""

    min_versions: Tensor
    """``[sequences]`` int32, version of each sequence's oldest token."""

    truncated: Tensor
    """``[sequences]`` uint8, 1 where the answer was cut at its limit."""

    def lengths(self) -> list[int]:
        """Tokens of each sequence, prompt included (tokens)."""
        return self.train.cu_seqlens.diff().tolist()


def read_batch(content: bytes, algorithm: AlgorithmSection) -> Batch:
    """Read the dataflow's safetensors and compute advantages from rewards."""
    tensors = load(content)
    cu_seqlens = tensors["cu_seqlens"]
    lengths = cu_seqlens.diff()
    answer_mask = _answer_mask(cu_seqlens, tensors["prompt_tokens"])
    per_sequence = group_normalize(
        tensors["rewards"], tensors["group_ids"].long(), mode=algorithm.reward_norm
    )
    advantages = torch.repeat_interleave(per_sequence, lengths.long()) * answer_mask
    if algorithm.advantage_norm == "batch":
        advantages = batch_normalize(advantages, answer_mask)
    train = TrainBatch(
        token_ids=tensors["token_ids"].long(),
        cu_seqlens=cu_seqlens,
        answer_mask=answer_mask,
        behavior_logprobs=tensors["behavior_logprobs"],
        advantages=advantages.float(),
    )
    return Batch(
        train=train,
        rewards=tensors["rewards"],
        min_versions=tensors["min_versions"],
        truncated=tensors["truncated"],
    )


def split_over_updates(sequences: int, *, updates: int, seed: int, step: int) -> list[list[int]]:
    """Shuffle a batch's sequences and cut them into equal mini-batches."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    order = torch.randperm(sequences, generator=generator).tolist()
    size = sequences // updates
    return [order[at : at + size] for at in range(0, size * updates, size)]


def split_over_ranks(
    sequences: Sequence[int], lengths: Sequence[int], *, ranks: int
) -> list[list[int]]:
    """
    Give each rank about as many tokens: longest first, to the rank with the fewest.

    The same on every rank, and no rank is left without a sequence while there are enough.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for sequence in sorted(sequences, key=lambda s: (-lengths[s], s)):
        rank = min(range(ranks), key=lambda r: (bool(shares[r]) and loads[r], loads[r], r))
        shares[rank].append(sequence)
        loads[rank] += lengths[sequence]
    return [sorted(share) for share in shares]


def select(batch: TrainBatch, sequences: Sequence[int]) -> TrainBatch:
    """Pick sequences out of a batch, packed end to end again."""
    index = token_index(batch, sequences)
    lengths = batch.cu_seqlens.diff()[list(sequences)]
    starts = torch.cat([torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).to(torch.int32)])
    return TrainBatch(
        token_ids=batch.token_ids[index],
        cu_seqlens=starts,
        answer_mask=batch.answer_mask[index],
        behavior_logprobs=batch.behavior_logprobs[index],
        advantages=batch.advantages[index],
        keep_mask=None if batch.keep_mask is None else batch.keep_mask[index],
        reference_logprobs=(
            None if batch.reference_logprobs is None else batch.reference_logprobs[index]
        ),
    )


def token_index(batch: TrainBatch, sequences: Sequence[int]) -> Tensor:
    """Return ``[tokens]`` int64, where the tokens of ``sequences`` lie in ``batch``."""
    starts = batch.cu_seqlens.tolist()
    pieces = [torch.arange(starts[s], starts[s + 1]) for s in sequences]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.int64)


def _answer_mask(cu_seqlens: Tensor, prompt_tokens: Tensor) -> Tensor:
    """Return ``[tokens]`` bool, True from the first answer token of each sequence on."""
    lengths = cu_seqlens.diff().long()
    offset = torch.arange(int(cu_seqlens[-1])) - torch.repeat_interleave(
        cu_seqlens[:-1].long(), lengths
    )
    return offset >= torch.repeat_interleave(prompt_tokens.long(), lengths)
