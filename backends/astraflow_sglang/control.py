"""
What passes between the adapter and its loader inside SGLang's worker.

The adapter writes an update's bytes to memory that all its servers read, and talks to each
worker through a mailbox (memfds, so nothing is left behind however it ends):

    bytes 0 to 7     state, below
    bytes 8 to 15    length of the content
    bytes 16 ...     an order, then its answer

    adapter                       worker, between two steps of its scheduler
    HOLD            ──▶
                    ◀──           HELD      decoding stands still from here
    ORDER           ──▶
                    ◀──           ANSWERED  (any number of orders)
    RELEASE         ──▶
                    ◀──           RUNNING   decoding goes on
"""

from __future__ import annotations

import mmap
from enum import IntEnum

import msgspec

__all__ = [
    "MAILBOX_BYTES",
    "Answer",
    "Control",
    "Mailbox",
    "Order",
    "Piece",
    "Progress",
    "State",
    "Tensor",
]

MAILBOX_BYTES = 8 * 1024 * 1024
_HEAD_BYTES = 16


class State(IntEnum):
    """Whose turn it is."""

    RUNNING = 0
    HOLD = 1
    HELD = 2
    ORDER = 3
    ANSWERED = 4
    RELEASE = 5


class Mailbox:
    """
    One worker's mailbox, as either side maps it.

    Args:
        memory: ``MAILBOX_BYTES``.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        # An aligned word is written in one piece, and after the content that it announces.
        self._words = memoryview(memory)[:_HEAD_BYTES].cast("Q")

    @property
    def state(self) -> int:
        """One of :class:`State`."""
        return self._words[0]

    @state.setter
    def state(self, state: State) -> None:
        self._words[0] = state

    def put(self, content: bytes) -> None:
        """Write a content; the state that announces it comes after."""
        if len(content) > MAILBOX_BYTES - _HEAD_BYTES:
            raise ValueError(f"a message of {len(content)} bytes does not fit the mailbox")
        self._memory[_HEAD_BYTES : _HEAD_BYTES + len(content)] = content
        self._words[1] = len(content)

    def take(self) -> bytes:
        """Read the content."""
        return self._memory[_HEAD_BYTES : _HEAD_BYTES + self._words[1]]


class Tensor(msgspec.Struct, frozen=True):
    """A tensor by its name in the checkpoint."""

    name: str
    shape: tuple[int, ...]


class Piece(msgspec.Struct, frozen=True):
    """One patch: what it is for, and where its bytes lie."""

    tensor: int
    """Index into the tensors of the first order."""
    first: int
    count: int
    encoding: int
    offset: int
    size: int
    target_hash: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What the loader is to do."""

    tensors: tuple[Tensor, ...] = ()
    """At the start: find these, and hash them."""
    pieces: tuple[Piece, ...] = ()
    """Later: write these, and prove every one."""
    path: str = ""
    """The memory with the pieces' bytes."""
    size: int = 0
    """Bytes of that memory."""


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """The line that SGLang calls the loader with, once."""

    mailbox: str


class Progress(msgspec.Struct, frozen=True):
    """How far an answer was when the weights changed."""

    request_id: str
    tokens: int
    """Tokens drawn with the old weights (count)."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the loader says."""

    error: str = ""
    """Why nothing was done; empty if all was."""
    unmapped: tuple[str, ...] = ()
    """Tensors that the server's model has no place for, each with the reason."""
    hashes: tuple[int, ...] = ()
    """Of each tensor of the first order."""
    wrong: tuple[int, ...] = ()
    """Pieces that do not hash to their proof."""
    progress: tuple[Progress, ...] = ()
    """Every request in the server."""
    stage_ms: float = 0.0
    write_ms: float = 0.0
    prove_ms: float = 0.0
