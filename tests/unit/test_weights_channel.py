"""The channel over real sockets, with a wire that flips, cuts, repeats, reorders and lies."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from astraflow.errors import ProofError, StaleBaseError, WireError
from astraflow.interfaces import Shard, TensorSpec, WeightUpdate
from astraflow.records import PolicyVersion
from astraflow.weights import TcpPublisher, TcpReceiver
from astraflow.weights import protocol as p
from astraflow.weights.apply import apply_patch
from astraflow.weights.hashes import bytes_hash, segment_hash
from astraflow.wire.frames import HEADER_BYTES, receive_frame, send_frame

Weights = dict[str, torch.Tensor]

_SIZES = {"embed": 400, "norm": 7, "bias": 1}


def _versions(count: int) -> list[Weights]:
    """Return versions 1 to ``count`` at those indices; each changes a few elements."""
    torch.manual_seed(1)
    versions: list[Weights] = [{}]
    weights = {name: (torch.randn(size) * 0.02).bfloat16() for name, size in _SIZES.items()}
    for number in range(count):
        weights = {name: values.clone() for name, values in weights.items()}
        weights["embed"][torch.randint(0, 400, (12,))] *= 1.01
        weights["norm"][number % 7] += 1
        versions.append(weights)
    return versions


def _shards(weights: Weights) -> Iterator[Shard]:
    for name, values in weights.items():
        spec = TensorSpec(name=name, dtype="BF16", shape=(values.numel(),))
        yield Shard(spec=spec, first=0, values=values)


def _publisher(*, keep: int = 4, interval: int | None = None, rank: int = 0) -> TcpPublisher:
    return TcpPublisher(
        run_id="r", token="t", rank=rank, keep_deltas=keep, full_sync_interval=interval
    )


class Engine:
    """Weights that take updates as the contract says: base first, proof of all, version last."""

    def __init__(self, sizes: dict[str, int] = _SIZES) -> None:
        self.weights = {name: torch.zeros(n, dtype=torch.bfloat16) for name, n in sizes.items()}
        self.version = PolicyVersion(-1)
        self.damaged = False

    def lose_a_bit(self) -> None:
        self.weights["bias"].view(torch.int16)[0] ^= 4
        self.damaged = True

    def install(self, update: WeightUpdate) -> None:
        if update.base is not None and update.base != self.version:
            raise StaleBaseError("it holds another version")
        wrong = []
        for patch in update.patches:
            target = self.weights[patch.spec.name][patch.first : patch.first + patch.count]
            apply_patch(target, patch)
            if segment_hash(target) != patch.target_hash:
                wrong.append(patch.spec.name)
        if wrong:
            self.damaged = True
            raise ProofError("not proved", tensors=wrong)
        self.version = update.version
        self.damaged = False

    def holds(self, weights: Weights) -> bool:
        return all(
            torch.equal(self.weights[name].view(torch.int16), values.view(torch.int16))
            for name, values in weights.items()
        )


@dataclass(frozen=True)
class Fault:
    """What happens to one frame; ``at`` says where in it."""

    kind: str
    at: int = 0


class Proxy:
    """
    Passes frames on, in each direction but for the faults.

    Frames of a direction are counted over all connections, from 0.
    """

    def __init__(
        self, target: Callable[[], tuple[str, int]], *, down: dict[int, Fault],
        up: dict[int, Fault],
    ) -> None:  # fmt: skip
        self._target = target
        self._faults = {"down": down, "up": up}
        self._counts = {"down": 0, "up": 0}
        self._earlier: list[bytes] = []
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            self._end(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._target())
                except OSError:
                    client.close()
                    continue
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._open.add(end)
                for way in ((client, server, "up"), (server, client, "down")):
                    threading.Thread(target=self._pump, args=way, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        held = b""
        try:
            while frame := self._read(source):
                with self._lock:
                    fault = self._faults[way].pop(self._counts[way], None)
                    self._counts[way] += 1
                if fault is not None and fault.kind == "swap" and not held:
                    held = frame
                    continue
                for piece in self._spoil(frame, fault):
                    sink.sendall(piece)
                sink.sendall(held)
                held = b""
                if fault is not None and fault.kind == "cut":
                    break
        except OSError:
            pass  # one end is gone; so is the other, below
        self._end(source)
        self._end(sink)

    def _spoil(self, frame: bytes, fault: Fault | None) -> list[bytes]:
        self._earlier.append(frame)
        if fault is None or fault.kind == "swap":
            return [frame]
        if fault.kind == "flip":
            bit = fault.at % (len(frame) * 8)
            return [_flipped(frame, bit)]
        if fault.kind == "cut":
            return [frame[: fault.at % len(frame)]]
        if fault.kind == "repeat":
            return [frame, frame]
        if fault.kind == "foreign":
            return [_of_another_transfer(frame), frame]
        if fault.kind == "replay":
            return [self._earlier[fault.at % len(self._earlier)], frame]
        assert fault.kind == "drop"
        return []

    @staticmethod
    def _read(source: socket.socket) -> bytes:
        frame = b""
        wanted = HEADER_BYTES
        while len(frame) < wanted:
            piece = source.recv(wanted - len(frame))
            if not piece:
                return b""
            frame += piece
            if len(frame) == HEADER_BYTES:
                wanted += int.from_bytes(frame[16:24], "little")
        return frame

    def _end(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()
        self._open.discard(end)


def _flipped(frame: bytes, bit: int) -> bytes:
    spoiled = bytearray(frame)
    spoiled[bit // 8] ^= 1 << (bit % 8)
    return bytes(spoiled)


def _of_another_transfer(frame: bytes) -> bytes:
    """Return the frame with another transfer number and a right checksum."""
    kind, transfer = int.from_bytes(frame[4:6], "little"), int.from_bytes(frame[12:16], "little")
    near, far = socket.socketpair()
    with near, far:
        send_frame(
            near, kind, frame[HEADER_BYTES:], transfer=transfer ^ 1,
            sequence=int.from_bytes(frame[8:12], "little"),
        )  # fmt: skip
        return far.recv(1 << 20)


@pytest.fixture(autouse=True)
def _small_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    # so that 800 bytes of weights take several frames, as real ones do
    monkeypatch.setattr("astraflow.weights.publisher._FRAME_BYTES", 256)


@pytest.fixture
def close() -> Iterator[Callable[..., None]]:
    """Close publishers, receivers and proxies after the test."""
    opened: list[TcpPublisher | TcpReceiver | Proxy] = []
    yield lambda *things: opened.extend(things)
    for thing in reversed(opened):
        thing.close()


def _receiver(*addresses: tuple[str, int], name: str = "x", token: str = "t", run: str = "r",
              ) -> TcpReceiver:  # fmt: skip
    return TcpReceiver(addresses, run_id=run, token=token, name=name)


async def _catch_up(
    engine: Engine, receiver: TcpReceiver, newest: int, versions: list[Weights], *, tries: int
) -> None:
    """Bring the engine to ``newest`` as RaaS does; whatever it holds must have been published."""
    for _ in range(tries):
        if engine.version == newest:
            return
        try:
            update = await receiver.newest(held=engine.version)
            try:
                engine.install(update)
            except ProofError as error:
                await receiver.refuse(update.version, error.what)
                engine.install(await receiver.whole())
            assert engine.holds(versions[engine.version])
            await receiver.confirm(engine.version)
        except WireError:
            # the wire's fault was noticed, and the engine still holds what it held
            assert engine.version < 0 or engine.damaged or engine.holds(versions[engine.version])
    assert engine.version == newest


# --- a friendly wire


@pytest.mark.parametrize("behind", [1, 5, 11])
async def test_receiver_that_lags_is_sent_one_delta_or_everything(
    behind: int, close: Callable[..., None]
) -> None:
    versions = _versions(12)
    publisher = _publisher(keep=8)
    receiver = _receiver(publisher.address)
    close(publisher, receiver)
    engine = Engine()
    publisher.publish(PolicyVersion(1), _shards(versions[1]))
    full = await receiver.newest(held=engine.version)
    engine.install(full)
    for number in range(2, 2 + behind):
        publisher.publish(PolicyVersion(number), _shards(versions[number]))
    update = await receiver.newest(held=engine.version)
    while update.version < 1 + behind:  # the last one is still being hashed
        update = await receiver.newest(held=engine.version)
    engine.install(update)
    assert engine.holds(versions[1 + behind])
    if behind <= 8:
        assert (update.base, len(update.patches)) == (1, 3)
        assert update.wire_bytes < full.wire_bytes
    else:
        assert update.base is None


async def test_receivers_of_different_speed_each_get_what_they_need(
    close: Callable[..., None],
) -> None:
    versions = _versions(6)
    publisher = _publisher(keep=4)
    quick, slow = _receiver(publisher.address, name="q"), _receiver(publisher.address, name="s")
    close(publisher, quick, slow)
    engines = Engine(), Engine()
    for number in range(1, 7):
        publisher.publish(PolicyVersion(number), _shards(versions[number]))
        await _catch_up(engines[0], quick, number, versions, tries=1)
        if number in (1, 4):
            await _catch_up(engines[1], slow, number, versions, tries=1)
    rows = publisher.ledger.rows(newest=6)
    assert (rows["q"]["version"], rows["q"]["lag"]) == (6, 0)
    assert (rows["s"]["version"], rows["s"]["lag"]) == (4, 2)
    assert rows["q"]["sent_bytes"] > 0


@pytest.mark.parametrize("keep", [0, 4])
def test_slow_reader_of_everything_never_sees_two_versions_mixed(
    keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.weights.publisher._FRAME_BYTES", 1 << 20)
    # 16 MB, more than the sockets' buffers hold: the sender stands still in the middle
    weights = {"w": torch.zeros(8_000_000, dtype=torch.bfloat16)}
    publisher = _publisher(keep=keep)
    publisher.publish(PolicyVersion(1), _shards(weights))
    with socket.create_connection(publisher.address, timeout=20) as connection:
        hello = p.Hello(token="t", run_id="r", name="slow")
        p.exchange(connection, p.Kind.HELLO, hello, p.Kind.MANIFEST, p.ManifestMessage)
        p.send(connection, p.Kind.WANT, p.Want(version=1, held=-1))
        offer = p.decode(receive_frame(connection), p.Kind.OFFER, p.Offer)
        for version in (2, 3):
            weights["w"] += 1
            publisher.publish(PolicyVersion(version), _shards(weights))
        content = bytearray()
        while len(content) < offer.size:
            content += receive_frame(connection).payload
        p.decode(receive_frame(connection), p.Kind.END, p.End)
    publisher.close()
    received = np.frombuffer(content, np.uint8)
    assert not received.any()
    assert bytes_hash(received) == offer.patches[0].target_hash


async def test_every_tenth_version_goes_out_whole(close: Callable[..., None]) -> None:
    versions = _versions(21)
    publisher = _publisher(keep=8, interval=10)
    receiver = _receiver(publisher.address)
    close(publisher, receiver)
    engine, whole = Engine(), []
    for number in range(1, 22):
        publisher.publish(PolicyVersion(number), _shards(versions[number]))
        update = await receiver.newest(held=engine.version)
        engine.install(update)
        if update.base is None:
            whole.append(number)
    assert whole == [1, 10, 20]
    assert engine.holds(versions[21])


async def test_full_mode_sends_every_version_whole(close: Callable[..., None]) -> None:
    versions = _versions(3)
    publisher = _publisher(keep=0)
    receiver = _receiver(publisher.address)
    close(publisher, receiver)
    engine = Engine()
    for number in (1, 2, 3):
        publisher.publish(PolicyVersion(number), _shards(versions[number]))
        update = await receiver.newest(held=engine.version)
        assert update.base is None
        engine.install(update)
    assert engine.holds(versions[3])


async def test_refused_version_makes_the_next_one_whole_until_one_is_confirmed(
    close: Callable[..., None],
) -> None:
    versions = _versions(4)
    publisher = _publisher()
    receiver = _receiver(publisher.address)
    close(publisher, receiver)
    bases = []
    for number in (1, 2, 3, 4):
        publisher.publish(PolicyVersion(number), _shards(versions[number]))
        bases.append((await receiver.newest(held=PolicyVersion(number - 1 or -1))).base)
        if number == 2:
            await receiver.refuse(PolicyVersion(2), "a test says so")
            assert "a test says so" in publisher.ledger.rows(newest=2)["x"]["refused"]
        else:
            await receiver.confirm(PolicyVersion(number))
    assert bases == [None, 1, None, 3]


async def test_memory_that_lost_a_bit_is_found_and_cured_by_the_differing_tensor(
    close: Callable[..., None],
) -> None:
    versions = _versions(2)
    publisher = _publisher()
    receiver = _receiver(publisher.address)
    close(publisher, receiver)
    engine = Engine()
    publisher.publish(PolicyVersion(1), _shards(versions[1]))
    engine.install(await receiver.newest(held=engine.version))
    publisher.publish(PolicyVersion(2), _shards(versions[2]))
    engine.lose_a_bit()
    with pytest.raises(ProofError) as raised:
        engine.install(await receiver.newest(held=engine.version))
    assert raised.value.tensors == ("bias",)
    assert engine.version == 1
    cure = await receiver.whole(tensors=raised.value.tensors)
    assert [patch.spec.name for patch in cure.patches] == ["bias"]
    assert cure.version == 2
    engine.install(cure)
    assert engine.holds(versions[2])


# --- several ranks


def _cut(weights: Weights, rank: int) -> Iterator[Shard]:
    """Give rank 0 five sevenths of each tensor, rounded down, and rank 1 the rest."""
    for name, values in weights.items():
        middle = values.numel() * 5 // 7
        first, last = (0, middle) if rank == 0 else (middle, values.numel())
        if last > first:
            spec = TensorSpec(name=name, dtype="BF16", shape=(values.numel(),))
            yield Shard(spec=spec, first=first, values=values[first:last])


async def test_uneven_shards_of_two_ranks_make_one_update(close: Callable[..., None]) -> None:
    versions = _versions(3)
    ranks = [_publisher(rank=rank) for rank in (0, 1)]
    receiver = _receiver(*(rank.address for rank in ranks))
    close(*ranks, receiver)
    engine = Engine()
    for number in (1, 2, 3):
        for rank in (1, 0):  # the order of the ranks does not matter
            ranks[rank].publish(PolicyVersion(number), _cut(versions[number], rank))
        update = await receiver.newest(held=engine.version)
        # embed and norm have two segments, bias (5/7 of 1 is 0) has one
        assert len(update.patches) == 5
        engine.install(update)
        assert engine.holds(versions[number])
        await receiver.confirm(engine.version)
    assert all(rank.ledger.rows(newest=3)["x"]["version"] == 3 for rank in ranks)


async def test_streams_side_by_side_bring_each_segment_once(close: Callable[..., None]) -> None:
    versions = _versions(3)
    publisher = _publisher()
    receiver = TcpReceiver([publisher.address], run_id="r", token="t", name="x", streams=3)
    close(publisher, receiver)
    engine = Engine()
    for number in (1, 2, 3):
        publisher.publish(PolicyVersion(number), _shards(versions[number]))
        update = await receiver.newest(held=engine.version)
        names = [patch.spec.name for patch in update.patches]
        assert sorted(names) == sorted(versions[number])
        engine.install(update)
        assert engine.holds(versions[number])
        await receiver.confirm(engine.version)
    assert publisher.ledger.rows(newest=3)["x"]["sent_bytes"] > 0


async def test_receiver_that_comes_before_the_first_version_waits_for_it(
    close: Callable[..., None],
) -> None:
    versions = _versions(1)
    publisher = _publisher()
    receiver = _receiver(publisher.address)
    close(publisher, receiver)
    with pytest.raises(WireError, match="published nothing"):
        await receiver._in_thread(receiver._ranks[0][0].describe)
    waiting = asyncio.create_task(receiver.newest(held=PolicyVersion(-1)))
    publisher.publish(PolicyVersion(1), _shards(versions[1]))
    engine = Engine()
    engine.install(await waiting)
    assert engine.holds(versions[1])


async def test_rank_that_moved_on_makes_the_receiver_wait_for_the_first_one(
    close: Callable[..., None],
) -> None:
    versions = _versions(2)
    ranks = [_publisher(rank=rank) for rank in (0, 1)]
    receiver = _receiver(*(rank.address for rank in ranks))
    close(*ranks, receiver)
    ranks[0].publish(PolicyVersion(1), _cut(versions[1], 0))
    for number in (1, 2):
        ranks[1].publish(PolicyVersion(number), _cut(versions[number], 1))
    fetch = asyncio.create_task(receiver.newest(held=PolicyVersion(-1)))
    # version 1 is gone at rank 1; the receiver has asked when rank 1's ledger has heard from it
    while not ranks[1].ledger.rows(newest=2):
        await asyncio.sleep(0)
    assert not fetch.done()
    ranks[0].publish(PolicyVersion(2), _cut(versions[2], 0))
    update = await fetch
    engine = Engine()
    engine.install(update)
    assert (engine.version, engine.holds(versions[2])) == (2, True)


async def test_damaged_rank_spoils_only_the_try(close: Callable[..., None]) -> None:
    versions = _versions(2)
    ranks = [_publisher(rank=rank) for rank in (0, 1)]
    # the fourth frame from rank 1 is inside its first payload
    proxy = Proxy(lambda: ranks[1].address, down={3: Fault("flip", 300)}, up={})
    receiver = _receiver(ranks[0].address, proxy.address)
    close(*ranks, receiver, proxy)
    for rank in (0, 1):
        ranks[rank].publish(PolicyVersion(1), _cut(versions[1], rank))
    with pytest.raises(WireError):
        await receiver.newest(held=PolicyVersion(-1))
    engine = Engine()
    engine.install(await receiver.newest(held=PolicyVersion(-1)))
    assert engine.holds(versions[1])


# --- strangers and restarts


@pytest.mark.parametrize(
    ("token", "run", "why"),
    [("", "r", "the token of the run is wrong"), ("T", "r", "token"), ("t", "s", "run `r`")],
)
async def test_stranger_learns_neither_names_nor_weights(
    token: str, run: str, why: str, close: Callable[..., None]
) -> None:
    publisher = _publisher()
    publisher.publish(PolicyVersion(1), _shards(_versions(1)[1]))
    receiver = _receiver(publisher.address, token=token, run=run, name="stranger")
    close(publisher, receiver)
    with pytest.raises(WireError, match=why):
        await receiver.newest(held=PolicyVersion(-1))
    assert "stranger" not in publisher.ledger.rows(newest=1)


def test_bytes_that_are_no_frame_end_only_their_own_connection() -> None:
    publisher = _publisher()
    publisher.publish(PolicyVersion(1), _shards(_versions(1)[1]))
    for noise in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\0" * 32, b"AFW1" + b"\xff" * 60):
        with socket.create_connection(publisher.address, timeout=20) as connection:
            connection.sendall(noise)
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    hello = p.Hello(token="t", run_id="r", name="x")
    with socket.create_connection(publisher.address, timeout=20) as connection:
        answer = p.exchange(connection, p.Kind.HELLO, hello, p.Kind.MANIFEST, p.ManifestMessage)
    assert [segment.name for segment in answer.segments] == list(_SIZES)
    publisher.close()


async def test_restarted_sender_is_asked_anew_and_sends_everything(
    close: Callable[..., None],
) -> None:
    versions = _versions(3)
    now = [_publisher()]
    proxy = Proxy(lambda: now[-1].address, down={}, up={})
    receiver = _receiver(proxy.address)
    engine = Engine()
    now[0].publish(PolicyVersion(1), _shards(versions[1]))
    await _catch_up(engine, receiver, 1, versions, tries=1)
    now[0].close()
    now.append(_publisher())
    close(now[1], proxy, receiver)
    now[1].publish(PolicyVersion(3), _shards(versions[3]))
    with pytest.raises(WireError):
        await receiver.newest(held=engine.version)
    update = await receiver.newest(held=engine.version)
    assert update.base is None
    engine.install(update)
    assert engine.holds(versions[3])


async def test_restarted_sender_with_another_model_is_refused(close: Callable[..., None]) -> None:
    now = [_publisher()]
    proxy = Proxy(lambda: now[-1].address, down={}, up={})
    receiver = _receiver(proxy.address)
    now[0].publish(PolicyVersion(1), _shards(_versions(1)[1]))
    await receiver.newest(held=PolicyVersion(-1))
    now[0].close()
    now.append(_publisher())
    close(now[1], proxy, receiver)
    now[1].publish(PolicyVersion(2), _shards({"other": torch.zeros(3).bfloat16()}))
    said = []
    for _ in range(2):
        with pytest.raises(WireError) as raised:
            await receiver.newest(held=PolicyVersion(1))
        said.append(raised.value.what)
    assert "the sender's tensors changed between two connections" in said


async def test_sender_that_falls_silent_is_an_error_after_the_deadline(
    close: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow.weights.receiver._IO_S", 0.2)
    publisher = _publisher()
    publisher.publish(PolicyVersion(1), _shards(_versions(1)[1]))
    # frames from the sender: MANIFEST, NEWEST, OFFER, PAYLOAD 0 to 4, END
    proxy = Proxy(lambda: publisher.address, down={8: Fault("drop")}, up={})
    receiver = _receiver(proxy.address)
    close(publisher, proxy, receiver)
    with pytest.raises(WireError, match="sent nothing for 0.2 s"):
        await receiver.newest(held=PolicyVersion(-1))
    assert (await receiver.newest(held=PolicyVersion(-1))).version == 1


# --- a hostile wire


@pytest.mark.parametrize("kind", ["flip", "cut", "repeat", "swap", "foreign", "replay", "drop"])
@pytest.mark.parametrize("frame", [2, 3, 4])
async def test_fault_inside_a_transfer_is_noticed_at_once(
    kind: str, frame: int, close: Callable[..., None]
) -> None:
    versions = _versions(1)
    publisher = _publisher()
    publisher.publish(PolicyVersion(1), _shards(versions[1]))
    proxy = Proxy(lambda: publisher.address, down={frame: Fault(kind, 0)}, up={})
    receiver = _receiver(proxy.address)
    close(publisher, proxy, receiver)
    with pytest.raises(WireError):
        await receiver.newest(held=PolicyVersion(-1))
    engine = Engine()
    await _catch_up(engine, receiver, 1, versions, tries=1)


# Down, frames 0 and 1 of a connection answer HELLO and WAIT; a frame that is held back or lost
# there is a silence, which has its own test. So those two faults are drawn apart.
_ANYWHERE = st.builds(
    Fault, st.sampled_from(["flip", "cut", "repeat", "foreign", "replay"]), st.integers(0, 40_000)
)
_UP = st.builds(Fault, st.sampled_from(["flip", "cut"]), st.integers(0, 2_000))
_PUBLISHED = _versions(6)


@settings(
    max_examples=300, derandomize=True, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(
    down=st.dictionaries(st.integers(0, 40), _ANYWHERE, max_size=5),
    up=st.dictionaries(st.integers(0, 25), _UP, max_size=3),
    asked=st.lists(st.booleans(), min_size=5, max_size=5),
    lost_bits=st.lists(st.integers(0, 6), max_size=2),
    keep=st.sampled_from([0, 1, 4]),
    interval=st.sampled_from([None, 3]),
)
@example(
    down={2: Fault("swap"), 14: Fault("drop")}, up={}, asked=[True] * 5, lost_bits=[1], keep=4,
    interval=None,
)  # fmt: skip
def test_whatever_happens_only_published_versions_serve_and_the_newest_arrives(
    down: dict[int, Fault], up: dict[int, Fault], asked: list[bool], lost_bits: list[int],
    keep: int, interval: int | None,
) -> None:  # fmt: skip
    tries = len(down) + len(up) + 2
    publisher = _publisher(keep=keep, interval=interval)
    proxy = Proxy(lambda: publisher.address, down=dict(down), up=dict(up))

    async def live() -> None:
        receiver = _receiver(proxy.address)
        engine = Engine()
        for number in range(1, 7):
            publisher.publish(PolicyVersion(number), _shards(_PUBLISHED[number]))
            if number in lost_bits and engine.version > 0:
                engine.lose_a_bit()
            elif number == 6 or asked[number - 1]:
                await _catch_up(engine, receiver, number, _PUBLISHED, tries=tries)
        await _catch_up(engine, receiver, 6, _PUBLISHED, tries=tries)
        receiver.close()

    try:
        asyncio.run(live())
    finally:
        proxy.close()
        publisher.close()
