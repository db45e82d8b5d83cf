"""
Snapshot: what one rank has published, with the way back to older versions.

    live weights ──take()──▶ bits [version v]  ◀── changes v-1→v, v-2→v-1, ... (the last K)
                                  │
                                  └── offer(held) ──▶ patches: delta from held, or whole

In full mode two sets of buffers take turns, and a set that is still being sent is left alone, so
a slow receiver is sent what it was offered. In delta mode one set moves from version to version
under the lock; a whole send works on a copy made under that lock. Neither can be torn.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from astraflow.errors import WireError
from astraflow.interfaces.weights import Encoding, Shard
from astraflow.weights.host_bits import HostBits
from astraflow.weights.protocol import OfferedPatch, Segment

__all__ = ["Prepared", "PublishedBits", "Snapshot"]

_ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4}


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


class PublishedBits(Protocol):
    """Bits of every segment in one memory, with what changed on the way to them."""

    def hashes(self) -> list[int]:
        """Return one hash a segment, of the bits as they are now."""
        ...

    def fill(self, shards: Sequence[Shard]) -> None:
        """Take over whole shards, whatever was there."""
        ...

    def advance(self, shards: Sequence[Shard]) -> Any:
        """Move on to new bits and return what changed, in a form of its own."""
        ...

    def changed_elements(self, changes: Any) -> int:
        """Count the elements that changed."""
        ...

    def merge(self, older: Any, newer: Any) -> Any:
        """Join the changes of two stretches of versions, the newer of which ends here."""
        ...

    def encode(self, changes: Any) -> list[tuple[Encoding, bytes | memoryview]]:
        """Encode changes that end here, one payload a segment."""
        ...

    def whole(self, indices: Sequence[int], *, copied: bool) -> list[memoryview]:
        """Return the bytes of segments, or copies of them if they are about to move on."""
        ...


class Snapshot:
    """
    The published bits of one rank's segments; safe to use from any thread.

    Args:
        keep_deltas: Versions back that a delta can start from; 0 keeps none (full mode).
        full_sync_interval: Versions from one whole send to the next; None for never.
        memory: Where deltas of shards on a GPU are found: beside them, or in pinned host memory.
    """

    def __init__(
        self,
        *,
        keep_deltas: int,
        full_sync_interval: int | None,
        memory: Literal["gpu", "host"] = "gpu",
    ) -> None:
        self._keep_deltas = keep_deltas
        self._interval = full_sync_interval
        self._memory = memory
        self._lock = threading.Lock()
        self._bits: PublishedBits | None = None
        self._spare: PublishedBits | None = None
        self._readers: dict[PublishedBits, int] = {}
        self._steps: dict[int, Any] = {}
        self._base_hashes: dict[int, list[int]] = {}
        self._encoded: dict[int, Prepared] = {}
        self.segments: tuple[Segment, ...] = ()
        self.version = -1
        """The version that can be fetched; -1 before the first."""

    @property
    def full_bytes(self) -> int:
        """Bytes of a whole send."""
        return sum(s.count * _ITEM_BYTES[s.dtype] for s in self.segments)

    def take(self, version: int, shards: Iterable[Shard]) -> float:
        """
        Take over a rank's shards as ``version``; return the share of elements that changed.

        Raises:
            WireError: the shards are not the segments of the version before.
        """
        live = list(shards)
        segments = tuple(map(_segment, live))
        if self.segments and segments != self.segments:
            raise WireError("the trainer's shards changed between two versions")
        with self._lock:
            self.segments = segments
            self._encoded.clear()
            if self._bits is None or not self._keep_deltas:
                self._replace(live)
                changed_frac = 1.0
            else:
                changed_frac = self._advance(live)
            self.version = version
        return changed_frac

    def prove(self) -> None:
        """Hash the current version; called off the trainer's path, before the first offer."""
        with self._lock:
            self._require_bits().hashes()

    def encode_delta(self) -> dict[str, Any]:
        """
        Encode what a receiver one version behind will be sent, before it asks.

        Returns:
            Bytes of each encoding's payloads, by its name; empty when there is no such delta.
        """
        with self._lock:
            if not self._steps:
                return {}
            sizes = {encoding.name: 0 for encoding in Encoding}
            for patch in self._delta(max(self._steps)).patches:
                sizes[patch.encoding.name] += patch.size
            return {f"{name.lower()}_bytes": size for name, size in sizes.items()}

    @contextmanager
    def offer(
        self,
        *,
        held: int,
        dense: Iterable[str] = (),
        full: bool = False,
        part: int = 0,
        parts: int = 1,
    ) -> Iterator[Prepared]:
        """
        Prepare the current version for a receiver; it stays as it is inside the block.

        Args:
            held: Version it holds proved; -1 for none.
            dense: Tensors to send whole, and nothing else.
            full: Send everything whole, whatever it holds.
            part: Which share of the patches to prepare.
            parts: Shares, of about as many bytes each (count).
        """
        with self._lock:
            prepared = self._prepare(held, set(dense), full=full, part=part, parts=parts)
            bits = self._require_bits()
            self._readers[bits] = self._readers.get(bits, 0) + 1
        try:
            yield prepared
        finally:
            with self._lock:
                self._readers[bits] -= 1

    # --- inside, under the lock

    def _prepare(
        self, held: int, dense: set[str], *, full: bool, part: int, parts: int
    ) -> Prepared:
        # Crossing a multiple counts, not hitting it: a receiver may sleep through that version.
        interval = self._interval
        due = interval is not None and self.version // interval > held // interval
        if dense or full or due or held not in self._steps:
            named = [i for i, s in enumerate(self.segments) if not dense or s.name in dense]
            sizes = [self.segments[i].count for i in named]
            return self._whole([named[i] for i in _share(sizes, part, parts)])
        delta = self._delta(held)
        chosen = _share([patch.size for patch in delta.patches], part, parts)
        return Prepared(
            version=delta.version,
            base=delta.base,
            patches=tuple(delta.patches[i] for i in chosen),
            payloads=tuple(delta.payloads[i] for i in chosen),
        )

    def _replace(self, shards: list[Shard]) -> None:
        """Start from whole shards, in buffers that nobody is being sent."""
        spare = self._spare
        if self._bits is not None and spare is not None and not self._readers.get(spare):
            spare.fill(shards)
            self._bits, self._spare = spare, self._bits
        else:
            self._bits, self._spare = self._build(shards), self._bits
        self._readers = {bits: n for bits, n in self._readers.items() if n}
        self._steps.clear()
        self._base_hashes.clear()

    def _build(self, shards: list[Shard]) -> PublishedBits:
        on_gpu = bool(shards) and all(
            shard.values.is_cuda and shard.values.element_size() == 2 for shard in shards
        )
        if on_gpu and self._keep_deltas:
            from astraflow.weights.gpu_bits import GpuBits

            bits: PublishedBits = GpuBits(shards, memory=self._memory)
            return bits
        return HostBits(shards)

    def _advance(self, shards: list[Shard]) -> float:
        """Move the one set of buffers on by the elements that changed."""
        bits = self._require_bits()
        before, base_hashes = self.version, bits.hashes()
        step = bits.advance(shards)
        # Joined only when somebody who lags asks: most receivers are one version behind.
        self._steps[before] = step
        self._base_hashes[before] = base_hashes
        for held in sorted(self._steps)[: -self._keep_deltas]:
            del self._steps[held], self._base_hashes[held]
        elements = max(sum(segment.count for segment in self.segments), 1)
        return bits.changed_elements(step) / elements

    def _delta(self, held: int) -> Prepared:
        if held not in self._encoded:
            self._encoded[held] = self._encode(held)
        return self._encoded[held]

    def _encode(self, held: int) -> Prepared:
        bits = self._require_bits()
        later = [step for base, step in sorted(self._steps.items()) if base >= held]
        changes = later.pop(0)
        for step in later:
            changes = bits.merge(changes, step)
        encoded = bits.encode(changes)
        patches = tuple(
            OfferedPatch(
                segment=index,
                encoding=encoding,
                size=memoryview(payload).nbytes,
                base_hash=base,
                target_hash=target,
            )
            for index, ((encoding, payload), base, target) in enumerate(
                zip(encoded, self._base_hashes[held], bits.hashes(), strict=True)
            )
        )
        payloads = tuple(payload for _, payload in encoded)
        return Prepared(version=self.version, base=held, patches=patches, payloads=payloads)

    def _whole(self, indices: Sequence[int]) -> Prepared:
        bits = self._require_bits()
        payloads = bits.whole(indices, copied=self._keep_deltas > 0)
        hashes = bits.hashes()
        patches = tuple(
            OfferedPatch(
                segment=index,
                encoding=Encoding.DENSE,
                size=payload.nbytes,
                base_hash=0,
                target_hash=hashes[index],
            )
            for index, payload in zip(indices, payloads, strict=True)
        )
        return Prepared(version=self.version, base=-1, patches=patches, payloads=tuple(payloads))

    def _require_bits(self) -> PublishedBits:
        if self._bits is None:
            raise WireError("nothing has been published yet")
        return self._bits


def _share(sizes: Sequence[int], part: int, parts: int) -> list[int]:
    """Return the indices of one of ``parts`` consecutive runs of about the same total size."""
    total = max(sum(sizes), 1)
    chosen, before = [], 0
    for index, size in enumerate(sizes):
        if min((2 * before + size) * parts // (2 * total), parts - 1) == part:
            chosen.append(index)
        before += size
    return chosen


def _segment(shard: Shard) -> Segment:
    if shard.spec.dtype not in _ITEM_BYTES:
        raise WireError(
            f"`{shard.spec.name}` is {shard.spec.dtype}, which has no place on the wire",
            hint=f"known: {', '.join(_ITEM_BYTES)}",
        )
    return Segment(
        name=shard.spec.name,
        dtype=shard.spec.dtype,
        shape=shard.spec.shape,
        first=shard.first,
        count=shard.values.numel(),
    )
