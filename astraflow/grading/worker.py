"""
A process that grades formulas: frames in on stdin, frames out on stdout, killed from outside.

A frame in is a length (4 bytes, little endian), one byte for what is asked and a msgpack body; a
frame out is a length and the name of the outcome. The first frame out is empty and says that
computer algebra is loaded.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
from typing import BinaryIO

import msgspec

from astraflow.grading.reward import GoldCheck, GradeRequest
from astraflow.records import Outcome

__all__ = ["FRAME_HEADER", "encode_frame", "encode_task", "main", "read_exactly"]

FRAME_HEADER = struct.Struct("<I")
MEMORY_BYTES = 2 << 30
"""Address space of a worker; sympy and its parser take 400 MiB of it."""

_GRADE = b"g"
_CHECK = b"c"
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Grade until stdin closes."""
    _isolate()
    requests, replies = _take_pipes()
    from astraflow.grading.math_answers import grade

    grade(gold="\\frac{\\sqrt{3}}{3}", completion="\\boxed{\\frac{1}{\\sqrt{3}}}")
    _send(replies, b"")
    while (body := _receive(requests)) is not None:
        answer = _check if body[:1] == _CHECK else _grade
        _send(replies, answer(body[1:]).value.encode())


def _grade(body: bytes) -> Outcome:
    from astraflow.grading.math_answers import grade

    request = msgspec.msgpack.decode(body, type=GradeRequest)
    try:
        outcome, _ = grade(
            gold=request.gold,
            completion=request.completion,
            answer=request.answer or "boxed",
            truncated=request.truncated,
        )
    except (RecursionError, MemoryError):
        return Outcome.UNPARSABLE
    return outcome


def _check(body: bytes) -> Outcome:
    from astraflow.grading.math_answers import check_gold

    try:
        readable = check_gold(msgspec.msgpack.decode(body, type=GoldCheck).gold)
    except (RecursionError, MemoryError):
        readable = False
    return Outcome.RIGHT if readable else Outcome.GOLD_UNPARSABLE


def encode_task(task: GradeRequest | GoldCheck) -> bytes:
    """Say in one byte what is asked, and ask it."""
    kind = _CHECK if isinstance(task, GoldCheck) else _GRADE
    return kind + msgspec.msgpack.encode(task)


def encode_frame(body: bytes) -> bytes:
    """Put the length in front of a body."""
    return FRAME_HEADER.pack(len(body)) + body


def read_exactly(source: BinaryIO, size: int) -> bytes | None:
    """Read ``size`` bytes; None when the other end closed."""
    data = source.read(size)
    return data if data is not None and len(data) == size else None


def _isolate() -> None:
    """Die with the parent, leave Ctrl-C to it, and stay below the memory bound."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the two pipes for frames, and send stray prints of libraries to stderr."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return os.fdopen(os.dup(0), "rb"), replies


def _receive(requests: BinaryIO) -> bytes | None:
    header = read_exactly(requests, FRAME_HEADER.size)
    if header is None:
        return None
    return read_exactly(requests, FRAME_HEADER.unpack(header)[0])


def _send(replies: BinaryIO, body: bytes) -> None:
    replies.write(encode_frame(body))
    replies.flush()


if __name__ == "__main__":
    main()
