"""TcpReceiver: RaaS's end; fetches a version from every rank and prepares it in host memory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

import msgspec

from astraflow.errors import WireError
from astraflow.interfaces.weights import TensorPatch, TensorSpec, WeightUpdate
from astraflow.records import PolicyVersion
from astraflow.weights import protocol as p
from astraflow.wire.frames import HEADER_BYTES, receive_frame, receive_frame_into

__all__ = ["Rank", "TcpReceiver"]

T = TypeVar("T")

_WAIT_S = 20.0
_IO_S = 60.0
_FETCHES = 5
_STREAMS = 4
_ONE_STREAM_BYTES = 64 * 1024 * 1024


_Part: TypeAlias = "tuple[p.Offer, list[TensorPatch], int] | p.Gone"


class Rank:
    """
    One connection to one trainer rank; blocking, used from one thread at a time.

    Args:
        host: Where the rank listens.
        port: Its port.
        hello: Who we are.
    """

    def __init__(self, host: str, port: int, hello: p.Hello) -> None:
        self._address = (host, port)
        self._hello = hello
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self.manifest: p.ManifestMessage | None = None

    def wait(self, above: int) -> int:
        """Return the newest version, at once if it is above ``above``, else after a while."""
        wait = p.Wait(above=above, within_s=_WAIT_S)
        return p.exchange(self._connected(), p.Kind.WAIT, wait, p.Kind.NEWEST, p.Newest).version

    def describe(self) -> p.ManifestMessage:
        """
        Return what the rank serves.

        Raises:
            WireError: it has published nothing yet.
        """
        connection = self._connected()
        assert self.manifest is not None
        if not self.manifest.segments:
            # It was asked before the first version; a rank says what it serves to a HELLO only.
            self.manifest = p.exchange(
                connection, p.Kind.HELLO, self._hello, p.Kind.MANIFEST, p.ManifestMessage
            )
        if not self.manifest.segments:
            raise WireError("the sender has published nothing yet")
        return self.manifest

    def fetch(self, want: p.Want) -> _Part:
        """
        Fetch this rank's part of a version, every frame checked.

        The patches point into a buffer of this connection that the next fetch overwrites.

        Raises:
            WireError: a frame is damaged, missing, repeated, foreign or late.
        """
        connection = self._connected()
        self.describe()
        p.send(connection, p.Kind.WANT, want)
        frame = receive_frame(connection)
        if frame.kind == p.Kind.GONE:
            return p.decode(frame, p.Kind.GONE, p.Gone)
        offer = p.decode(frame, p.Kind.OFFER, p.Offer)
        wire_bytes = HEADER_BYTES + len(frame.payload)
        payload, frames = self._receive_payload(connection, offer)
        end_frame = receive_frame(connection)
        end = p.decode(end_frame, p.Kind.END, p.End)
        if end.size != offer.size or end.frames != frames:
            raise WireError(f"{frames} frames came, and the sender counts {end.frames}")
        wire_bytes += offer.size + (frames + 1) * HEADER_BYTES + len(end_frame.payload)
        return offer, self._patches(offer, payload), wire_bytes

    def tell(self, kind: p.Kind, message: p.Confirm | p.Refuse) -> None:
        """Confirm or refuse a version."""
        p.exchange(self._connected(), kind, message, p.Kind.NOTED, p.Noted)

    def disconnect(self) -> None:
        """End the connection; the next call makes a new one."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        self._socket = None

    def _connected(self) -> socket.socket:
        if self._socket is None:
            connection = socket.create_connection(self._address, timeout=_IO_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connection
            manifest = p.exchange(
                connection, p.Kind.HELLO, self._hello, p.Kind.MANIFEST, p.ManifestMessage
            )
            if manifest.run_id != self._hello.run_id:
                raise WireError(f"the sender serves run `{manifest.run_id}`")
            known = self.manifest.segments if self.manifest is not None else ()
            if known and manifest.segments != known:
                raise WireError("the sender's tensors changed between two connections")
            self.manifest = manifest
        return self._socket

    def _receive_payload(self, connection: socket.socket, offer: p.Offer) -> tuple[memoryview, int]:
        if len(self._buffer) < offer.size:
            self._buffer = bytearray(offer.size)
        whole = memoryview(self._buffer)[: offer.size]
        done = frames = 0
        while done < offer.size:
            frame = receive_frame_into(connection, whole[done:])
            if frame.kind != p.Kind.PAYLOAD or frame.transfer != offer.transfer:
                raise WireError("a foreign frame came inside a transfer")
            if frame.sequence != frames:
                raise WireError(f"frame {frame.sequence} came where {frames} was due")
            done += len(frame.payload)
            frames += 1
        return whole.toreadonly(), frames

    def _patches(self, offer: p.Offer, payload: memoryview) -> list[TensorPatch]:
        assert self.manifest is not None
        patches, at = [], 0
        for offered in offer.patches:
            if offered.segment >= len(self.manifest.segments):
                raise WireError(f"a patch names segment {offered.segment}, which does not exist")
            segment = self.manifest.segments[offered.segment]
            patches.append(
                TensorPatch(
                    spec=TensorSpec(name=segment.name, dtype=segment.dtype, shape=segment.shape),
                    first=segment.first,
                    count=segment.count,
                    encoding=offered.encoding,
                    payload=payload[at : at + offered.size],
                    base_hash=offered.base_hash,
                    target_hash=offered.target_hash,
                )
            )
            at += offered.size
        if at != offer.size:
            raise WireError(f"the patches take {at} bytes of {offer.size}")
        return patches


class TcpReceiver:
    """
    Fetches versions from all ranks; every method runs its sockets in threads of its own.

    Args:
        addresses: Host and port of each rank, in rank order.
        run_id: The run.
        token: The run's token.
        name: This instance's name in the ledger.
        streams: Connections to each rank; None takes one, and four where much is to come (count).
    """

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        *,
        run_id: str,
        token: str,
        name: str,
        streams: int | None = None,
    ) -> None:
        hello = p.Hello(token=token, run_id=run_id, name=name)
        most = streams or _STREAMS
        self._ranks = [[Rank(host, port, hello) for _ in range(most)] for host, port in addresses]
        self._streams = streams
        self._threads = ThreadPoolExecutor(max(most * len(addresses), 1), "weights")

    async def newest(self, *, held: PolicyVersion) -> WeightUpdate:
        """
        Wait for a version above ``held`` and fetch it, as a delta where the senders can.

        Raises:
            WireError: a sender is gone, late, foreign or sends damaged frames.
        """
        return await self._newest_above(held, held=held)

    async def whole(self, *, tensors: Sequence[str] = ()) -> WeightUpdate:
        """
        Fetch the newest version whole, or just some of its tensors; what cures a failed proof.

        Raises:
            WireError: as for :meth:`newest`.
        """
        return await self._newest_above(-1, held=-1, dense=tuple(tensors))

    async def confirm(self, version: PolicyVersion) -> None:
        """Tell the senders that ``version`` serves here."""
        await self._tell(p.Kind.CONFIRM, p.Confirm(version=version))

    async def refuse(self, version: PolicyVersion, why: str) -> None:
        """Tell the senders why ``version`` does not serve here; the next one will be full."""
        await self._tell(p.Kind.REFUSE, p.Refuse(version=version, why=why))

    def close(self) -> None:
        """End the connections; calls that wait raise."""
        self._disconnect()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _newest_above(
        self, above: int, *, held: int, dense: tuple[str, ...] = ()
    ) -> WeightUpdate:
        for _ in range(_FETCHES):
            version = await self._wait_above(above)
            update = await self._fetch(p.Want(version=version, held=held, dense=dense))
            if isinstance(update, WeightUpdate):
                return update
            above = update.newest - 1  # a rank has moved on, and the first one follows
        raise WireError(f"versions went by {_FETCHES} times while one was being fetched")

    async def _wait_above(self, held: int) -> int:
        while True:
            version = await self._in_thread(self._ranks[0][0].wait, held)
            if version > held:
                return version

    async def _fetch(self, want: p.Want) -> WeightUpdate | p.Gone:
        by_rank = await self._on_all([self._fetch_rank(rank, want) for rank in self._ranks])
        patches: list[TensorPatch] = []
        bases: set[int] = set()
        wire_bytes = 0
        for parts in by_rank:
            for part in parts:
                if isinstance(part, p.Gone):
                    return part
                offer, rank_patches, rank_bytes = part
                bases.add(offer.base)
                patches += rank_patches
                wire_bytes += rank_bytes
        # Ranks decide alike; should they not, the delta's base is what must be held.
        base = max(bases)
        return WeightUpdate(
            version=PolicyVersion(want.version),
            base=None if base < 0 else PolicyVersion(base),
            patches=tuple(patches),
            wire_bytes=wire_bytes,
        )

    async def _fetch_rank(self, streams: Sequence[Rank], want: p.Want) -> list[_Part]:
        """Fetch a rank's shares side by side; together they hold each of its segments once."""
        manifest = await self._in_thread(streams[0].describe)
        parts = self._streams or (len(streams) if manifest.size > _ONE_STREAM_BYTES else 1)
        wants = [msgspec.structs.replace(want, part=part, parts=parts) for part in range(parts)]
        shares = await self._on_all(
            [
                self._in_thread(stream.fetch, share)
                for stream, share in zip(streams, wants, strict=False)
            ]
        )
        offers = [share[0] for share in shares if not isinstance(share, p.Gone)]
        if len(offers) == len(shares):
            _require_whole(offers, manifest, want)
        return shares

    async def _tell(self, kind: p.Kind, message: p.Confirm | p.Refuse) -> None:
        await self._on_all([self._in_thread(rank[0].tell, kind, message) for rank in self._ranks])

    async def _on_all(self, calls: Sequence[Awaitable[T]]) -> list[T]:
        """Wait for every rank; raise only when all have ended, so that none disturbs a retry."""
        parts = await asyncio.gather(*calls, return_exceptions=True)
        whole: list[T] = []
        for part in parts:
            if isinstance(part, BaseException):
                raise part
            whole.append(part)
        return whole

    async def _in_thread(self, call: Callable[..., T], *arguments: object) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, call, *arguments)
        except (WireError, OSError) as error:
            # What is left in the streams belongs to the broken transfer: start afresh.
            self._disconnect()
            if isinstance(error, WireError):
                raise
            raise WireError(f"a sender of weights cannot be reached: {error}") from error

    def _disconnect(self) -> None:
        for rank in self._ranks:
            for stream in rank:
                stream.disconnect()


def _require_whole(offers: Sequence[p.Offer], manifest: p.ManifestMessage, want: p.Want) -> None:
    """
    Check that the shares of one rank fit together.

    Raises:
        WireError: they build on different versions, or a segment is missing or there twice.
    """
    if len({offer.base for offer in offers}) > 1:
        raise WireError(f"the shares of version {want.version} build on different versions")
    named = sorted(patch.segment for offer in offers for patch in offer.patches)
    due = [i for i, s in enumerate(manifest.segments) if not want.dense or s.name in want.dense]
    if named != due:
        raise WireError(
            f"version {want.version} came with {len(named)} segments of {len(due)}, or one twice"
        )
