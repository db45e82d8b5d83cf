"""
Frames: length-prefixed, checksummed pieces on a TCP connection.

    offset  bytes  field (little-endian)
         0      4  magic ``AFW1``
         4      2  kind
         6      2  low 16 bits of the XXH3-64 of bytes 0 to 23 with this field 0
         8      4  sequence number inside the transfer
        12      4  transfer, drawn by the sender
        16      8  length of the payload
        24      8  XXH3-64 of the payload, seeded with the XXH3-64 of bytes 0 to 23

The header's own check keeps a damaged length from being waited for. A flipped bit anywhere, a
cut, a repeated, a missing or a foreign frame is an error, never a short or wrong tensor.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

import xxhash

from astraflow.errors import WireError

__all__ = ["HEADER_BYTES", "Frame", "receive_frame", "receive_frame_into", "send_frame"]

_MAGIC = b"AFW1"
_HEADER = struct.Struct("<4sHHIIQQ")
HEADER_BYTES = _HEADER.size
_MAX_PAYLOAD_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A frame that passed its checksum."""

    kind: int
    sequence: int
    transfer: int
    payload: memoryview


def send_frame(
    connection: socket.socket,
    kind: int,
    payload: bytes | memoryview,
    *,
    sequence: int = 0,
    transfer: int = 0,
) -> int:
    """Send one frame; return its bytes, header included."""
    size = memoryview(payload).nbytes
    head = _head(kind, sequence, transfer, size)
    header = head + struct.pack("<Q", _checksum(head, payload))
    # One system call for both, so that the header never waits for Nagle's timer.
    sent = connection.sendmsg([header, payload])
    if sent < len(header):
        connection.sendall(header[sent:])
        sent = len(header)
    if sent - len(header) < size:
        connection.sendall(memoryview(payload).cast("B")[sent - len(header) :])
    return len(header) + size


def receive_frame(connection: socket.socket) -> Frame:
    """
    Receive one frame into new memory.

    Raises:
        WireError: the connection ended inside it, it is damaged or it is no frame at all.
    """
    header = _receive_exactly(connection, memoryview(bytearray(HEADER_BYTES)))
    size = _payload_bytes(header)
    return _finish(connection, header, memoryview(bytearray(size)))


def receive_frame_into(connection: socket.socket, buffer: memoryview) -> Frame:
    """
    Receive one frame's payload to the front of ``buffer``.

    Raises:
        WireError: as for :func:`receive_frame`, or the payload is longer than ``buffer``.
    """
    header = _receive_exactly(connection, memoryview(bytearray(HEADER_BYTES)))
    size = _payload_bytes(header)
    if size > len(buffer):
        raise WireError(f"a frame of {size} bytes is longer than the {len(buffer)} announced")
    return _finish(connection, header, buffer[:size])


def _finish(connection: socket.socket, header: memoryview, payload: memoryview) -> Frame:
    _receive_exactly(connection, payload)
    _, kind, _, sequence, transfer, _, checksum = _HEADER.unpack(header)
    if _checksum(bytes(header[:24]), payload) != checksum:
        raise WireError(f"frame {sequence} of kind {kind} does not match its checksum")
    return Frame(kind=kind, sequence=sequence, transfer=transfer, payload=payload)


def _payload_bytes(header: memoryview) -> int:
    magic, kind, _, sequence, transfer, size, _ = _HEADER.unpack(header)
    if magic != _MAGIC:
        raise WireError("the peer does not speak this protocol: its first bytes are not `AFW1`")
    if bytes(header[:24]) != _head(kind, sequence, transfer, size):
        raise WireError(f"the header of frame {sequence} does not match its check")
    if size > _MAX_PAYLOAD_BYTES:
        raise WireError(f"a frame announces {size} bytes, more than {_MAX_PAYLOAD_BYTES}")
    return int(size)


def _receive_exactly(connection: socket.socket, buffer: memoryview) -> memoryview:
    done = 0
    while done < len(buffer):
        try:
            count = connection.recv_into(buffer[done:])
        except TimeoutError as error:
            raise WireError(f"the peer sent nothing for {connection.gettimeout()} s") from error
        if count == 0:
            raise WireError(f"the connection ended {len(buffer) - done} bytes too early")
        done += count
    return buffer


def _head(kind: int, sequence: int, transfer: int, size: int) -> bytes:
    """Return bytes 0 to 23 of a header, their own check included."""
    plain = _HEADER.pack(_MAGIC, kind, 0, sequence, transfer, size, 0)[:24]
    check = xxhash.xxh3_64_intdigest(plain) & 0xFFFF
    return _HEADER.pack(_MAGIC, kind, check, sequence, transfer, size, 0)[:24]


def _checksum(head: bytes, payload: bytes | memoryview) -> int:
    return xxhash.xxh3_64_intdigest(payload, seed=xxhash.xxh3_64_intdigest(head))
