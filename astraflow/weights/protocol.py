"""
The conversation between a receiver and one trainer rank, as msgpack inside frames.

    receiver                         rank
    HELLO  token, run, name   ──▶
                              ◀──    MANIFEST  run, rank, segments
    WAIT   above              ──▶                                      (repeats)
                              ◀──    NEWEST    version
    WANT   version, held      ──▶
                              ◀──    OFFER     base, one patch a segment   or GONE newest
                              ◀──    PAYLOAD   sequence 0, 1, ...
                              ◀──    END       bytes
    CONFIRM or REFUSE         ──▶
                              ◀──    NOTED
"""

from __future__ import annotations

import socket
from enum import IntEnum
from typing import TypeVar

import msgspec

from astraflow.errors import WireError
from astraflow.interfaces.weights import Encoding
from astraflow.wire.frames import Frame, receive_frame, send_frame

__all__ = [
    "Confirm",
    "End",
    "Failure",
    "Gone",
    "Hello",
    "Kind",
    "ManifestMessage",
    "Newest",
    "Noted",
    "Offer",
    "OfferedPatch",
    "Refuse",
    "Segment",
    "Wait",
    "Want",
    "decode",
    "exchange",
    "send",
]

T = TypeVar("T", bound=msgspec.Struct)


class Kind(IntEnum):
    """Frame kinds."""

    HELLO = 1
    MANIFEST = 2
    WAIT = 3
    NEWEST = 4
    WANT = 5
    OFFER = 6
    GONE = 7
    PAYLOAD = 8
    END = 9
    CONFIRM = 10
    REFUSE = 11
    NOTED = 12
    ERROR = 13


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every message."""


class Hello(_Message, frozen=True, kw_only=True):
    """Who connects."""

    token: str
    run_id: str
    name: str


class Segment(_Message, frozen=True, kw_only=True):
    """One piece of one tensor that the rank serves."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    count: int


class ManifestMessage(_Message, frozen=True, kw_only=True):
    """What the rank serves; the same for the whole run."""

    run_id: str
    rank: int
    segments: tuple[Segment, ...]
    """Empty before the first version is published."""

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(s.count * (4 if s.dtype == "F32" else 2) for s in self.segments)


class Wait(_Message, frozen=True, kw_only=True):
    """Answer as soon as there is a version above."""

    above: int
    within_s: float


class Newest(_Message, frozen=True, kw_only=True):
    """Newest version; not above what was asked for when the time was up."""

    version: int


class Want(_Message, frozen=True, kw_only=True):
    """Send a version."""

    version: int
    held: int
    """Version that the receiver holds proved; -1 for none."""
    dense: tuple[str, ...] = ()
    """Tensors to send whole, and nothing else; empty for an ordinary update."""
    part: int = 0
    """Which share of the patches to send; a receiver fetches them over connections side by side."""
    parts: int = 1
    """How many shares there are."""


class OfferedPatch(_Message, frozen=True, kw_only=True):
    """One patch of the payload that follows, in the manifest's order."""

    segment: int
    encoding: Encoding
    size: int
    base_hash: int
    target_hash: int


class Offer(_Message, frozen=True, kw_only=True):
    """What will be sent."""

    version: int
    base: int
    """-1 when every patch is whole."""
    patches: tuple[OfferedPatch, ...]
    size: int
    transfer: int


class Gone(_Message, frozen=True, kw_only=True):
    """The version can no longer be had."""

    newest: int


class End(_Message, frozen=True, kw_only=True):
    """All of the payload was sent."""

    size: int
    frames: int


class Confirm(_Message, frozen=True, kw_only=True):
    """The version serves."""

    version: int


class Refuse(_Message, frozen=True, kw_only=True):
    """The version does not serve."""

    version: int
    why: str


class Noted(_Message, frozen=True, kw_only=True):
    """Heard."""


class Failure(_Message, frozen=True, kw_only=True):
    """The rank cannot go on with this connection."""

    why: str


def send(connection: socket.socket, kind: Kind, message: msgspec.Struct) -> int:
    """Send one message; return its bytes on the wire."""
    return send_frame(connection, kind, msgspec.msgpack.encode(message))


def decode(frame: Frame, kind: Kind, message: type[T]) -> T:
    """
    Read the message of a frame that must be of ``kind``.

    Raises:
        WireError: it is of another kind, or no such message.
    """
    if frame.kind == Kind.ERROR and kind is not Kind.ERROR:
        raise WireError(f"the sender refuses: {decode(frame, Kind.ERROR, Failure).why}")
    if frame.kind != kind:
        raise WireError(f"a frame of kind {frame.kind} came where {kind.name} was due")
    try:
        return msgspec.msgpack.decode(frame.payload, type=message)
    except msgspec.DecodeError as error:
        raise WireError(f"a broken {kind.name} message: {error}") from error


def exchange(
    connection: socket.socket, kind: Kind, message: msgspec.Struct, answer: Kind, form: type[T]
) -> T:
    """Send one message and read the one answer that is due."""
    send(connection, kind, message)
    return decode(receive_frame(connection), answer, form)
