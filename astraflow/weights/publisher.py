"""TcpPublisher: one trainer rank's end; serves its snapshot to any number of receivers."""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from astraflow.errors import WireError
from astraflow.interfaces.weights import PublishReport, Shard
from astraflow.records import PolicyVersion
from astraflow.weights import protocol as p
from astraflow.weights.ledger import Ledger
from astraflow.weights.snapshot import Prepared, Snapshot
from astraflow.wire.auth import authorized
from astraflow.wire.frames import Frame, receive_frame, send_frame

__all__ = ["TcpPublisher"]

log = logging.getLogger(__name__)

# Large enough that header and system call cost nothing, small enough to stay in the cache.
_FRAME_BYTES = 4 * 1024 * 1024
_HELLO_WITHIN_S = 10.0
_IDLE_S = 120.0
_MAX_RECEIVERS = 1024
_MAX_PARTS = 64


class TcpPublisher:
    """
    Serves the versions of one rank.

    Args:
        run_id: Connections of another run are refused.
        token: The run's token; asked for before anything else is said.
        rank: Rank of the trainer.
        keep_deltas: Versions back that a delta can start from; 0 sends every version whole.
        full_sync_interval: Versions from one whole send to the next; None for never.
        memory: Where the published bits of shards on a GPU are kept to find deltas.
        host: Interface to listen on.
    """

    def __init__(
        self,
        *,
        run_id: str,
        token: str,
        rank: int,
        keep_deltas: int = 0,
        full_sync_interval: int | None = None,
        memory: Literal["gpu", "host"] = "gpu",
        host: str = "127.0.0.1",
    ) -> None:
        self._run_id = run_id
        self._token = token
        self._rank = rank
        self._snapshot = Snapshot(
            keep_deltas=keep_deltas, full_sync_interval=full_sync_interval, memory=memory
        )
        self._published = threading.Condition()
        self._served_version = -1
        self._prover = ThreadPoolExecutor(1, thread_name_prefix="prover")
        self._connections: set[socket.socket] = set()
        self._closed = False
        self.ledger = Ledger()
        self.encoded: dict[str, Any] = {}
        """Bytes by encoding and times (ms) of the newest version that can be fetched."""
        self._listener = socket.create_server((host, 0), backlog=64)
        threading.Thread(target=self._accept, name="weights", daemon=True).start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that receivers connect to."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def publish(self, version: PolicyVersion, shards: Iterable[Shard]) -> PublishReport:
        """
        Take a copy of this rank's shards and offer it; hashing and encoding go on behind.

        Nothing can be fetched before the first call, which a receiver sees as an empty manifest.

        Raises:
            WireError: the shards are not those of the version before.
        """
        started = time.perf_counter()
        changed_frac = self._snapshot.take(version, shards)
        self._prover.submit(self._prove, int(version))
        return PublishReport(
            version=version,
            changed_frac=changed_frac,
            full_bytes=self._snapshot.full_bytes,
            blocked_s=time.perf_counter() - started,
        )

    def close(self) -> None:
        """Stop serving; receivers see their connections end."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closing alone does not wake `accept`
        self._listener.close()
        self._prover.shutdown(wait=False, cancel_futures=True)
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- inside

    def _prove(self, version: int) -> None:
        started = time.perf_counter()
        self._snapshot.prove()
        proved = time.perf_counter()
        self.encoded = self._snapshot.encode_delta()
        self.encoded |= {
            "version": version,
            "hash_ms": round((proved - started) * 1000, 2),
            "encode_ms": round((time.perf_counter() - proved) * 1000, 2),
        }
        with self._published:
            self._served_version = max(self._served_version, version)
            self._published.notify_all()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, peer = self._listener.accept()
            except OSError:
                return  # closed by `close`
            if len(self._connections) >= _MAX_RECEIVERS:
                connection.close()
                continue
            self._connections.add(connection)
            threading.Thread(
                target=self._serve, args=(connection, str(peer)), name="weights", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        name = peer
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(_HELLO_WITHIN_S)
                name = self._greet(connection)
                connection.settimeout(_IDLE_S)
                while not self._closed:
                    self._answer(connection, receive_frame(connection), name)
        except (WireError, OSError) as error:
            if not self._closed:
                log.info("the connection of %s ended: %s", name, error)
        finally:
            self._connections.discard(connection)

    def _greet(self, connection: socket.socket) -> str:
        hello = p.decode(receive_frame(connection), p.Kind.HELLO, p.Hello)
        if not authorized(hello.token, self._token):
            p.send(connection, p.Kind.ERROR, p.Failure(why="the token of the run is wrong"))
            raise WireError("a peer came with a wrong token")
        if hello.run_id != self._run_id:
            p.send(connection, p.Kind.ERROR, p.Failure(why=f"this is run `{self._run_id}`"))
            raise WireError(f"a peer asked for run `{hello.run_id}`")
        self._describe(connection)
        self.ledger.hear(hello.name)
        return hello.name

    def _describe(self, connection: socket.socket) -> None:
        message = p.ManifestMessage(
            run_id=self._run_id, rank=self._rank, segments=self._snapshot.segments
        )
        p.send(connection, p.Kind.MANIFEST, message)

    def _answer(self, connection: socket.socket, frame: Frame, name: str) -> None:
        self.ledger.hear(name)
        if frame.kind == p.Kind.HELLO:
            self._describe(connection)
        elif frame.kind == p.Kind.WAIT:
            self._answer_wait(connection, p.decode(frame, p.Kind.WAIT, p.Wait))
        elif frame.kind == p.Kind.WANT:
            self._answer_want(connection, p.decode(frame, p.Kind.WANT, p.Want), name)
        elif frame.kind == p.Kind.CONFIRM:
            confirm = p.decode(frame, p.Kind.CONFIRM, p.Confirm)
            self.ledger.confirm(name, confirm.version)
            p.send(connection, p.Kind.NOTED, p.Noted())
        else:
            refuse = p.decode(frame, p.Kind.REFUSE, p.Refuse)
            self.ledger.refuse(name, refuse.version, refuse.why)
            log.warning("%s refuses version %d: %s", name, refuse.version, refuse.why)
            p.send(connection, p.Kind.NOTED, p.Noted())

    def _answer_wait(self, connection: socket.socket, wait: p.Wait) -> None:
        with self._published:
            self._published.wait_for(
                lambda: self._served_version > wait.above or self._closed,
                min(wait.within_s, _IDLE_S / 2),
            )
            version = self._served_version
        p.send(connection, p.Kind.NEWEST, p.Newest(version=version))

    def _answer_want(self, connection: socket.socket, want: p.Want, name: str) -> None:
        with self._published:
            # A rank may be a moment behind the one that announced the version.
            self._published.wait_for(lambda: self._served_version >= want.version, _IDLE_S / 2)
        if not 0 <= want.part < want.parts <= _MAX_PARTS:
            raise WireError(f"a peer asked for share {want.part} of {want.parts}")
        with self._snapshot.offer(
            held=want.held,
            dense=want.dense,
            full=self.ledger.must_be_full(name),
            part=want.part,
            parts=want.parts,
        ) as prepared:
            if prepared.version != want.version:
                p.send(connection, p.Kind.GONE, p.Gone(newest=prepared.version))
                return
            self.ledger.sent(name, _send_update(connection, prepared))


def _send_update(connection: socket.socket, prepared: Prepared) -> int:
    transfer = secrets.randbits(32)
    offer = p.Offer(
        version=prepared.version,
        base=prepared.base,
        patches=prepared.patches,
        size=prepared.size,
        transfer=transfer,
    )
    sent = p.send(connection, p.Kind.OFFER, offer)
    sequence = 0
    for piece in _pieces(prepared.payloads):
        sent += send_frame(connection, p.Kind.PAYLOAD, piece, sequence=sequence, transfer=transfer)
        sequence += 1
    return sent + p.send(connection, p.Kind.END, p.End(size=prepared.size, frames=sequence))


def _pieces(payloads: Iterable[bytes | memoryview]) -> Iterable[bytes | memoryview]:
    """Cut large payloads and join small ones, so that frames have a good size without copies."""
    small: list[bytes | memoryview] = []
    size = 0
    for payload in payloads:
        view = memoryview(payload)
        if view.nbytes >= _FRAME_BYTES // 8:
            if small:
                yield b"".join(small)
                small, size = [], 0
            for at in range(0, view.nbytes, _FRAME_BYTES):
                yield view[at : at + _FRAME_BYTES]
            continue
        if not view.nbytes:
            continue
        small.append(payload)
        size += view.nbytes
        if size >= _FRAME_BYTES:
            yield b"".join(small)
            small, size = [], 0
    if small:
        yield b"".join(small)
