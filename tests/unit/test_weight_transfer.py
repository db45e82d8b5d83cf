"""Deltas and the channel: exact, short, and never a version that was not published."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.errors import WireError
from astraflow.interfaces import Encoding, Shard, TensorPatch, TensorSpec, WeightUpdate
from astraflow.records import PolicyVersion
from astraflow.weights import TcpPublisher, TcpReceiver
from astraflow.weights.apply import apply_patch
from astraflow.weights.delta import Changes, encode, merge_changes, take_changes
from astraflow.weights.hashes import bytes_hash, segment_hash

_TORCH = {2: torch.bfloat16, 4: torch.float32}
_NAMES = {2: "BF16", 4: "F32"}


def _find(new: np.ndarray, old: np.ndarray) -> Changes:
    return take_changes(new, old.copy())


def _patch(new: np.ndarray, old: np.ndarray) -> TensorPatch:
    encoding, payload = encode(_find(new, old), new)
    spec = TensorSpec(name="w", dtype=_NAMES[new.itemsize], shape=(len(new),))
    return TensorPatch(
        spec=spec, first=0, count=len(new), encoding=encoding, payload=memoryview(payload),
        base_hash=0, target_hash=0,
    )  # fmt: skip


def _tensor(bits: np.ndarray) -> torch.Tensor:
    signed = {2: np.int16, 4: np.int32}[bits.itemsize]
    return torch.from_numpy(bits.view(signed).copy()).view(_TORCH[bits.itemsize])


def _bits(tensor: torch.Tensor) -> np.ndarray:
    width = tensor.element_size()
    integer = {2: torch.int16, 4: torch.int32}[width]
    return tensor.view(integer).numpy().view({2: np.uint16, 4: np.uint32}[width])


@settings(max_examples=150, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 3000),
    changed=st.floats(0, 1),
    wide=st.booleans(),
)
def test_patch_gives_the_new_bits_even_applied_twice(
    seed: int, size: int, changed: float, wide: bool
) -> None:
    rng = np.random.default_rng(seed)
    kind = np.uint32 if wide else np.uint16
    old = rng.integers(0, np.iinfo(kind).max, size, kind, endpoint=True)
    new = old.copy()
    where = rng.random(size) < changed
    new[where] = rng.integers(0, np.iinfo(kind).max, int(where.sum()), kind, endpoint=True)
    patch, target = _patch(new, old), _tensor(old)
    apply_patch(target, patch)
    assert (_bits(target) == new).all()
    apply_patch(target, patch)
    assert (_bits(target) == new).all()


def test_gaps_beyond_255_are_bridged() -> None:
    old = np.arange(200_000, dtype=np.uint16)
    new = old.copy()
    new[[0, 255, 511, 70_000, 199_999]] ^= 1
    patch, target = _patch(new, old), _tensor(old)
    apply_patch(target, patch)
    assert (_bits(target) == new).all()


def test_joined_changes_are_the_direct_difference() -> None:
    first = np.arange(100, dtype=np.uint16)
    second, third = first.copy(), first.copy()
    second[[3, 9]] += 1
    third[[3, 50]] += 2  # 3 changed twice, 9 went back
    joined = merge_changes(_find(second, first), _find(third, second), third)
    assert joined.positions.tolist() == [3, 9, 50]
    assert joined.values.tolist() == third[[3, 9, 50]].tolist()


def test_minus_zero_and_nan_payloads_are_changes() -> None:
    old = np.array([0x0000, 0x7FC0], np.uint16)
    new = np.array([0x8000, 0x7FC1], np.uint16)
    assert _find(new, old).positions.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("lr", "low", "high", "bound"), [(4e-7, 0.003, 0.006, 3.1), (1e-6, 0.008, 0.05, 2.3),
                                     (5e-6, 0.03, 0.13, 2.3)]
)  # fmt: skip
def test_bytes_a_changed_weight_on_real_adamw_updates(
    lr: float, low: float, high: float, bound: float
) -> None:
    torch.manual_seed(0)
    master = torch.nn.Parameter(torch.randn(2_000_000) * 0.02)
    optimizer = torch.optim.AdamW([master], lr=lr, weight_decay=0.0)
    for _ in range(20):  # warm moments
        master.grad = torch.randn_like(master)
        optimizer.step()
    before = master.detach().bfloat16()
    master.grad = torch.randn_like(master)
    optimizer.step()
    new, old = _bits(master.detach().bfloat16()), _bits(before)
    changes = _find(new, old)
    _, payload = encode(changes, new)
    assert low <= len(changes.positions) / len(new) <= high
    assert len(payload) / len(changes.positions) <= bound


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_broken_payload_is_refused_and_nothing_is_written(cut: int) -> None:
    old = np.zeros(100_000, np.uint16)
    new = old.copy()
    new[::50] = 1
    patch = _patch(new, old)
    assert patch.encoding is Encoding.L8
    target = _tensor(old)
    broken = TensorPatch(
        spec=patch.spec, first=0, count=patch.count, encoding=patch.encoding,
        payload=patch.payload[:-cut], base_hash=0, target_hash=0,
    )  # fmt: skip
    with pytest.raises(WireError, match="payload of `w` is broken"):
        apply_patch(target, broken)
    assert not _bits(target).any()


def test_hash_sees_every_bit_and_the_length() -> None:
    content = np.zeros(200_000, np.uint8)
    known = bytes_hash(content)
    for at in (0, 65_535, 65_536, 199_999):
        content[at] ^= 1
        assert bytes_hash(content) != known
        content[at] ^= 1
    assert bytes_hash(content) == known
    assert bytes_hash(content[:-1]) != known


# --- the channel


class Proxy:
    """Passes bytes on; the one at ``flip`` of the stream from the sender gets one bit changed."""

    def __init__(self, target: tuple[str, int], *, flip: int | None, cut: int | None) -> None:
        self._target = target
        self._flip, self._cut = flip, cut
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()[:2]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._target)
            threading.Thread(target=self._pump, args=(client, upstream), daemon=True).start()
            back = (upstream, client, self._flip, self._cut)
            self._flip = self._cut = None  # one fault a proxy
            threading.Thread(target=self._pump, args=back, daemon=True).start()

    def _pump(
        self, source: socket.socket, sink: socket.socket, flip: int | None = None,
        cut: int | None = None,
    ) -> None:  # fmt: skip
        passed = 0
        try:
            while data := source.recv(65536):
                piece = bytearray(data)
                if flip is not None and passed <= flip < passed + len(piece):
                    piece[flip - passed] ^= 4
                if cut is not None and passed + len(piece) > cut:
                    sink.sendall(piece[: max(cut - passed, 0)])
                    break
                sink.sendall(piece)
                passed += len(piece)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            end.close()

    def close(self) -> None:
        self._listener.close()


def _shards(weights: dict[str, torch.Tensor]) -> Iterator[Shard]:
    for name, values in weights.items():
        spec = TensorSpec(name=name, dtype="BF16", shape=tuple(values.shape))
        yield Shard(spec=spec, first=0, values=values.view(-1))


def _publisher(keep: int = 4, interval: int | None = None) -> TcpPublisher:
    return TcpPublisher(
        run_id="r", token="t", rank=0, keep_deltas=keep, full_sync_interval=interval
    )


def _install(engine: dict[str, torch.Tensor], update: WeightUpdate) -> None:
    for patch in update.patches:
        target = engine[patch.spec.name].view(-1)
        apply_patch(target, patch)
        assert segment_hash(target) == patch.target_hash


def _versions(count: int, size: int = 3000) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    versions = [{"a": (torch.randn(size) * 0.02).bfloat16(), "b": torch.ones(7).bfloat16()}]
    for _ in range(count - 1):
        last = {name: values.clone() for name, values in versions[-1].items()}
        last["a"][torch.randint(0, size, (20,))] *= 1.01
        versions.append(last)
    return versions


def _receiver(address: tuple[str, int], *, token: str = "t", run: str = "r") -> TcpReceiver:
    return TcpReceiver([address], run_id=run, token=token, name="x")


@pytest.mark.parametrize("behind", [1, 3, 7])
async def test_receiver_that_lags_gets_one_update_to_the_newest(behind: int) -> None:
    versions = _versions(10)
    publisher = _publisher(keep=4)
    receiver = _receiver(publisher.address)
    engine = {name: torch.zeros_like(values) for name, values in versions[0].items()}
    publisher.publish(PolicyVersion(1), _shards(versions[0]))
    _install(engine, await receiver.newest(held=PolicyVersion(-1)))
    for number in range(2, 2 + behind):
        publisher.publish(PolicyVersion(number), _shards(versions[number - 1]))
    update = await receiver.newest(held=PolicyVersion(1))
    while update.version < 1 + behind:
        update = await receiver.newest(held=PolicyVersion(1))
    assert (update.base is None) == (behind > 4)
    _install(engine, update)
    assert all(torch.equal(engine[n], v) for n, v in versions[behind].items())
    receiver.close()
    publisher.close()


async def test_refused_version_and_every_interval_are_sent_whole() -> None:
    versions = _versions(4)
    publisher = _publisher(interval=3)
    receiver = _receiver(publisher.address)
    bases = []
    for number in (1, 2, 3):
        publisher.publish(PolicyVersion(number), _shards(versions[number - 1]))
        update = await receiver.newest(held=PolicyVersion(number - 1 or -1))
        bases.append(update.base)
        await receiver.confirm(update.version)
    await receiver.refuse(PolicyVersion(3), "a test says so")
    publisher.publish(PolicyVersion(4), _shards(versions[3]))
    bases.append((await receiver.newest(held=PolicyVersion(3))).base)
    assert bases == [None, 1, None, None]
    assert publisher.ledger.rows(newest=4)["x"]["lag"] == 1
    receiver.close()
    publisher.close()


@pytest.mark.parametrize(("token", "run"), [("wrong", "r"), ("t", "another")])
async def test_stranger_is_refused_before_anything_is_said(token: str, run: str) -> None:
    publisher = _publisher()
    publisher.publish(PolicyVersion(1), _shards(_versions(1)[0]))
    receiver = _receiver(publisher.address, token=token, run=run)
    with pytest.raises(WireError, match="refuses"):
        await receiver.newest(held=PolicyVersion(-1))
    receiver.close()
    publisher.close()


async def test_named_tensors_alone_can_be_had_whole() -> None:
    publisher = _publisher()
    versions = _versions(2)
    publisher.publish(PolicyVersion(1), _shards(versions[0]))
    receiver = _receiver(publisher.address)
    update = await receiver.whole(tensors=("b",))
    assert [patch.spec.name for patch in update.patches] == ["b"]
    receiver.close()
    publisher.close()


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[TcpPublisher, list[dict[str, torch.Tensor]]]]:
    versions = _versions(3, size=400)
    publisher = _publisher()
    for number, weights in enumerate(versions, start=1):
        publisher.publish(PolicyVersion(number), _shards(weights))
    yield publisher, versions
    publisher.close()


@settings(max_examples=200, derandomize=True, deadline=None)
@given(at=st.integers(0, 2200), cut=st.booleans(), held=st.sampled_from([-1, 1, 2]))
def test_whatever_the_wire_does_only_published_versions_are_installed(
    served: tuple[TcpPublisher, list[dict[str, torch.Tensor]]], at: int, cut: bool, held: int
) -> None:
    import asyncio

    publisher, versions = served
    start = versions[held - 1] if held > 0 else versions[0]
    engine = {name: values.clone() for name, values in start.items()}
    proxy = Proxy(publisher.address, flip=None if cut else at, cut=at if cut else None)

    async def fetch() -> None:
        receiver = _receiver(proxy.address)
        for _ in range(4):
            try:
                update = await receiver.newest(held=PolicyVersion(held))
                break
            except WireError:
                continue  # the fault was noticed; a new connection has none
        else:
            raise AssertionError("the receiver did not recover")
        _install(engine, update)
        receiver.close()

    asyncio.run(fetch())
    proxy.close()
    assert all(torch.equal(engine[name], values) for name, values in versions[2].items())
