"""
Loops over single elements, compiled by numba; they run without the interpreter's lock.

``bits`` are a segment's elements as ``uint16`` or ``uint32``; positions are flat indices in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "count_l8_entries",
    "take_changes",
    "union",
    "write_at",
    "write_gaps",
    "write_l8",
    "write_t16",
]

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    # The cache lies beside the source, or in the user's cache folder where that is read-only.
    return cast(F, numba.njit(nogil=True, cache=True)(function))


@_compiled
def take_changes(
    new: NDArray[Any],
    old: NDArray[Any],
    new_words: NDArray[np.uint64],
    old_words: NDArray[np.uint64],
    positions: NDArray[np.uint32],
    values: NDArray[Any],
    tops: NDArray[np.bool_],
) -> int:
    """
    Find the elements whose bits differ, and bring ``old`` up to ``new``.

    Args:
        new: ``[count]`` bits.
        old: ``[count]`` bits of the version before; overwritten where they differ.
        new_words: The whole words of ``new``.
        old_words: The whole words of ``old``.
        positions: ``[count]``, receives what differs, ascending.
        values: ``[count]``, receives the new bits of each.
        tops: ``[count]``, receives whether the top byte of each differs.

    Returns:
        How many differ.
    """
    shift = 8 * (new.itemsize - 1)
    lanes = 8 // new.itemsize
    found = 0
    for word in range(len(new_words)):
        if new_words[word] != old_words[word]:
            for index in range(word * lanes, word * lanes + lanes):
                difference = new[index] ^ old[index]
                positions[found] = index
                values[found] = new[index]
                tops[found] = difference >> shift != 0
                found += difference != 0
            old_words[word] = new_words[word]
    for index in range(len(new_words) * lanes, len(new)):
        difference = new[index] ^ old[index]
        positions[found] = index
        values[found] = new[index]
        tops[found] = difference >> shift != 0
        found += difference != 0
        old[index] = new[index]
    return found


@_compiled
def union(
    a: NDArray[np.uint32],
    a_tops: NDArray[np.bool_],
    b: NDArray[np.uint32],
    b_tops: NDArray[np.bool_],
    positions: NDArray[np.uint32],
    tops: NDArray[np.bool_],
) -> int:
    """Merge two ascending lists of positions, joining equal ones; return how many there are."""
    i = j = found = 0
    while i < len(a) or j < len(b):
        take_a = j == len(b) or (i < len(a) and a[i] <= b[j])
        take_b = i == len(a) or (j < len(b) and b[j] <= a[i])
        top = False
        if take_a:
            positions[found] = a[i]
            top |= a_tops[i]
            i += 1
        if take_b:
            positions[found] = b[j]
            top |= b_tops[j]
            j += 1
        tops[found] = top
        found += 1
    return found


@_compiled
def count_l8_entries(positions: NDArray[np.uint32]) -> int:
    """Count the entries that L8 needs for ``[changed]`` positions, bridges included."""
    entries = np.int64(0)
    before = np.int64(-1)
    for position in positions:
        entries += 1 + (np.int64(position) - before - 1) // 255
        before = np.int64(position)
    return int(entries)


@_compiled
def write_l8(
    positions: NDArray[np.uint32],
    values: NDArray[Any],
    tops: NDArray[np.bool_],
    bits: NDArray[Any],
    gaps: NDArray[np.uint8],
    planes: NDArray[np.uint8],
    ordinals: NDArray[np.uint32],
    top_bytes: NDArray[np.uint8],
) -> None:
    """
    Fill the parts of an L8 payload.

    Args:
        positions: ``[changed]``.
        values: ``[changed]`` new bits.
        tops: ``[changed]``, whether the top byte differs.
        bits: ``[count]`` new bits of the whole segment, for the bridges.
        gaps: ``[entries]``.
        planes: ``[itemsize - 1, entries]``.
        ordinals: ``[exceptions]``.
        top_bytes: ``[exceptions]``.
    """
    width = bits.itemsize
    entry = exception = 0
    at = np.int64(-1)
    for index in range(len(positions)):
        position = np.int64(positions[index])
        while position - at > 255:
            at += 255
            gaps[entry] = 255
            for byte in range(width - 1):
                planes[byte, entry] = (bits[at] >> (8 * byte)) & 255
            entry += 1
        gaps[entry] = position - at
        at = position
        for byte in range(width - 1):
            planes[byte, entry] = (values[index] >> (8 * byte)) & 255
        if tops[index]:
            ordinals[exception] = entry
            top_bytes[exception] = values[index] >> (8 * (width - 1))
            exception += 1
        entry += 1


@_compiled
def write_t16(
    positions: NDArray[np.uint32],
    values: NDArray[Any],
    tops: NDArray[np.bool_],
    counts: NDArray[np.uint32],
    offsets: NDArray[np.uint16],
    planes: NDArray[np.uint8],
    ordinals: NDArray[np.uint32],
    top_bytes: NDArray[np.uint8],
) -> None:
    """Fill the parts of a T16 payload; as :func:`write_l8`, with ``[tiles]`` zeroed counts."""
    width = values.itemsize
    exception = 0
    for index in range(len(positions)):
        position = np.int64(positions[index])
        counts[position >> 16] += 1
        offsets[index] = position & 0xFFFF
        for byte in range(width - 1):
            planes[byte, index] = (values[index] >> (8 * byte)) & 255
        if tops[index]:
            ordinals[exception] = index
            top_bytes[exception] = values[index] >> (8 * (width - 1))
            exception += 1


@_compiled
def write_gaps(
    target: NDArray[np.uint8],
    width: int,
    gaps: NDArray[np.uint8],
    planes: NDArray[np.uint8],
    ordinals: NDArray[np.uint32],
    top_bytes: NDArray[np.uint8],
) -> None:
    """
    Write an L8 payload's entries onto ``[count * width]`` bytes, in place.

    Args:
        target: The segment.
        width: Bytes of an element.
        gaps: ``[entries]``; their sum reaches no further than the segment.
        planes: ``[width - 1, entries]``.
        ordinals: ``[exceptions]``, ascending.
        top_bytes: ``[exceptions]``.
    """
    at = -1
    exception = 0
    for entry in range(len(gaps)):
        at += gaps[entry]
        for byte in range(width - 1):
            target[at * width + byte] = planes[byte, entry]
        if exception < len(ordinals) and ordinals[exception] == entry:
            target[at * width + width - 1] = top_bytes[exception]
            exception += 1


@_compiled
def write_at(
    target: NDArray[np.uint8],
    width: int,
    positions: NDArray[np.int64],
    planes: NDArray[np.uint8],
    ordinals: NDArray[np.uint32],
    top_bytes: NDArray[np.uint8],
) -> None:
    """Write entries at ``[entries]`` positions; as :func:`write_gaps`."""
    for entry in range(len(positions)):
        for byte in range(width - 1):
            target[positions[entry] * width + byte] = planes[byte, entry]
    for exception in range(len(ordinals)):
        target[positions[ordinals[exception]] * width + width - 1] = top_bytes[exception]
