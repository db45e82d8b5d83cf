"""HostBits: the published bits of one rank in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow.interfaces.weights import Encoding, Shard
from astraflow.weights.delta import Bits, Changes, encode, join, merge_changes, take_changes
from astraflow.weights.hashes import PIECE_BYTES, combine, piece_digests, segment_hashes
from astraflow.weights.threads import spread

__all__ = ["HostBits", "StepChanges"]

StepChanges: TypeAlias = tuple[Changes, ...]
"""What one version changed, segment by segment."""

_BITS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
_TORCH_BITS = {"BF16": torch.int16, "F16": torch.int16, "F32": torch.int32}
# Old and new stretch stay in a core's cache between the comparison and the hash.
_STRETCH_BYTES = 4 * PIECE_BYTES


@dataclass(frozen=True, slots=True)
class _Stretch:
    segment: int
    first: int
    new: Bits
    old: Bits
    compare: bool


class HostBits:
    """
    Bits of every segment, with their hashes.

    Args:
        shards: The rank's shards; their bits are copied.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._pinned = any(shard.values.is_cuda for shard in shards)
        self._tensors = [_empty_like(shard.values, pinned=self._pinned) for shard in shards]
        self._arrays = [_bits(t, s.spec.dtype) for t, s in zip(self._tensors, shards, strict=True)]
        self._hashes: list[int] = []
        self.fill(shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return sum(array.nbytes for array in self._arrays)

    def hashes(self) -> list[int]:
        """Return one hash a segment, of the bits as they are now."""
        if not self._hashes:
            self._walk(self._arrays, compare=False)
        return self._hashes

    def fill(self, shards: Sequence[Shard]) -> None:
        """Take over whole shards, whatever was there."""
        for target, shard in zip(self._tensors, shards, strict=True):
            target.copy_(shard.values.detach().reshape(-1), non_blocking=self._pinned)
        self._hashes = []
        if self._pinned:
            # A GPU hashes its own copy in the time that a CPU takes for a hundredth of it.
            self._hashes = segment_hashes([shard.values for shard in shards])
            torch.cuda.synchronize()

    def advance(self, shards: Sequence[Shard]) -> StepChanges:
        """Move on to new bits and return what changed."""
        return self._walk([_host_bits(shard) for shard in shards], compare=True)

    def changed_elements(self, changes: StepChanges) -> int:
        """Count the elements that changed."""
        return sum(len(change.positions) for change in changes)

    def merge(self, older: StepChanges, newer: StepChanges) -> StepChanges:
        """Join two stretches of versions, the newer of which ends here."""
        return tuple(
            spread(
                lambda index: merge_changes(older[index], newer[index], self._arrays[index]),
                range(len(self._arrays)),
                total_bytes=self.nbytes,
            )
        )

    def encode(self, changes: StepChanges) -> list[tuple[Encoding, bytes | memoryview]]:
        """Encode changes that end here, one payload a segment."""
        return spread(
            lambda index: self._encode(changes[index], index),
            range(len(self._arrays)),
            total_bytes=8 * sum(len(change.positions) for change in changes),
        )

    def whole(self, indices: Sequence[int], *, copied: bool) -> list[memoryview]:
        """Return the bytes of segments, or copies of them if they are about to move on."""
        arrays = [self._arrays[index] for index in indices]
        return [(a.copy() if copied else a).view(np.uint8).data for a in arrays]

    def _encode(self, changes: Changes, index: int) -> tuple[Encoding, bytes | memoryview]:
        encoding, payload = encode(changes, self._arrays[index])
        # These buffers move on with the next version; what is on offer must not.
        return encoding, bytes(payload) if encoding is Encoding.DENSE else payload

    def _walk(self, new: Sequence[Bits], *, compare: bool) -> StepChanges:
        """Compare if asked to, and hash, reading memory once."""
        stretches = [
            _Stretch(segment, at, bits[at : at + step], old[at : at + step], compare)
            for segment, (bits, old) in enumerate(zip(new, self._arrays, strict=True))
            for step in [_STRETCH_BYTES // bits.itemsize]
            for at in range(0, len(bits), step)
        ]
        done = spread(_visit, stretches, total_bytes=self.nbytes)
        digests: list[list[int]] = [[] for _ in new]
        changes: list[list[Changes]] = [[] for _ in new]
        for stretch, (found, pieces) in zip(stretches, done, strict=True):
            digests[stretch.segment] += pieces
            if found is not None:
                changes[stretch.segment].append(found)
        self._hashes = [combine(d, b.nbytes) for d, b in zip(digests, new, strict=True)]
        return tuple(map(join, changes)) if compare else ()


def _visit(stretch: _Stretch) -> tuple[Changes | None, list[int]]:
    found = None
    if stretch.compare:
        found = take_changes(stretch.new, stretch.old, first=stretch.first)
    return found, piece_digests(stretch.new.view(np.uint8))


def _empty_like(values: Tensor, *, pinned: bool) -> Tensor:
    return torch.empty(values.numel(), dtype=values.dtype, pin_memory=pinned)


def _bits(values: Tensor, dtype: str) -> NDArray[Any]:
    array: NDArray[Any] = values.view(_TORCH_BITS[dtype]).numpy().view(_BITS[dtype])
    return array


def _host_bits(shard: Shard) -> Bits:
    """View a shard's bits as whole numbers in host memory; no copy when it is there already."""
    return _bits(shard.values.detach().reshape(-1).cpu(), shard.spec.dtype)
