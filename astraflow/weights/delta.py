"""
The codec's writing half: what changed in a segment, as few bytes.

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

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from astraflow.interfaces.weights import Encoding
from astraflow.weights import kernels

__all__ = [
    "TILE",
    "Bits",
    "Changes",
    "encode",
    "encoded_sizes",
    "join",
    "merge_changes",
    "take_changes",
]

Bits: TypeAlias = "NDArray[Any]"  # uint16 or uint32, the bits of each element

TILE = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Elements whose bits differ between two versions of a segment."""

    positions: NDArray[np.uint32]
    """``[changed]`` flat positions, ascending."""

    values: Bits
    """``[changed]`` bits in the newer version."""

    tops: NDArray[np.bool_]
    """``[changed]``, whether the top byte differs."""


def take_changes(new: Bits, old: Bits, *, first: int = 0) -> Changes:
    """
    Compare two versions bit by bit, so that -0 and NaN payloads count, and bring ``old`` up to new.

    Args:
        new: ``[count]`` uint16 or uint32.
        old: The same shape and type; overwritten with ``new``.
        first: Position of the first element in its segment.
    """
    positions, values, tops = _scratch(len(new), new.dtype)
    lanes = 8 // new.itemsize
    whole = len(new) // lanes * lanes
    found = kernels.take_changes(
        new,
        old,
        new[:whole].view(np.uint64),
        old[:whole].view(np.uint64),
        positions,
        values,
        tops,
    )
    at = positions[:found] + np.uint32(first)
    return Changes(positions=at, values=values[:found].copy(), tops=tops[:found].copy())


def join(parts: Sequence[Changes]) -> Changes:
    """Put the changes of consecutive stretches of one segment end to end."""
    if len(parts) == 1:
        return parts[0]
    return Changes(
        positions=np.concatenate([part.positions for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        tops=np.concatenate([part.tops for part in parts]),
    )


def merge_changes(older: Changes, newer: Changes, bits: Bits) -> Changes:
    """
    Join the changes of two consecutive stretches of versions: the union of their positions.

    Args:
        older: The first.
        newer: The second.
        bits: ``[count]`` bits of the newest version.
    """
    most = len(older.positions) + len(newer.positions)
    positions, tops = np.empty(most, np.uint32), np.empty(most, np.bool_)
    found = kernels.union(older.positions, older.tops, newer.positions, newer.tops, positions, tops)
    at = positions[:found].copy()
    return Changes(positions=at, values=bits[at], tops=tops[:found].copy())


def encode(changes: Changes, bits: Bits) -> tuple[Encoding, bytes | memoryview]:
    """
    Write changes in the encoding with the fewest bytes.

    Args:
        changes: What differs from the base.
        bits: ``[count]`` bits of the target version.

    Returns:
        The encoding, and its payload; a ``DENSE`` one is a view of ``bits``.
    """
    if not len(changes.positions):
        return Encoding.SAME, b""
    width = bits.itemsize
    exceptions = int(np.count_nonzero(changes.tops))
    sizes = encoded_sizes(changes, bits)
    entries = (sizes[Encoding.L8] - 8 - 5 * exceptions) // width
    tiles = -(-len(bits) // TILE)
    best = min(sizes, key=lambda encoding: sizes[encoding])
    if best is Encoding.DENSE:
        return best, bits.view(np.uint8).data
    payload = np.empty(sizes[best], np.uint8)
    if best is Encoding.L8:
        _encode_l8(changes, bits, payload, entries, exceptions)
    else:
        _encode_t16(changes, payload, tiles, exceptions)
    return best, payload.data


def encoded_sizes(changes: Changes, bits: Bits) -> dict[Encoding, int]:
    """Count the payload's bytes in each encoding that can hold changes."""
    exceptions = int(np.count_nonzero(changes.tops))
    entries = kernels.count_l8_entries(changes.positions)
    tiles = -(-len(bits) // TILE)
    elements = len(changes.positions) * (bits.itemsize + 1)
    return {
        Encoding.L8: 8 + entries * bits.itemsize + 5 * exceptions,
        Encoding.T16: 12 + 4 * tiles + elements + 5 * exceptions,
        Encoding.DENSE: bits.nbytes,
    }


def _encode_l8(
    changes: Changes, bits: Bits, payload: NDArray[np.uint8], entries: int, exceptions: int
) -> None:
    head, rest = payload[:8], payload[8:]
    head.view("<u4")[:] = entries, exceptions
    gaps, rest = rest[:entries], rest[entries:]
    planes, ordinals, tops = _tail(rest, bits.itemsize, entries, exceptions)
    kernels.write_l8(
        changes.positions, changes.values, changes.tops, bits, gaps, planes, ordinals, tops
    )
    rest[planes.size : planes.size + 4 * exceptions] = ordinals.view(np.uint8)


def _encode_t16(changes: Changes, payload: NDArray[np.uint8], tiles: int, exceptions: int) -> None:
    entries = len(changes.positions)
    payload[:12].view("<u4")[:] = tiles, entries, exceptions
    counts = payload[12 : 12 + 4 * tiles].view("<u4")
    counts[:] = 0
    rest = payload[12 + 4 * tiles :]
    offsets, rest = rest[: 2 * entries].view("<u2"), rest[2 * entries :]
    planes, ordinals, tops = _tail(rest, changes.values.itemsize, entries, exceptions)
    kernels.write_t16(
        changes.positions, changes.values, changes.tops, counts, offsets, planes, ordinals, tops
    )
    rest[planes.size : planes.size + 4 * exceptions] = ordinals.view(np.uint8)


def _tail(
    rest: NDArray[np.uint8], width: int, entries: int, exceptions: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.uint8]]:
    """
    Lay out planes and exceptions.

    The ordinals are an array of their own: in the payload they may begin at any byte.
    """
    low = (width - 1) * entries
    planes = rest[:low].reshape(width - 1, entries)
    return planes, np.empty(exceptions, "<u4"), rest[low + 4 * exceptions :]


class _Scratch(threading.local):
    """Arrays that a thread writes changes to before it knows how many there are."""

    def __init__(self) -> None:
        self.arrays: dict[str, tuple[NDArray[np.uint32], Bits, NDArray[np.bool_]]] = {}


_SCRATCH = _Scratch()


def _scratch(
    count: int, dtype: np.dtype[Any]
) -> tuple[NDArray[np.uint32], Bits, NDArray[np.bool_]]:
    held = _SCRATCH.arrays.get(dtype.str)
    if held is None or len(held[0]) < count:
        held = (np.empty(count, np.uint32), np.empty(count, dtype), np.empty(count, np.bool_))
        _SCRATCH.arrays[dtype.str] = held
    return held
