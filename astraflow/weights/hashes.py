"""
The 64-bit hash of a segment: a tree of XXH3-64 over pieces of 64 KiB.

Each piece, the last one padded with zeros, is hashed alone; the digests (little-endian, in
order) and the segment's byte length are hashed once more. The pieces are independent, so a GPU
can hash them side by side and a CPU can use the compiled library; both give the same value. It
detects accidents, and is no defense against an opponent.
"""

from __future__ import annotations

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["PIECE_BYTES", "bytes_hash", "segment_hash"]

PIECE_BYTES = 65536


def segment_hash(values: Tensor) -> int:
    """
    Hash a contiguous tensor's bits.

    Args:
        values: ``[count]`` of any dtype, contiguous, on any device.
    """
    return bytes_hash(values.detach().reshape(-1).view(torch.uint8).cpu().numpy())


def bytes_hash(content: NDArray[np.uint8]) -> int:
    """
    Hash bytes in host memory.

    Args:
        content: ``[bytes]`` uint8, contiguous.
    """
    view = content.data
    size = len(view)
    whole = size - size % PIECE_BYTES
    digests = [
        xxhash.xxh3_64_intdigest(view[at : at + PIECE_BYTES]) for at in range(0, whole, PIECE_BYTES)
    ]
    if whole < size:
        padded = bytearray(PIECE_BYTES)
        padded[: size - whole] = view[whole:]
        digests.append(xxhash.xxh3_64_intdigest(padded))
    return _combine(np.array(digests, np.uint64), size)


def _combine(digests: NDArray[np.uint64], size: int) -> int:
    tail = size.to_bytes(8, "little")
    return xxhash.xxh3_64_intdigest(digests.astype("<u8").tobytes() + tail)
