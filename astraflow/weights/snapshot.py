"""
Snapshot: what one rank has published, in host memory, with the way back to older versions.

    live weights ──take()──▶ bits [version v]  ◀── changes v-1→v, v-2→v-1, ... (the last K)
                                  │
                                  └── offer(held) ──▶ patches: delta from held, or whole

In full mode each version has its own buffers, so a slow receiver is sent what it was offered. In
delta mode there is one set of buffers that moves from version to version under the lock; a whole
send works on a copy made under that lock. Neither can be torn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from astraflow.errors import WireError
from astraflow.interfaces.weights import Encoding, Shard
from astraflow.weights.delta import Changes, encode, find_changes, merge_changes
from astraflow.weights.hashes import bytes_hash
from astraflow.weights.protocol import OfferedPatch, Segment

__all__ = ["Prepared", "Snapshot"]

_BITS = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32}
_TORCH_BITS = {"BF16": torch.int16, "F16": torch.int16, "F32": torch.int32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An update ready to be sent."""

    version: int
    base: int
    patches: tuple[OfferedPatch, ...]
    payloads: tuple[bytes | memoryview, ...]

    @property
    def size(self) -> int:
        """Bytes of all payloads."""
        return sum(memoryview(payload).nbytes for payload in self.payloads)


@dataclass(slots=True)
class _Version:
    """One published version."""

    version: int
    bits: list[NDArray[Any]]
    hashes: list[int] = field(default_factory=list)


class Snapshot:
    """
    The published bits of one rank's segments; safe to use from any thread.

    Args:
        keep_deltas: Versions back that a delta can start from; 0 keeps none (full mode).
        full_sync_interval: Versions from one whole send to the next; None for never.
    """

    def __init__(self, *, keep_deltas: int, full_sync_interval: int | None) -> None:
        self._keep_deltas = keep_deltas
        self._interval = full_sync_interval
        self._lock = threading.Lock()
        self._current: _Version | None = None
        self._changes: dict[int, list[Changes]] = {}
        self._base_hashes: dict[int, list[int]] = {}
        self._encoded: dict[int, Prepared] = {}
        self.segments: tuple[Segment, ...] = ()

    @property
    def version(self) -> int:
        """The version that can be fetched; -1 before the first."""
        current = self._current
        return -1 if current is None else current.version

    @property
    def full_bytes(self) -> int:
        """Bytes of a whole send."""
        return sum(s.count * np.dtype(_BITS[s.dtype]).itemsize for s in self.segments)

    def take(self, version: int, shards: Iterable[Shard]) -> float:
        """
        Take over a rank's shards as ``version``; return the share of elements that changed.

        Raises:
            WireError: the shards are not the segments of the version before.
        """
        live = [(_segment(shard), _host_bits(shard)) for shard in shards]
        segments = tuple(segment for segment, _ in live)
        if self.segments and segments != self.segments:
            raise WireError("the trainer's shards changed between two versions")
        self.segments = segments
        arrays = [bits for _, bits in live]
        with self._lock:
            if self._current is None or not self._keep_deltas:
                self._replace(version, arrays)
                return 1.0
            return self._advance(version, arrays)

    def prove(self) -> None:
        """Hash the current version; called off the trainer's path, before the first offer."""
        with self._lock:
            self._hashes()

    def offer(self, *, held: int, dense: Iterable[str] = (), full: bool = False) -> Prepared:
        """
        Prepare the current version for a receiver.

        Args:
            held: Version it holds proved; -1 for none.
            dense: Tensors to send whole, and nothing else.
            full: Send everything whole, whatever it holds.
        """
        wanted = set(dense)
        with self._lock:
            current = self._require_current()
            if wanted:
                return self._whole(current, wanted)
            # Crossing a multiple counts, not hitting it: a receiver may sleep through that version.
            interval = self._interval
            due = interval is not None and current.version // interval > held // interval
            if full or due or held not in self._changes:
                return self._whole(current, None)
            if held not in self._encoded:
                self._encoded[held] = self._delta(current, held)
            return self._encoded[held]

    # --- inside, under the lock

    def _replace(self, version: int, arrays: list[NDArray[Any]]) -> None:
        """Start from whole arrays, in fresh buffers: an offer may still read the old ones."""
        self._current = _Version(version, [array.copy() for array in arrays])
        self._changes.clear()
        self._base_hashes.clear()
        self._encoded.clear()

    def _advance(self, version: int, arrays: list[NDArray[Any]]) -> float:
        """Move the one set of buffers on by the elements that changed."""
        current = self._require_current()
        before = current.version
        base_hashes = self._hashes()
        changes = [find_changes(new, old) for new, old in zip(arrays, current.bits, strict=True)]
        for change, new, old in zip(changes, arrays, current.bits, strict=True):
            old[change.positions] = new[change.positions]
        merged = {
            held: [merge_changes(o, n) for o, n in zip(older, changes, strict=True)]
            for held, older in self._changes.items()
            if held > version - 1 - self._keep_deltas
        }
        self._base_hashes = {held: self._base_hashes[held] for held in merged}
        self._changes = {**merged, before: changes}
        self._base_hashes[before] = base_hashes
        self._encoded.clear()
        self._current = _Version(version, current.bits)
        changed = sum(len(change.positions) for change in changes)
        return changed / max(sum(segment.count for segment in self.segments), 1)

    def _hashes(self) -> list[int]:
        current = self._require_current()
        if not current.hashes:
            current.hashes = [bytes_hash(bits.view(np.uint8)) for bits in current.bits]
        return current.hashes

    def _delta(self, current: _Version, held: int) -> Prepared:
        targets, bases = self._hashes(), self._base_hashes[held]
        patches, payloads = [], []
        for index, (changes, bits) in enumerate(
            zip(self._changes[held], current.bits, strict=True)
        ):
            encoding, payload = encode(changes, bits)
            if encoding is Encoding.DENSE:
                payload = bits.view(np.uint8).tobytes()  # the buffer moves on; the offer must not
            patches.append(
                OfferedPatch(
                    segment=index,
                    encoding=encoding,
                    size=len(payload),
                    base_hash=bases[index],
                    target_hash=targets[index],
                )
            )
            payloads.append(payload)
        return Prepared(
            version=current.version, base=held, patches=tuple(patches), payloads=tuple(payloads)
        )

    def _whole(self, current: _Version, only: set[str] | None) -> Prepared:
        targets = self._hashes()
        indices = [
            index
            for index, segment in enumerate(self.segments)
            if only is None or segment.name in only
        ]
        copied = self._keep_deltas > 0
        payloads = [
            (current.bits[i].copy() if copied else current.bits[i]).view(np.uint8).data
            for i in indices
        ]
        patches = tuple(
            OfferedPatch(
                segment=index,
                encoding=Encoding.DENSE,
                size=payload.nbytes,
                base_hash=0,
                target_hash=targets[index],
            )
            for index, payload in zip(indices, payloads, strict=True)
        )
        return Prepared(version=current.version, base=-1, patches=patches, payloads=tuple(payloads))

    def _require_current(self) -> _Version:
        if self._current is None:
            raise WireError("nothing has been published yet")
        return self._current


def _segment(shard: Shard) -> Segment:
    return Segment(
        name=shard.spec.name,
        dtype=shard.spec.dtype,
        shape=shard.spec.shape,
        first=shard.first,
        count=shard.values.numel(),
    )


def _host_bits(shard: Shard) -> NDArray[Any]:
    """View a shard's bits as whole numbers in host memory; no copy when it is there already."""
    if shard.spec.dtype not in _BITS:
        raise WireError(
            f"`{shard.spec.name}` is {shard.spec.dtype}, which has no place on the wire",
            hint=f"known: {', '.join(_BITS)}",
        )
    values = shard.values.detach().reshape(-1).view(_TORCH_BITS[shard.spec.dtype]).cpu()
    array: NDArray[Any] = values.numpy().view(_BITS[shard.spec.dtype])
    return array
