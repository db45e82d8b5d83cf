"""The codec's reading half: patches onto live weights, in place, and the proof that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow.errors import WireError
from astraflow.interfaces.weights import Encoding, TensorPatch
from astraflow.weights import kernels
from astraflow.weights.delta import TILE
from astraflow.weights.hashes import segment_hashes
from astraflow.weights.threads import spread

_STAGING_STEP_BYTES = 64 * 1024 * 1024

__all__ = ["Entries", "apply_patch", "apply_patches", "read_entries"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """A checked L8 or T16 payload, taken apart."""

    gaps: NDArray[np.uint8] | None
    """``[entries]`` of an L8 payload."""

    positions: NDArray[np.int64] | None
    """``[entries]`` of a T16 payload."""

    planes: NDArray[np.uint8]
    """``[width - 1, entries]``, lowest first."""

    ordinals: NDArray[np.uint32]
    """``[exceptions]`` entries whose top byte changes, ascending."""

    tops: NDArray[np.uint8]
    """``[exceptions]`` new top bytes."""


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
    if target.numel() != patch.count:
        raise WireError(
            f"a patch of {patch.count} elements meets a segment of {target.numel()} in "
            f"`{patch.spec.name}`"
        )
    flat = target.detach().view(torch.uint8)
    if patch.encoding is Encoding.DENSE:
        _apply_dense(flat, patch)
        return
    width = target.element_size()
    entries = read_entries(patch, width)
    if flat.is_cuda:
        content = flat.cpu().numpy()
        _write(content, width, entries)
        flat.copy_(torch.from_numpy(content))
    else:
        _write(flat.numpy(), width, entries)


def apply_patches(targets: Sequence[Tensor], patches: Sequence[TensorPatch]) -> list[int]:
    """
    Apply many patches and prove what lies in place afterwards.

    Args:
        targets: ``[patch.count]`` slices of live parameters on one device.
        patches: One for each target.

    Returns:
        Indices of the targets that do not hash to their proof.

    Raises:
        WireError: a payload does not fit its encoding or segment; others may have been written.
    """
    pairs = list(zip(targets, patches, strict=True))
    with torch.no_grad():
        if targets and targets[0].is_cuda:
            _apply_on_gpu(targets, patches)
        else:
            walked = sum(len(patch.payload) for patch in patches)
            spread(lambda pair: apply_patch(*pair), pairs, total_bytes=walked)
    hashes = segment_hashes(targets)
    return [
        index
        for index, (found, patch) in enumerate(zip(hashes, patches, strict=True))
        if found != patch.target_hash
    ]


def read_entries(patch: TensorPatch, width: int) -> Entries:
    """
    Take an L8 or T16 payload apart and check all of it.

    Args:
        patch: What came.
        width: Bytes of an element.

    Raises:
        WireError: it does not fit its encoding or segment.
    """
    reader = _Reader(patch)
    gaps = positions = None
    if patch.encoding is Encoding.L8:
        entries, exceptions = (int(value) for value in reader.take("<u4", 2))
        gaps = reader.take("u1", entries)
        last = int(gaps.sum(dtype=np.int64)) - 1
        if entries and gaps.min() == 0:
            raise reader.broken("a gap is 0")
    else:
        tiles, entries, exceptions = (int(value) for value in reader.take("<u4", 3))
        counts = reader.take("<u4", tiles).astype(np.int64)
        if int(counts.sum()) != entries:
            raise reader.broken(f"its tiles count {int(counts.sum())} entries instead of {entries}")
        starts = np.repeat(np.arange(tiles, dtype=np.int64) * TILE, counts)
        positions = starts + reader.take("<u2", entries)
        last = int(positions.max(initial=-1))
    planes = reader.take("u1", (width - 1) * entries).reshape(width - 1, entries)
    ordinals = reader.take("<u4", exceptions)
    tops = reader.take("u1", exceptions)
    reader.finish()
    if last >= patch.count:
        raise reader.broken(f"it reaches beyond the segment's {patch.count} elements")
    if exceptions and int(ordinals.max()) >= entries:
        raise reader.broken(f"an exception names an entry beyond {entries}")
    if (ordinals[1:] <= ordinals[:-1]).any():
        raise reader.broken("its exceptions are not in order")
    return Entries(gaps=gaps, positions=positions, planes=planes, ordinals=ordinals, tops=tops)


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


def _apply_on_gpu(targets: Sequence[Tensor], patches: Sequence[TensorPatch]) -> None:
    """Apply two-byte segments in one go; others one by one."""
    from astraflow.weights.gpu_apply import Piece, Staged

    offsets = np.concatenate([[0], np.cumsum([len(patch.payload) for patch in patches])])
    host = _pinned(-(-int(offsets[-1]) // _STAGING_STEP_BYTES))[: int(offsets[-1])]
    content = host.numpy()
    spread(
        lambda index: np.copyto(
            content[offsets[index] : offsets[index + 1]],
            np.frombuffer(patches[index].payload, np.uint8),
        ),
        range(len(patches)),
        total_bytes=len(content),
    )
    pieces = []
    for target, patch, offset in zip(targets, patches, offsets.tolist(), strict=False):
        if target.element_size() != 2:
            apply_patch(target, patch)
            continue
        pieces.append(
            Piece(
                name=patch.spec.name,
                encoding=patch.encoding,
                offset=offset,
                size=len(patch.payload),
                target=target,
            )
        )
    Staged(host, pieces, targets[0].device).write()
    torch.cuda.current_stream(targets[0].device).synchronize()


@lru_cache(maxsize=2)
def _pinned(steps: int) -> Tensor:
    """Keep staging memory: pinning gigabytes takes longer than filling them."""
    return torch.empty(steps * _STAGING_STEP_BYTES, dtype=torch.uint8, pin_memory=True)


def _apply_dense(flat: Tensor, patch: TensorPatch) -> None:
    if len(patch.payload) != flat.numel():
        raise WireError(
            f"the DENSE payload of `{patch.spec.name}` has {len(patch.payload)} bytes instead of "
            f"{flat.numel()}"
        )
    content = np.frombuffer(patch.payload, np.uint8)
    if flat.is_cuda:
        # torch wants memory that may be written, though it only reads here.
        flat.copy_(torch.from_numpy(content.copy()))
    else:
        np.copyto(flat.numpy(), content)


def _write(target: NDArray[np.uint8], width: int, entries: Entries) -> None:
    # numba compiles a loop for each alignment it meets: payloads may begin anywhere.
    ordinals = entries.ordinals.astype(np.uint32)
    if entries.gaps is not None:
        kernels.write_gaps(target, width, entries.gaps, entries.planes, ordinals, entries.tops)
    else:
        assert entries.positions is not None
        kernels.write_at(target, width, entries.positions, entries.planes, ordinals, entries.tops)
