"""
The codec: the changed elements of a segment to bytes, and back onto live weights in place.

Every encoding carries the *new* bytes of an element, never a difference, so applying a patch
twice, or over a half-applied one, gives the same bits. Elements are little-endian with ``w``
bytes each (2 for BF16, 4 for F32); an element's top byte, sign and most of the exponent, seldom
changes and travels apart. ``n`` entries, ``m`` exceptions:

    DENSE  all elements
    L8     u32 n, u32 m | u8 gap [n] | u8 low plane [n] (w-1 times) | u32 ordinal [m] | u8 top [m]
    T16    u32 t, u32 n, u32 m | u32 entries of a tile [t] | u16 offset [n] | planes | exceptions
    SAME   nothing

A gap counts from the entry before (the first from -1) and is 1 to 255; a wider one is bridged by
ordinary entries that send again what their element holds. A tile is 65,536 elements. The
encoding with the fewest bytes is taken, segment by segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow.errors import WireError
from astraflow.interfaces.weights import Encoding, TensorPatch

__all__ = ["Changes", "apply_patch", "encode", "find_changes", "merge_changes", "patch_bytes"]

Bits: TypeAlias = "NDArray[Any]"  # uint16 or uint32, the bits of each element

_TILE = 65536
_MAX_GAP = 255
# Elements compared at a time: two copies of 8 MiB stay in the cache between the passes.
_BLOCK_WORDS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Elements whose bits differ between two versions of a segment."""

    positions: NDArray[np.int64]
    """``[changed]`` flat positions, ascending."""

    old: Bits
    """``[changed]`` bits in the older version."""


def find_changes(new: Bits, old: Bits) -> Changes:
    """
    Compare two versions bit by bit, so that -0 and NaN payloads count.

    Args:
        new: ``[count]`` uint16 or uint32.
        old: The same shape and type.
    """
    lanes = 8 // new.itemsize
    whole = len(new) // lanes * lanes
    new_words, old_words = new[:whole].view(np.uint64), old[:whole].view(np.uint64)
    found: list[NDArray[np.int64]] = []
    for at in range(0, len(new_words), _BLOCK_WORDS):
        block = slice(at, at + _BLOCK_WORDS)
        words = np.flatnonzero(new_words[block] != old_words[block]) + at
        # Only now look at single elements, in the few words that differ at all.
        elements = (words[:, None] * lanes + np.arange(lanes)).reshape(-1)
        found.append(elements[new[elements] != old[elements]])
    tail = np.flatnonzero(new[whole:] != old[whole:]) + whole
    positions = np.concatenate([*found, tail]).astype(np.int64, copy=False)
    return Changes(positions=positions, old=old[positions])


def merge_changes(older: Changes, newer: Changes) -> Changes:
    """Join the changes of two consecutive versions: the union, with the oldest bits of each."""
    positions = np.concatenate([older.positions, newer.positions])
    bits = np.concatenate([older.old, newer.old])
    # Stable, so that of equal positions the older version's entry comes first and is kept.
    unique, first = np.unique(positions, return_index=True)
    return Changes(positions=unique, old=bits[first])


def encode(changes: Changes, new: Bits) -> tuple[Encoding, bytes | memoryview]:
    """
    Write changes in the encoding with the fewest bytes.

    Args:
        changes: What differs from the base.
        new: ``[count]`` bits of the target version.
    """
    if not len(changes.positions):
        return Encoding.SAME, b""
    width = new.itemsize
    top_changed = _top(new[changes.positions]) != _top(changes.old)
    exceptions = int(top_changed.sum())
    gaps = np.diff(changes.positions, prepend=-1)
    entries = len(gaps) + int(((gaps - 1) // _MAX_GAP).sum())
    tiles = -(-len(new) // _TILE)
    sizes = {
        Encoding.L8: 8 + entries * width + 5 * exceptions,
        Encoding.T16: 12 + 4 * tiles + len(gaps) * (width + 1) + 5 * exceptions,
        Encoding.DENSE: new.nbytes,
    }
    best = min(sizes, key=lambda encoding: sizes[encoding])
    if best is Encoding.L8:
        return best, _encode_l8(changes.positions, gaps, top_changed, new)
    if best is Encoding.T16:
        return best, _encode_t16(changes.positions, top_changed, new, tiles)
    return best, new.view(np.uint8).data


def apply_patch(target: Tensor, patch: TensorPatch) -> None:
    """
    Write a patch onto live weights, in place.

    Args:
        target: ``[patch.count]`` contiguous slice of the live parameter, of the patch's dtype.
        patch: Its payload has passed its frame's checksum.

    Raises:
        WireError: the payload does not fit its encoding or the segment; nothing was written.
    """
    if patch.encoding is Encoding.SAME:
        return
    width = target.element_size()
    if target.numel() != patch.count:
        raise WireError(
            f"a patch of {patch.count} elements meets a segment of {target.numel()} in "
            f"`{patch.spec.name}`"
        )
    flat = target.detach().view(torch.uint8)
    if patch.encoding is Encoding.DENSE:
        _apply_dense(flat, patch)
        return
    positions, planes, ordinals, tops = _decode(patch, width)
    if flat.is_cuda:
        _scatter_torch(flat, width, positions, planes, ordinals, tops)
    else:
        _scatter(flat.numpy(), width, positions, planes, ordinals, tops)


def patch_bytes(patch: TensorPatch) -> int:
    """Return the bytes of a patch's payload."""
    return len(patch.payload)


def _encode_l8(
    positions: NDArray[np.int64],
    gaps: NDArray[np.int64],
    top_changed: NDArray[np.bool_],
    new: Bits,
) -> bytes:
    bridges = (gaps - 1) // _MAX_GAP
    if bridges.any():
        # Entry i becomes bridges[i] steps of 255 and a last step of what is left.
        steps = np.full(len(gaps) + int(bridges.sum()), _MAX_GAP, np.int64)
        last = np.cumsum(bridges + 1) - 1
        steps[last] = gaps - bridges * _MAX_GAP
        where = np.cumsum(steps) - 1
        ordinals = last[top_changed]
    else:
        steps, where = gaps, positions
        ordinals = np.flatnonzero(top_changed)
    bits = new[where]
    header = np.array([len(steps), len(ordinals)], "<u4")
    exceptions = _exceptions(ordinals, new[positions[top_changed]])
    return b"".join([header.tobytes(), steps.astype(np.uint8).tobytes(), *_low(bits), *exceptions])


def _encode_t16(
    positions: NDArray[np.int64], top_changed: NDArray[np.bool_], new: Bits, tiles: int
) -> bytes:
    counts = np.bincount(positions // _TILE, minlength=tiles).astype("<u4")
    ordinals = np.flatnonzero(top_changed)
    header = np.array([tiles, len(positions), len(ordinals)], "<u4")
    offsets = (positions % _TILE).astype("<u2")
    exceptions = _exceptions(ordinals, new[positions[top_changed]])
    parts = [header.tobytes(), counts.tobytes(), offsets.tobytes()]
    return b"".join([*parts, *_low(new[positions]), *exceptions])


def _decode(
    patch: TensorPatch, width: int
) -> tuple[NDArray[np.int64], list[NDArray[np.uint8]], NDArray[np.int64], NDArray[np.uint8]]:
    """Split a payload into positions, low planes, exception ordinals and top bytes; check all."""
    reader = _Reader(patch)
    if patch.encoding is Encoding.L8:
        entries, exceptions = (int(value) for value in reader.take("<u4", 2))
        positions = np.cumsum(reader.take("u1", entries), dtype=np.int64) - 1
    else:
        tiles, entries, exceptions = (int(value) for value in reader.take("<u4", 3))
        counts = reader.take("<u4", tiles).astype(np.int64)
        if int(counts.sum()) != entries:
            raise reader.broken(f"its tiles count {int(counts.sum())} entries instead of {entries}")
        starts = np.repeat(np.arange(tiles, dtype=np.int64) * _TILE, counts)
        positions = starts + reader.take("<u2", entries)
    planes = [reader.take("u1", entries) for _ in range(width - 1)]
    ordinals = reader.take("<u4", exceptions).astype(np.int64)
    tops = reader.take("u1", exceptions)
    reader.finish()
    if entries and (positions[0] < 0 or int(positions.max()) >= patch.count):
        raise reader.broken(f"it reaches beyond the segment's {patch.count} elements")
    if exceptions and int(ordinals.max()) >= entries:
        raise reader.broken(f"an exception names an entry beyond {entries}")
    return positions, planes, ordinals, tops


class _Reader:
    """Takes arrays off a payload, and knows whose it is when they run short."""

    def __init__(self, patch: TensorPatch) -> None:
        self._patch = patch
        self._at = 0

    def take(self, dtype: str, count: int) -> NDArray[Any]:
        size = count * np.dtype(dtype).itemsize
        if self._at + size > len(self._patch.payload):
            raise self.broken(f"it ends at byte {len(self._patch.payload)}")
        array = np.frombuffer(self._patch.payload, dtype, count, self._at)
        self._at += size
        return array

    def finish(self) -> None:
        if self._at != len(self._patch.payload):
            raise self.broken(f"{len(self._patch.payload) - self._at} bytes are left over")

    def broken(self, why: str) -> WireError:
        encoding = self._patch.encoding.name
        return WireError(f"the {encoding} payload of `{self._patch.spec.name}` is broken: {why}")


def _apply_dense(flat: Tensor, patch: TensorPatch) -> None:
    if len(patch.payload) != flat.numel():
        raise WireError(
            f"the DENSE payload of `{patch.spec.name}` has {len(patch.payload)} bytes instead of "
            f"{flat.numel()}"
        )
    # frombuffer warns about read-only memory; the source is only read here.
    content = np.frombuffer(patch.payload, np.uint8)
    if flat.is_cuda:
        flat.copy_(torch.from_numpy(content.copy()), non_blocking=False)
    else:
        np.copyto(flat.numpy(), content)


def _scatter(
    flat: NDArray[np.uint8],
    width: int,
    positions: NDArray[np.int64],
    planes: list[NDArray[np.uint8]],
    ordinals: NDArray[np.int64],
    tops: NDArray[np.uint8],
) -> None:
    elements = flat.reshape(-1, width)
    for byte, plane in enumerate(planes):
        elements[positions, byte] = plane
    elements[positions[ordinals], width - 1] = tops


def _scatter_torch(
    flat: Tensor,
    width: int,
    positions: NDArray[np.int64],
    planes: list[NDArray[np.uint8]],
    ordinals: NDArray[np.int64],
    tops: NDArray[np.uint8],
) -> None:
    at = torch.from_numpy(positions).to(flat.device) * width
    for byte, plane in enumerate(planes):
        flat.index_copy_(0, at + byte, torch.from_numpy(plane.copy()).to(flat.device))
    if len(ordinals):
        which = torch.from_numpy(ordinals).to(flat.device)
        top = torch.from_numpy(tops.copy()).to(flat.device)
        flat.index_copy_(0, at[which] + (width - 1), top)


def _low(bits: Bits) -> list[bytes]:
    """Return the planes below the top byte, lowest first."""
    planes = bits.reshape(-1, 1).view(np.uint8)
    return [planes[:, byte].tobytes() for byte in range(bits.itemsize - 1)]


def _top(bits: Bits) -> NDArray[np.uint8]:
    planes: NDArray[np.uint8] = bits.reshape(-1, 1).view(np.uint8)[:, bits.itemsize - 1]
    return planes


def _exceptions(ordinals: NDArray[np.int64], bits: Bits) -> list[bytes]:
    return [ordinals.astype("<u4").tobytes(), _top(bits).tobytes()]
