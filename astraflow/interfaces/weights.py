"""Shards, patches and updates: what a version is made of while it travels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from astraflow.records import PolicyVersion

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "Encoding",
    "PublishReport",
    "Shard",
    "TensorPatch",
    "TensorSpec",
    "WeightPublisher",
    "WeightReceiver",
    "WeightUpdate",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of the model, tied copies left out."""

    name: str
    """Checkpoint name."""

    dtype: str
    """Element type by its safetensors name: ``BF16``, ``F32``, ``F16``."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A contiguous piece of one tensor, as one trainer rank holds it."""

    spec: TensorSpec
    """The whole tensor."""

    first: int
    """Flat index of the piece's first element in the whole tensor."""

    values: Tensor
    """``[count]`` contiguous elements of ``spec.dtype``, on the rank's device."""


class Encoding(IntEnum):
    """How the bytes of one patch are to be read; docs/weights.md has the layout."""

    SAME = 0
    DENSE = 1
    L8 = 2
    T16 = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPatch:
    """New content for one segment of one tensor."""

    spec: TensorSpec
    """The whole tensor."""

    first: int
    """Flat index of the segment's first element."""

    count: int
    """Elements in the segment."""

    encoding: Encoding
    """How ``payload`` is to be read."""

    payload: memoryview
    """The encoded bytes, checked against their frame's checksum."""

    base_hash: int
    """64-bit hash of the segment that the patch was made against; 0 when ``DENSE``."""

    target_hash: int
    """64-bit hash that the segment must have afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUpdate:
    """One version on its way in, whole in host memory and checksummed."""

    version: PolicyVersion
    """What the receiver holds afterwards."""

    base: PolicyVersion | None
    """What the receiver must hold before; None when every patch is dense."""

    patches: tuple[TensorPatch, ...]
    """Each segment of each tensor once."""

    wire_bytes: int
    """Bytes that crossed the wire for it, headers included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishReport:
    """What one publish cost and what it holds."""

    version: PolicyVersion
    """The version that can now be fetched."""

    changed_frac: float
    """Share of elements whose bits changed, 0 to 1."""

    full_bytes: int
    """Bytes of a full transfer."""

    blocked_s: float
    """Time the trainer was held up (s)."""


class WeightPublisher(Protocol):
    """The trainer's end, one on each rank."""

    def publish(self, version: PolicyVersion, shards: Iterable[Shard]) -> PublishReport:
        """Take a copy of this rank's shards under ``version`` and offer it to receivers."""
        ...


class WeightReceiver(Protocol):
    """The end inside RaaS."""

    async def newest(self, *, held: PolicyVersion) -> WeightUpdate:
        """Wait for a version above ``held`` and return it prepared in host memory."""
        ...

    async def confirm(self, version: PolicyVersion) -> None:
        """Tell the senders that ``version`` serves here."""
        ...

    async def refuse(self, version: PolicyVersion, why: str) -> None:
        """Tell the senders why ``version`` does not serve here; the next one will be full."""
        ...
