"""
GpuBits: the published bits of one rank beside its live weights, compared and encoded there.

    live ──compare, compact──▶ positions, values, tops ──L8 or T16──▶ pinned host memory
      └──────────────────────▶ snapshot = live

The trainer waits for the comparison only; encoding and hashing run on a stream of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from astraflow.errors import WireError
from astraflow.interfaces.weights import Encoding, Shard
from astraflow.weights.hashes import segment_hashes

__all__ = ["GpuBits", "GpuChanges"]

_BLOCK = 4096
_ALIGN_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChanges:
    """What one version changed, all segments end to end."""

    positions: Tensor
    """``[changed]`` int32, flat position in its segment, ascending within each."""

    values: Tensor
    """``[changed]`` int16, the new bits."""

    tops: Tensor
    """``[changed]`` uint8, 1 where the top byte differs."""

    bounds: tuple[int, ...]
    """``[segments + 1]`` where each segment's changes begin, and the end."""


class GpuBits:
    """
    Bits of every segment, two bytes an element.

    Args:
        shards: The rank's shards, on one device; their bits are copied.
        memory: Keep the copy on the device, or in pinned host memory, which the device reads
            over its bus: slower to compare, and no device memory.

    Raises:
        WireError: a shard has elements of another size.
    """

    def __init__(self, shards: Sequence[Shard], *, memory: Literal["gpu", "host"]) -> None:
        for shard in shards:
            if shard.values.element_size() != 2 or shard.values.numel() >= 2**31:
                raise WireError(
                    f"`{shard.spec.name}` is {shard.spec.dtype} with {shard.values.numel()} "
                    "elements; here an element has two bytes and a segment less than 2^31 of them"
                )
        self._device = shards[0].values.device
        self._on_gpu = self._device.type == "cuda"
        self._counts = [shard.values.numel() for shard in shards]
        sizes = [-(-2 * count // _ALIGN_BYTES) * _ALIGN_BYTES for count in self._counts]
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        pinned = memory == "host" and self._on_gpu
        self._flat = torch.empty(
            int(self._starts[-1]) // 2,
            dtype=torch.int16,
            device="cpu" if pinned else self._device,
            pin_memory=pinned,
        )
        self._segments = [
            self._flat[start : start + count]
            for start, count in zip((self._starts[:-1] // 2).tolist(), self._counts, strict=True)
        ]
        self._blocks = _Blocks(self._counts, self._device)
        self._pointers = _pointers(self._segments, self._device)
        self._stream = _side_stream(self._device)
        self._staging: Tensor | None = None
        self._hashes: list[int] = []
        self.fill(shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all segments."""
        return 2 * sum(self._counts)

    def hashes(self) -> list[int]:
        """Return one hash a segment, of the bits as they are now."""
        if not self._hashes:
            with torch.cuda.stream(self._stream):
                if self._flat.is_pinned():
                    # One at a time: the point of host memory is to leave the device's alone.
                    one_by_one = ([s.to(self._device)] for s in self._segments)
                    self._hashes = [segment_hashes(one)[0] for one in one_by_one]
                else:
                    self._hashes = segment_hashes(self._segments)
        return self._hashes

    def fill(self, shards: Sequence[Shard]) -> None:
        """Take over whole shards, whatever was there."""
        for segment, shard in zip(self._segments, shards, strict=True):
            segment.copy_(shard.values.detach().reshape(-1).view(torch.int16))
        self._settle()

    def advance(self, shards: Sequence[Shard]) -> GpuChanges:
        """Move on to new bits and return what changed."""
        live = [shard.values.detach().reshape(-1) for shard in shards]
        blocks, grid = self._blocks, (self._blocks.number,)
        new = _pointers(live, self._device)
        table = (new, self._pointers, blocks.counts, blocks.segment, blocks.first)
        found = torch.empty(blocks.number, dtype=torch.int32, device=self._device)
        _count_changes[grid](*table, found, _BLOCK, num_warps=8)
        ends = found.cumsum(0, dtype=torch.int64)
        bounds = (0, *ends[blocks.last].tolist())  # the one wait for the device
        changes = GpuChanges(
            positions=torch.empty(bounds[-1], dtype=torch.int32, device=self._device),
            values=torch.empty(bounds[-1], dtype=torch.int16, device=self._device),
            tops=torch.empty(bounds[-1], dtype=torch.uint8, device=self._device),
            bounds=bounds,
        )
        _take_changes[grid](
            *table,
            ends - found,
            changes.positions,
            changes.values,
            changes.tops,
            _BLOCK,
            num_warps=8,
        )
        self._settle()
        return changes

    def changed_elements(self, changes: GpuChanges) -> int:
        """Count the elements that changed."""
        return changes.bounds[-1]

    def merge(self, older: GpuChanges, newer: GpuChanges) -> GpuChanges:
        """Join two stretches of versions, the newer of which ends here."""
        with torch.cuda.stream(self._stream):
            at = torch.cat([self._global(older), self._global(newer)])
            places, which = torch.unique(at, return_inverse=True)
            tops = torch.zeros(len(places), dtype=torch.uint8, device=self._device)
            tops.scatter_reduce_(0, which, torch.cat([older.tops, newer.tops]), "amax")
            starts = torch.from_numpy(self._starts // 2).to(self._device)
            bounds = torch.searchsorted(places, starts)
            segment = torch.searchsorted(starts, places, right=True) - 1
            return GpuChanges(
                positions=(places - starts[segment]).int(),
                values=self._flat[places.to(self._flat.device)].to(self._device),
                tops=tops,
                bounds=tuple(bounds.tolist()),
            )

    def encode(self, changes: GpuChanges) -> list[tuple[Encoding, bytes | memoryview]]:
        """Encode changes that end here, one payload a segment."""
        from astraflow.weights.gpu_encode import encode_on_gpu

        with torch.cuda.stream(self._stream):
            return encode_on_gpu(changes, self._segments, self._pointers)

    def whole(self, indices: Sequence[int], *, copied: bool) -> list[memoryview]:
        """
        Return copies of segments in host memory.

        Those of one version share a pinned buffer; the next version takes another one, or the
        same again once nobody holds a view of it.
        """
        with torch.cuda.stream(self._stream):
            if self._staging is None:
                self._staging = torch.empty(
                    self._flat.numel(), dtype=torch.int16, pin_memory=self._on_gpu
                )
            views = []
            for index in indices:
                start = int(self._starts[index]) // 2
                target = self._staging[start : start + self._counts[index]]
                target.copy_(self._segments[index], non_blocking=True)
                views.append(target.numpy().view(np.uint8).data)
            self._synchronize()
        return views

    # --- inside

    def _global(self, changes: GpuChanges) -> Tensor:
        sizes = torch.tensor(np.diff(changes.bounds), device=self._device)
        starts = torch.from_numpy(self._starts[:-1] // 2).to(self._device)
        return changes.positions.long() + torch.repeat_interleave(starts, sizes)

    def _settle(self) -> None:
        """Let the other stream see what this one wrote."""
        self._hashes = []
        self._staging = None  # whoever is still being sent the version before keeps its buffer
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def _synchronize(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


class _Blocks:
    """Which segment, and what part of it, each program of a launch works on."""

    def __init__(self, counts: Sequence[int], device: torch.device) -> None:
        blocks = [-(-count // _BLOCK) for count in counts]
        self.number = sum(blocks)
        segment = np.repeat(np.arange(len(counts)), blocks)
        before = np.concatenate([[0], np.cumsum(blocks)])
        first = (np.arange(self.number) - before[segment]) * _BLOCK

        def on_device(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array.astype(np.int32)).to(device)

        self.counts = on_device(np.array(counts))
        self.segment = on_device(segment)
        self.first = on_device(first)
        self.last = torch.from_numpy(before[1:] - 1).to(device)


def _side_stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None  # under Triton's interpreter
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _pointers(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.tensor([t.data_ptr() for t in tensors], dtype=torch.int64).to(device)


@triton.jit  # type: ignore[untyped-decorator]
def _both(new, old, counts, segments, firsts, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Load a block's live and published bits."""
    block = tl.program_id(0)
    segment = tl.load(segments + block)
    at = tl.load(firsts + block) + tl.arange(0, BLOCK)
    held = at < tl.load(counts + segment)
    live = tl.load(new + segment).to(tl.pointer_type(tl.int16))
    published = tl.load(old + segment).to(tl.pointer_type(tl.int16))
    bits = tl.load(live + at, mask=held, other=0)
    before = tl.load(published + at, mask=held, other=0)
    return at, bits, before, published


@triton.jit  # type: ignore[untyped-decorator]
def _count_changes(new, old, counts, segments, firsts, found, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """Count the elements of each block whose bits differ."""
    _, bits, before, _ = _both(new, old, counts, segments, firsts, BLOCK)
    tl.store(found + tl.program_id(0), tl.sum((bits != before).to(tl.int32), axis=0))


@triton.jit  # type: ignore[untyped-decorator]
def _take_changes(  # type: ignore[no-untyped-def]
    new,
    old,
    counts,
    segments,
    firsts,
    starts,
    positions,
    values,
    tops,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write out what differs, in order, and bring the published bits up to the live ones."""
    at, bits, before, published = _both(new, old, counts, segments, firsts, BLOCK)
    differs = bits != before
    place = tl.load(starts + tl.program_id(0)) + tl.cumsum(differs.to(tl.int32), axis=0) - 1
    tl.store(positions + place, at, mask=differs)
    tl.store(values + place, bits, mask=differs)
    top = ((bits ^ before) >> 8) != 0
    tl.store(tops + place, top.to(tl.uint8), mask=differs)
    tl.store(published + at, bits, mask=differs)
