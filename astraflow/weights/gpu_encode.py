"""L8 and T16 on a GPU: the planes of all segments at once, then one payload a segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from astraflow.interfaces.weights import Encoding
from astraflow.weights.delta import TILE
from astraflow.weights.threads import spread

if TYPE_CHECKING:
    from astraflow.weights.gpu_bits import GpuChanges

__all__ = ["encode_on_gpu"]

_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planes:
    """The parts of every segment's payload, in host memory."""

    gaps: NDArray[np.uint8]
    low: NDArray[np.uint8]
    ordinals: NDArray[np.int64]
    tops: NDArray[np.uint8]
    offsets: NDArray[np.uint16]
    values_low: NDArray[np.uint8]


def encode_on_gpu(
    changes: GpuChanges, segments: Sequence[Tensor], pointers: Tensor
) -> list[tuple[Encoding, bytes | memoryview]]:
    """
    Encode the changes of every segment in the encoding with the fewest bytes.

    Args:
        changes: What differs from the base.
        segments: ``[count]`` int16 bits of the target version, for each segment.
        pointers: ``[segments]`` int64, their addresses.
    """
    bounds = np.array(changes.bounds)
    ends, ordinals = _number_entries(changes)
    entry_bounds = _at_bounds(ends, bounds)
    exception_bounds = np.searchsorted(_host(ordinals), bounds)
    entries, exceptions = np.diff(entry_bounds), np.diff(exception_bounds)
    counts = np.array([len(segment) for segment in segments])
    chosen = _choose(np.diff(bounds), entries, exceptions, counts)
    planes = _planes(changes, ends, ordinals, pointers, int(entry_bounds[-1]), chosen)
    entry_of_exception = _host(ends[ordinals] - 1)

    def payload(index: int) -> tuple[Encoding, bytes | memoryview]:
        encoding = chosen[index]
        if encoding is Encoding.SAME:
            return encoding, b""
        if encoding is Encoding.DENSE:
            return encoding, _host(segments[index]).view(np.uint8).data
        begin, end = exception_bounds[index], exception_bounds[index + 1]
        tops = planes.tops[begin:end]
        if encoding is Encoding.L8:
            first, last = entry_bounds[index], entry_bounds[index + 1]
            which = (entry_of_exception[begin:end] - first).astype("<u4")
            head = np.array([last - first, end - begin], "<u4")
            parts = [head, planes.gaps[first:last], planes.low[first:last], which, tops]
        else:
            first, last = bounds[index], bounds[index + 1]
            which = (planes.ordinals[begin:end] - first).astype("<u4")
            tiles = -(-int(counts[index]) // TILE)
            inside = _host(changes.positions[first:last])
            held = np.bincount(inside // TILE, minlength=tiles).astype("<u4")
            head = np.array([tiles, last - first, end - begin], "<u4")
            low = planes.values_low[first:last]
            parts = [head, held, planes.offsets[first:last], low, which, tops]
        return encoding, b"".join(memoryview(part).cast("B") for part in parts)

    return spread(payload, range(len(segments)), total_bytes=2 * int(entry_bounds[-1]))


def _number_entries(changes: GpuChanges) -> tuple[Tensor, Tensor]:
    """
    Count L8's entries.

    Returns:
        ``[changed]`` int64, entries up to and with each change; ``[exceptions]`` int64, the
        changes whose top byte differs.
    """
    gaps = _gaps(changes)
    ends = (torch.div(gaps - 1, 255, rounding_mode="floor") + 1).cumsum(0, dtype=torch.int64)
    return ends, changes.tops.nonzero()[:, 0]


def _gaps(changes: GpuChanges) -> Tensor:
    """Return ``[changed]`` int32, the distance of each change from the one before it."""
    gaps = changes.positions.clone()
    gaps[1:] -= changes.positions[:-1]
    bounds = changes.bounds
    firsts = sorted({begin for begin, end in zip(bounds, bounds[1:], strict=False) if begin < end})
    if firsts:
        at = torch.tensor(firsts, device=gaps.device)
        gaps[at] = changes.positions[at] + 1
    return gaps


def _at_bounds(ends: Tensor, bounds: NDArray[Any]) -> NDArray[Any]:
    """Return ``[segments + 1]``, entries before each segment."""
    padded = torch.cat([ends.new_zeros(1), ends])
    return _host(padded[torch.from_numpy(bounds).to(ends.device)])


def _choose(
    changed: NDArray[Any], entries: NDArray[Any], exceptions: NDArray[Any], counts: NDArray[Any]
) -> list[Encoding]:
    tiles = -(-counts // TILE)
    sizes = np.stack(
        [
            8 + 2 * entries + 5 * exceptions,
            12 + 4 * tiles + 3 * changed + 5 * exceptions,
            2 * counts,
        ]
    )
    names = (Encoding.L8, Encoding.T16, Encoding.DENSE)
    best = sizes.argmin(0)
    return [names[b] if n else Encoding.SAME for b, n in zip(best, changed, strict=True)]


def _planes(
    changes: GpuChanges,
    ends: Tensor,
    ordinals: Tensor,
    pointers: Tensor,
    entries: int,
    chosen: Sequence[Encoding],
) -> _Planes:
    changed = len(changes.positions)
    gaps = torch.full((entries,), 255, dtype=torch.uint8, device=ends.device)
    low = torch.empty_like(gaps)
    if changed and Encoding.L8 in chosen:
        sizes = torch.tensor(np.diff(changes.bounds), device=ends.device)
        segment = torch.repeat_interleave(
            torch.arange(len(sizes), dtype=torch.int32, device=ends.device), sizes
        )
        _write_l8[(triton.cdiv(changed, _BLOCK),)](
            changes.positions,
            _gaps(changes),
            changes.values,
            ends,
            segment,
            pointers,
            gaps,
            low,
            changed,
            _BLOCK,
        )
    tiled = Encoding.T16 in chosen
    none = changes.positions[:0]
    return _Planes(
        gaps=_host(gaps),
        low=_host(low),
        ordinals=_host(ordinals),
        tops=_host((changes.values[ordinals] >> 8).to(torch.uint8)),
        offsets=_host((changes.positions if tiled else none).to(torch.int16)).view("<u2"),
        values_low=_host((changes.values if tiled else none).to(torch.uint8)),
    )


@triton.jit  # type: ignore[untyped-decorator]
def _write_l8(  # type: ignore[no-untyped-def]
    positions,
    gaps,
    values,
    ends,
    segments,
    pointers,
    gaps_out,
    low_out,
    changed,
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write each change's entry and, before it, the entries that bridge a wide gap."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    held = index < changed
    gap = tl.load(gaps + index, mask=held, other=1)
    bridges = (gap - 1) // 255
    entry = tl.load(ends + index, mask=held, other=1) - 1
    tl.store(gaps_out + entry, (gap - bridges * 255).to(tl.uint8), mask=held)
    bits = tl.load(values + index, mask=held, other=0)
    tl.store(low_out + entry, (bits & 0xFF).to(tl.uint8), mask=held)
    segment = tl.load(segments + index, mask=held, other=0)
    base = tl.load(pointers + segment, mask=held, other=0).to(tl.pointer_type(tl.int16))
    before = tl.load(positions + index, mask=held, other=0) - gap
    for bridge in range(tl.max(bridges, axis=0)):
        inside = held & (bridge < bridges)
        landed = tl.load(base + before + 255 * (bridge + 1), mask=inside, other=0)
        tl.store(low_out + entry - bridges + bridge, (landed & 0xFF).to(tl.uint8), mask=inside)


def _host(values: Tensor) -> NDArray[Any]:
    """Copy to host memory, through pinned memory from a GPU."""
    if not values.is_cuda:
        return values.numpy()
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    target.copy_(values, non_blocking=True)
    torch.cuda.current_stream(values.device).synchronize()
    array: NDArray[Any] = target.numpy()
    return array
