"""
What passes between the adapter and its loader inside SGLang's worker.

The adapter writes an update's bytes to memory that all its servers read, and an order to a
mailbox of each (memfds, so nothing is left behind however it ends). The loader opens them by path,
does what it is told, and leaves its answer in the mailbox: its length in 8 bytes, then the answer.
"""

from __future__ import annotations

import msgspec

__all__ = ["ANSWER_BYTES", "Answer", "Control", "Order", "Piece", "Progress", "Tensor"]

ANSWER_BYTES = 4 * 1024 * 1024
"""Size of a mailbox."""


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


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """The line that the loader is called with."""

    path: str
    """The memory with the update's bytes."""
    size: int
    """Bytes of that memory."""
    mailbox: str
    order_bytes: int
    """Bytes of the order, from the start of the mailbox."""


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
    progress: tuple[Progress, ...] | None = None
    """Every request in the server; None if the loader cannot tell."""
    stage_ms: float = 0.0
    write_ms: float = 0.0
    prove_ms: float = 0.0
