"""The hash of pieces on a GPU: XXH3-64 of whole pieces, one program each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from astraflow.weights.hashes import PIECE_BYTES

__all__ = ["piece_digests_on_gpu"]

# XXH3's published secret and primes (xxhash specification, sections XXH3 and "constants").
_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_PRIME32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_PRIME64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_START = (_PRIME32[2], *_PRIME64[:4], _PRIME32[1], _PRIME64[4], _PRIME32[0])
_AVALANCHE = 0x165667919E3779F9
_STRIPES = 16  # in a block, which is 1024 bytes; the accumulators are scrambled after each


def piece_digests_on_gpu(contents: Sequence[Tensor]) -> list[NDArray[np.uint64]]:
    """
    Hash the pieces of many tensors on one device.

    Args:
        contents: Each ``[bytes]`` uint8, contiguous.

    Returns:
        For each tensor ``[pieces]`` digests.
    """
    # The kernel reads words of 8 bytes.
    whole = [_padded(c) if c.data_ptr() % 8 or c.numel() % 8 else c for c in contents]
    device = whole[0].device
    places = tuple((c.data_ptr(), c.numel()) for c in whole)
    pointers, words, counts = _pieces(places, device)
    digests = torch.empty(len(pointers), dtype=torch.int64, device=device)
    if len(pointers):
        _hash_pieces[(len(pointers),)](
            pointers, words, *_constants(device), digests, PIECE_BYTES // 1024, num_warps=1
        )
    found: NDArray[Any] = digests.cpu().numpy().view(np.uint64)
    return np.split(found, np.cumsum(counts)[:-1])


@triton.jit  # type: ignore[untyped-decorator]
def _hash_pieces(pointers, words, keys, constants, digests, blocks: tl.constexpr):  # type: ignore[no-untyped-def]
    """Hash one piece: ``words`` of it hold content, the others count as zero."""
    piece = tl.program_id(0)
    base = tl.load(pointers + piece).to(tl.pointer_type(tl.uint64))
    held = tl.load(words + piece)
    lane = tl.arange(0, 8)
    stripe = tl.arange(0, 16)
    here = stripe[:, None] * 8 + lane[None, :]
    across = stripe[:, None] * 8 + (lane ^ 1)[None, :]
    key = tl.load(keys + here).to(tl.uint64, bitcast=True)
    last_key = tl.load(keys + 128 + here).to(tl.uint64, bitcast=True)
    sums = tl.load(constants + lane).to(tl.uint64, bitcast=True)
    scramble = tl.load(constants + 8 + lane).to(tl.uint64, bitcast=True)
    merge = tl.load(constants + 16 + lane).to(tl.uint64, bitcast=True)
    start = tl.load(constants + 24).to(tl.uint64, bitcast=True)
    avalanche = tl.load(constants + 25).to(tl.uint64, bitcast=True)
    prime = tl.load(constants + 26).to(tl.uint64, bitcast=True)
    low = tl.load(constants + 27).to(tl.uint64, bitcast=True)
    for block in range(blocks):
        at = block * 128
        content = tl.load(base + at + here, mask=at + here < held, other=0)
        swapped = tl.load(base + at + across, mask=at + across < held, other=0)
        last = block == blocks - 1
        mixed = content ^ tl.where(last, last_key, key)
        sums += tl.sum((mixed & low) * (mixed >> 32) + swapped, axis=0)
        scrambled = (sums ^ (sums >> 47) ^ scramble) * prime
        sums = tl.where(last, sums, scrambled)
    even, odd = tl.split(tl.reshape(sums ^ merge, (4, 2)))
    folded = (even * odd) ^ tl.math.umulhi(even, odd)
    digest = start + tl.sum(folded, axis=0)
    digest = (digest ^ (digest >> 37)) * avalanche
    digest = digest ^ (digest >> 32)
    tl.store(digests + piece, digest.to(tl.int64, bitcast=True))


@lru_cache(maxsize=16)
def _pieces(
    places: tuple[tuple[int, int], ...], device: torch.device
) -> tuple[Tensor, Tensor, list[int]]:
    """Return each piece's address and words, and how many pieces each content has."""
    counts = [-(-size // PIECE_BYTES) for _, size in places]
    starts = [address + np.arange(n) * PIECE_BYTES for (address, _), n in zip(places, counts)]  # noqa: B905
    words = [
        np.minimum(size - np.arange(n) * PIECE_BYTES, PIECE_BYTES) // 8
        for (_, size), n in zip(places, counts)  # noqa: B905
    ]
    addresses = torch.from_numpy(np.concatenate(starts).astype(np.int64)).to(device)
    return addresses, torch.from_numpy(np.concatenate(words).astype(np.int32)).to(device), counts


@lru_cache(maxsize=16)
def _constants(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the stripes' keys, the last block's beside them, and all other constants."""

    def word(at: int) -> int:
        return int.from_bytes(_SECRET[at : at + 8], "little")

    stripes = [word(8 * (stripe + lane)) for stripe in range(_STRIPES) for lane in range(8)]
    # The last stripe of all has a key of its own, 7 bytes off the others.
    ending = [*stripes[:-8], *(word(len(_SECRET) - 64 - 7 + 8 * lane) for lane in range(8))]
    constants = [
        *_START,
        *(word(len(_SECRET) - 64 + 8 * lane) for lane in range(8)),
        *(word(11 + 8 * lane) for lane in range(8)),
        PIECE_BYTES * _PRIME64[0] % 2**64,
        _AVALANCHE,
        _PRIME32[0],
        0xFFFFFFFF,
    ]
    keys = np.array([*stripes, *ending], np.uint64).view(np.int64)
    others = np.array(constants, np.uint64).view(np.int64)
    return torch.from_numpy(keys).to(device), torch.from_numpy(others).to(device)


def _padded(content: Tensor) -> Tensor:
    padded = torch.zeros(-(-content.numel() // 8) * 8, dtype=torch.uint8, device=content.device)
    padded[: content.numel()] = content
    return padded
