"""
The 64-bit hash of a segment: a tree of XXH3-64 over pieces of 256 KiB.

Each piece, the last one padded with zeros, is hashed alone; the digests (little-endian, in
order) and the segment's byte length are hashed once more. The pieces are independent, so the
cores of a CPU and the multiprocessors of a GPU hash them side by side; every device gives the
same value. It detects accidents, and is no defense against an opponent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from astraflow.weights.threads import spread

__all__ = [
    "PIECE_BYTES",
    "bytes_hash",
    "combine",
    "piece_digests",
    "segment_hash",
    "segment_hashes",
]

# A power of two. xxhash lets other threads run only while it works on more than 100 kB.
PIECE_BYTES = 256 * 1024
_JOB_BYTES = 16 * PIECE_BYTES


def segment_hash(values: Tensor) -> int:
    """
    Hash a contiguous tensor's bits.

    Args:
        values: ``[count]`` of any dtype, contiguous, on any device.
    """
    return segment_hashes([values])[0]


def segment_hashes(tensors: Sequence[Tensor]) -> list[int]:
    """
    Hash the bits of many contiguous tensors that lie on one device.

    Args:
        tensors: Each of any shape and dtype.
    """
    flat = [tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors]
    if flat and flat[0].is_cuda:
        from astraflow.weights.gpu_hash import piece_digests_on_gpu

        digests = piece_digests_on_gpu(flat)
        return [combine(d, f.numel()) for d, f in zip(digests, flat, strict=True)]
    return _hashes([tensor.numpy() for tensor in flat])


def bytes_hash(content: NDArray[np.uint8]) -> int:
    """
    Hash bytes in host memory.

    Args:
        content: ``[bytes]`` uint8, contiguous.
    """
    return _hashes([content])[0]


def piece_digests(content: NDArray[np.uint8]) -> list[int]:
    """
    Hash the pieces of ``[bytes]`` that start on a piece's bound.

    Args:
        content: uint8, contiguous.
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
    return digests


def combine(digests: Sequence[int] | NDArray[np.uint64], size: int) -> int:
    """
    Join the digests of a segment's pieces.

    Args:
        digests: One a piece, in order.
        size: Bytes of the segment.
    """
    tail = size.to_bytes(8, "little")
    return xxhash.xxh3_64_intdigest(np.asarray(digests, "<u8").tobytes() + tail)


def _hashes(contents: Sequence[NDArray[np.uint8]]) -> list[int]:
    jobs = [
        content[at : at + _JOB_BYTES]
        for content in contents
        for at in range(0, len(content), _JOB_BYTES)
    ]
    done = iter(spread(piece_digests, jobs, total_bytes=sum(map(len, contents))))
    hashes = []
    for content in contents:
        digests: list[int] = []
        for _ in range(0, len(content), _JOB_BYTES):
            digests += next(done)
        hashes.append(combine(digests, len(content)))
    return hashes
