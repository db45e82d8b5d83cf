"""The codec and the hash, byte by byte, and the sender's snapshot built on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from astraflow.errors import WireError
from astraflow.interfaces import Encoding, Shard, TensorPatch, TensorSpec
from astraflow.learning.policy import load_policy
from astraflow.testing import tiny_model_path
from astraflow.weights.apply import apply_patch
from astraflow.weights.delta import Changes, encode, merge_changes, take_changes
from astraflow.weights.hashes import PIECE_BYTES, bytes_hash, segment_hash
from astraflow.weights.snapshot import Prepared, Snapshot

_NAMES = {2: "BF16", 4: "F32"}
_TORCH = {2: torch.bfloat16, 4: torch.float32}
_KINDS = [np.uint16, np.uint32]

_Bits = NDArray[np.unsignedinteger]


def _tensor(bits: _Bits) -> torch.Tensor:
    signed = {2: np.int16, 4: np.int32}[bits.itemsize]
    return torch.from_numpy(bits.view(signed).copy()).view(_TORCH[bits.itemsize])


def _bits(tensor: torch.Tensor) -> _Bits:
    integer, kind = {2: (torch.int16, np.uint16), 4: (torch.int32, np.uint32)}[
        tensor.element_size()
    ]
    return tensor.contiguous().view(integer).numpy().view(kind)


def _wrap(payload: bytes | memoryview, encoding: Encoding, like: _Bits) -> TensorPatch:
    spec = TensorSpec(name="w", dtype=_NAMES[like.itemsize], shape=(len(like),))
    return TensorPatch(
        spec=spec, first=0, count=len(like), encoding=encoding, payload=memoryview(payload),
        base_hash=0, target_hash=0,
    )  # fmt: skip


def _find(new: _Bits, old: _Bits) -> Changes:
    return take_changes(new, old.copy())


def _offer(snapshot: Snapshot, held: int) -> Prepared:
    with snapshot.offer(held=held) as prepared:
        return prepared


def _patch(new: _Bits, old: _Bits) -> TensorPatch:
    encoding, payload = encode(_find(new, old), new)
    return _wrap(payload, encoding, new)


def _change(old: _Bits, where: list[int] | NDArray[np.bool_], mask: int = 1) -> _Bits:
    new = old.copy()
    new[where] ^= old.dtype.type(mask)
    return new


def _updates(lr: float, *, dtype: torch.dtype, steps: int = 1) -> tuple[_Bits, _Bits]:
    """Return published bits before and after real AdamW steps on 2 M weights of N(0, 0.02)."""
    torch.manual_seed(0)
    weights = torch.nn.Parameter((torch.randn(2_000_000) * 0.02).to(dtype))
    optimizer = torch.optim.AdamW([weights], lr=lr, weight_decay=0.01)
    for _ in range(8):  # warm moments
        weights.grad = torch.randn_like(weights)
        optimizer.step()
    before = weights.detach().bfloat16().clone()
    for _ in range(steps):
        weights.grad = torch.randn_like(weights)
        optimizer.step()
    return _bits(weights.detach().bfloat16()), _bits(before)


# --- layout, worked out by hand


def test_l8_is_gaps_low_bytes_and_exceptions() -> None:
    old = np.zeros(1000, np.uint16)
    new = old.copy()
    new[2] = 0x0005  # only the low byte
    new[300] = 0x4107  # the top byte as well; 298 from entry 0, so one bridge of 255
    encoding, payload = encode(_find(new, old), new)
    assert encoding is Encoding.L8
    # entries 2, 257 (bridge), 300: gaps 3 (from -1), 255, 43; exception: entry 2 has top 0x41
    assert bytes(payload) == (
        b"\x03\0\0\0" b"\x01\0\0\0" b"\x03\xff\x2b" b"\x05\x00\x07" b"\x02\0\0\0" b"\x41"
    )  # fmt: skip


def test_t16_is_tiles_offsets_low_bytes_and_exceptions() -> None:
    old = np.zeros(200_000, np.uint16)
    new = old.copy()
    new[0] = 0x0001
    new[65_536 + 258] = 0x0203  # second tile, offset 258
    new[199_999] = 0x0004  # fourth tile, offset 3391
    encoding, payload = encode(_find(new, old), new)
    assert encoding is Encoding.T16
    assert bytes(payload) == (
        b"\x04\0\0\0" b"\x03\0\0\0" b"\x01\0\0\0"
        b"\x01\0\0\0" b"\x01\0\0\0" b"\0\0\0\0" b"\x01\0\0\0"
        b"\0\0" b"\x02\x01" b"\x3f\x0d" b"\x01\x03\x04" b"\x01\0\0\0" b"\x02"
    )  # fmt: skip


def test_nothing_changed_is_no_bytes() -> None:
    same = np.arange(100, dtype=np.uint16)
    assert encode(_find(same, same), same) == (Encoding.SAME, b"")


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    ("every", "expected"),
    # 2 bytes an entry up to gaps of 255, then 3 for L8; T16 has 3 everywhere; whole is 2
    [(1, Encoding.DENSE), (2, Encoding.L8), (100, Encoding.L8), (700, Encoding.T16)],
)
def test_encoding_with_the_fewest_bytes_is_taken(
    kind: type[np.unsignedinteger], every: int, expected: Encoding
) -> None:
    old = np.zeros(400_000, kind)
    patch = _patch(_change(old, [*range(0, len(old), every)]), old)
    assert patch.encoding is expected


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**31), size=st.integers(1, 4000), changed=st.floats(0, 1),
    top=st.floats(0, 1), kind=st.sampled_from(_KINDS),
)  # fmt: skip
def test_no_encoding_is_longer_than_sending_everything(
    seed: int, size: int, changed: float, top: float, kind: type[np.unsignedinteger]
) -> None:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, np.iinfo(kind).max, size, kind, endpoint=True)
    new = _change(old, rng.random(size) < changed)
    new[rng.random(size) < changed * top] ^= kind(1 << (new.itemsize * 8 - 1))
    encoding, payload = encode(_find(new, old), new)
    assert memoryview(payload).nbytes <= new.nbytes
    target = _tensor(old)
    apply_patch(target, _wrap(payload, encoding, new))
    assert (_bits(target) == new).all()


# --- exactness


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("size", [1, 3, 8, 255, 256, 257, 65_536, 65_537])
def test_first_and_last_element_arrive(kind: type[np.unsignedinteger], size: int) -> None:
    old = np.arange(size, dtype=kind)
    new = _change(old, [size - 1])
    new[0] ^= kind(1 << 15)
    target = _tensor(old)
    apply_patch(target, _patch(new, old))
    assert (_bits(target) == new).all()


@pytest.mark.parametrize(
    ("kind", "specials"),
    [
        (np.uint16, [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7FC1, 0xFFFF, 0x0001]),
        (np.uint32, [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC00001, 2**32 - 1, 1]),
    ],
)
def test_signed_zeros_infinities_nan_payloads_and_denormals_keep_their_bits(
    kind: type[np.unsignedinteger], specials: list[int]
) -> None:
    # every special value turns into every other one
    old = np.repeat(np.array(specials, kind), len(specials))
    new = np.tile(np.array(specials, kind), len(specials))
    target = _tensor(old)
    apply_patch(target, _patch(new, old))
    assert (_bits(target) == new).all()


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**31), changed=st.floats(0.001, 0.6), done=st.floats(0, 1),
    kind=st.sampled_from(_KINDS),
)  # fmt: skip
def test_patch_over_a_half_applied_one_gives_the_new_bits(
    seed: int, changed: float, done: float, kind: type[np.unsignedinteger]
) -> None:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, np.iinfo(kind).max, 5000, kind, endpoint=True)
    new = old.copy()
    where = rng.random(5000) < changed
    new[where] = rng.integers(0, np.iinfo(kind).max, int(where.sum()), kind, endpoint=True)
    # some bytes of some elements were written before the first try ended
    mixed = old.view(np.uint8).copy()
    written = rng.random(len(mixed)) < done
    mixed[written] = new.view(np.uint8)[written]
    target = _tensor(mixed.view(kind))
    patch = _patch(new, old)
    for _ in range(2):
        apply_patch(target, patch)
        assert (_bits(target) == new).all()


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 2**31), versions=st.integers(2, 6), changed=st.floats(0, 0.5),
    kind=st.sampled_from(_KINDS),
)  # fmt: skip
def test_merged_changes_lead_from_the_oldest_version_to_the_newest(
    seed: int, versions: int, changed: float, kind: type[np.unsignedinteger]
) -> None:
    rng = np.random.default_rng(seed)
    first = rng.integers(0, 4, 700).astype(kind)
    bits, merged = first, None
    for _ in range(versions):
        after = bits.copy()
        where = rng.random(700) < changed
        after[where] = rng.integers(0, 4, int(where.sum())).astype(kind)  # may go back
        changes = _find(after, bits)
        merged = changes if merged is None else merge_changes(merged, changes, after)
        bits = after
    assert isinstance(merged, Changes)
    direct = _find(bits, first)
    # all that differ are in it, each with its oldest bits; what went back may be in it too
    assert set(direct.positions) <= set(merged.positions)
    assert (np.diff(merged.positions) > 0).all()
    assert (merged.values == bits[merged.positions]).all()
    top = 8 * (bits.itemsize - 1)
    differs = (bits[merged.positions] ^ first[merged.positions]) >> top != 0
    assert (merged.tops | ~differs).all()
    encoding, payload = encode(merged, bits)
    target = _tensor(first)
    apply_patch(target, _wrap(payload, encoding, bits))
    assert (_bits(target) == bits).all()


# --- size on real updates


@pytest.mark.parametrize(
    ("lr", "dtype", "steps", "low", "high", "bound"),
    [
        # bfloat16 masters: a low rate after one update, the published rate after a version of four
        (1e-6, torch.bfloat16, 1, 0.0035, 0.005, 3.1),
        (5e-6, torch.bfloat16, 4, 0.01, 0.04, 2.3),
        # float32 masters after a version of four
        (1e-6, torch.float32, 4, 0.01, 0.05, 2.3),
        (4e-6, torch.float32, 4, 0.08, 0.13, 2.3),
    ],
)
def test_bytes_a_changed_weight_for_a_whole_version_of_updates(
    lr: float, dtype: torch.dtype, steps: int, low: float, high: float, bound: float
) -> None:
    new, old = _updates(lr, dtype=dtype, steps=steps)
    changes = _find(new, old)
    encoding, payload = encode(changes, new)
    changed = len(changes.positions)
    assert low <= changed / len(new) <= high
    assert memoryview(payload).nbytes / changed <= bound
    target = _tensor(old)
    apply_patch(target, _wrap(payload, encoding, new))
    assert (_bits(target) == new).all()


def test_float32_master_moves_what_bfloat16_storage_rounds_away() -> None:
    # 1000 steps of +5e-6 on 0.01904296875, whose spacing in bfloat16 is 2**-13 = 1.2e-4
    step = 5e-6
    master = torch.tensor([0.01904296875])
    stored = master.bfloat16()
    versions = [master.bfloat16()]
    for _ in range(1000):
        master += step
        stored += step
        versions.append(master.bfloat16())
    assert stored.item() == 0.01904296875
    assert versions[-1].item() == 0.0240478515625
    bits = [_bits(version) for version in versions]
    empty = sum(encode(_find(b, a), b)[0] is Encoding.SAME for a, b in
                zip(bits, bits[1:], strict=False))  # fmt: skip
    # (0.0240478515625 - 0.01904296875) / 2**-13 = 41 versions change it, 959 are empty and valid
    assert empty == 959


# --- broken payloads


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize(
    ("every", "encoding", "counts"), [(50, Encoding.L8, (0, 4)), (900, Encoding.T16, (0, 4, 8))]
)
def test_payload_of_another_length_than_its_counts_is_refused_and_nothing_is_written(
    kind: type[np.unsignedinteger], every: int, encoding: Encoding, counts: tuple[int, ...]
) -> None:
    old = np.zeros(100_000, kind)
    whole = _patch(_change(old, [*range(0, len(old), every)]), old)
    assert whole.encoding is encoding
    payload = bytes(whole.payload)
    broken = [b"", payload[:3], payload[:-1], payload + b"\0"]
    for at in counts:  # each count of the header, off by one and very large
        broken.append(payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :])
        broken.append(payload[: at + 3] + b"\xff" + payload[at + 4 :])
    for content in broken:
        target = _tensor(old)
        with pytest.raises(WireError, match=f"the {encoding.name} payload of `w` is broken"):
            apply_patch(target, _wrap(content, encoding, old))
        assert not _bits(target).any()


def _l8(gaps: bytes, low: bytes, ordinals: list[int], tops: bytes) -> bytes:
    counts = np.array([len(gaps), len(tops)], "<u4").tobytes()
    return counts + gaps + low + np.array(ordinals, "<u4").tobytes() + tops


@pytest.mark.parametrize(
    ("payload", "encoding", "why"),
    [
        (_l8(b"\x0b", b"\x01", [], b""), Encoding.L8, "beyond the segment's 10 elements"),
        (_l8(b"\x00", b"\x01", [], b""), Encoding.L8, "a gap is 0"),
        (_l8(b"\x01", b"\x01", [1], b"\x01"), Encoding.L8, "an entry beyond 1"),
        (_l8(b"", b"", [0], b"\x01"), Encoding.L8, "an entry beyond 0"),
        (b"\1\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\x0a\0\x01", Encoding.T16, "beyond the segment's 10"),
        (b"\1\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\x01\0\x01", Encoding.T16, "count 2 entries instead"),
        (b"\0" * 19, Encoding.DENSE, "19 bytes instead of 20"),
    ],
)
def test_payload_that_points_outside_is_refused_and_nothing_is_written(
    payload: bytes, encoding: Encoding, why: str
) -> None:
    like = np.zeros(10, np.uint16)
    target = _tensor(like)
    with pytest.raises(WireError, match=why):
        apply_patch(target, _wrap(payload, encoding, like))
    assert not _bits(target).any()


def test_patch_for_a_segment_of_another_size_is_refused() -> None:
    patch = _patch(_change(np.zeros(10, np.uint16), [3]), np.zeros(10, np.uint16))
    with pytest.raises(WireError, match="10 elements meets a segment of 11"):
        apply_patch(_tensor(np.zeros(11, np.uint16)), patch)


# --- hashes


def test_hash_is_a_tree_of_padded_pieces_and_stays_what_it_was() -> None:
    content = np.arange(256, dtype=np.uint8).repeat(1200)  # 307,200 bytes: one piece and a rest
    pieces = [content[:PIECE_BYTES].tobytes(), content[PIECE_BYTES:].tobytes()]
    digests = [xxhash.xxh3_64_intdigest(piece.ljust(PIECE_BYTES, b"\0")) for piece in pieces]
    tail = (307_200).to_bytes(8, "little")
    by_hand = xxhash.xxh3_64_intdigest(b"".join(d.to_bytes(8, "little") for d in digests) + tail)
    assert bytes_hash(content) == by_hand == 0x0DFB606134772199
    assert bytes_hash(np.zeros(0, np.uint8)) != bytes_hash(np.zeros(1, np.uint8))


def test_any_single_flipped_bit_changes_the_hash() -> None:
    content = np.random.default_rng(0).integers(0, 256, 300, np.uint8)
    known = bytes_hash(content)
    seen = {known}
    for bit in range(300 * 8):
        content[bit // 8] ^= 1 << (bit % 8)
        seen.add(bytes_hash(content))
        content[bit // 8] ^= 1 << (bit % 8)
    assert len(seen) == 300 * 8 + 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_hash_of_a_tensor_is_that_of_its_bytes(dtype: torch.dtype) -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    content = values.view(torch.uint8).numpy()
    assert segment_hash(values) == bytes_hash(content)
    assert segment_hash(values.view(10, 100)) == bytes_hash(content)


def test_swapped_pieces_and_swapped_zeros_are_seen() -> None:
    content = np.zeros(2 * PIECE_BYTES, np.uint8)
    content[:PIECE_BYTES] = 1
    assert bytes_hash(content) != bytes_hash(content[::-1].copy())
    negative = torch.zeros(4)
    negative[2] = -0.0
    assert segment_hash(negative) != segment_hash(torch.zeros(4))


# --- the snapshot


def _shard(values: torch.Tensor, *, name: str = "w", first: int = 0) -> Shard:
    dtype = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64"}[values.dtype]
    spec = TensorSpec(name=name, dtype=dtype, shape=(values.numel(),))
    return Shard(spec=spec, first=first, values=values)


def _apply(target: torch.Tensor, prepared: Prepared) -> None:
    for offered, payload in zip(prepared.patches, prepared.payloads, strict=True):
        apply_patch(target, _wrap(payload, Encoding(offered.encoding), _bits(target)))
        assert segment_hash(target) == offered.target_hash


def test_every_step_since_the_held_version_arrives_and_not_only_the_last() -> None:
    weights = torch.zeros(10, 4)
    snapshot = Snapshot(keep_deltas=4, full_sync_interval=None)
    snapshot.take(1, [_shard(weights.view(-1))])
    held = weights.view(-1).clone()
    weights[0] += 1  # step 1 moves only row 0, step 2 nothing, step 3 only row 9
    snapshot.take(2, [_shard(weights.view(-1))])
    snapshot.take(3, [_shard(weights.view(-1))])
    weights[9] += 1
    snapshot.take(4, [_shard(weights.view(-1))])
    prepared = _offer(snapshot, 1)
    assert (prepared.base, prepared.version) == (1, 4)
    _apply(held, prepared)
    assert torch.equal(held.view(10, 4), weights)


def test_version_without_a_change_is_sent_as_no_bytes_with_its_proof() -> None:
    weights = torch.ones(100)
    snapshot = Snapshot(keep_deltas=4, full_sync_interval=None)
    snapshot.take(1, [_shard(weights)])
    assert snapshot.take(2, [_shard(weights)]) == 0.0
    prepared = _offer(snapshot, 1)
    assert (prepared.version, prepared.base, prepared.size) == (2, 1, 0)
    (patch,) = prepared.patches
    assert patch.encoding == Encoding.SAME
    assert patch.base_hash == patch.target_hash == segment_hash(weights)


def test_live_weights_may_move_on_while_a_version_is_being_sent() -> None:
    for keep in (0, 4):
        weights = torch.ones(100)
        snapshot = Snapshot(keep_deltas=keep, full_sync_interval=None)
        snapshot.take(1, [_shard(weights)])
        offered = _offer(snapshot, -1)
        weights += 1
        snapshot.take(2, [_shard(weights)])
        target = torch.zeros(100)
        _apply(target, offered)
        assert torch.equal(target, torch.ones(100))


@pytest.mark.parametrize("keep", [1, 3])
def test_changes_reach_back_exactly_as_many_versions_as_are_kept(keep: int) -> None:
    weights = torch.zeros(1000)
    snapshot = Snapshot(keep_deltas=keep, full_sync_interval=None)
    for version in range(1, 8):
        weights[version] += 1
        snapshot.take(version, [_shard(weights)])
    bases = {held: _offer(snapshot, held).base for held in range(1, 7)}
    assert {held for held, base in bases.items() if base == held} == set(range(7 - keep, 7))
    assert {base for held, base in bases.items() if held < 7 - keep} == {-1}


def test_receiver_that_slept_through_the_full_version_is_sent_the_next_one_whole() -> None:
    weights = torch.zeros(1000)
    snapshot = Snapshot(keep_deltas=8, full_sync_interval=10)
    for version in range(8, 13):
        weights[version] += 1
        snapshot.take(version, [_shard(weights)])
        if version == 9:
            assert _offer(snapshot, 8).base == 8
        if version == 10:
            assert _offer(snapshot, 9).base == -1
    # at 12: who holds 9 never had version 10 whole, who holds 10 had
    assert _offer(snapshot, 9).base == -1
    assert _offer(snapshot, 10).base == 10


def test_shards_of_another_shape_or_type_are_refused() -> None:
    snapshot = Snapshot(keep_deltas=4, full_sync_interval=None)
    snapshot.take(1, [_shard(torch.zeros(8))])
    with pytest.raises(WireError, match="changed between two versions"):
        snapshot.take(2, [_shard(torch.zeros(9))])
    with pytest.raises(WireError, match="changed between two versions"):
        snapshot.take(2, [_shard(torch.zeros(8).bfloat16())])
    with pytest.raises(WireError, match="`w` is F64, which has no place on the wire"):
        Snapshot(keep_deltas=0, full_sync_interval=None).take(
            1, [_shard(torch.zeros(8, dtype=torch.float64))]
        )


def test_tied_head_travels_once_with_its_embedding() -> None:
    policy = load_policy(str(tiny_model_path()), dtype=torch.float32)
    assert policy.model.config.tie_word_embeddings
    parameters = {policy.names[n]: p.detach() for n, p in policy.model.named_parameters()}
    assert not [name for name in parameters if "lm_head" in name]
    embedding = parameters["model.embed_tokens.weight"]
    snapshot = Snapshot(keep_deltas=2, full_sync_interval=None)
    for version in (1, 2):
        snapshot.take(version, [_shard(p.view(-1), name=n) for n, p in parameters.items()])
        held = embedding.clone()
        embedding[3] += 0.5
    snapshot.take(3, [_shard(p.view(-1), name=n) for n, p in parameters.items()])
    prepared = _offer(snapshot, 2)
    changed = [patch.segment for patch in prepared.patches if patch.size]
    assert [snapshot.segments[index].name for index in changed] == ["model.embed_tokens.weight"]
    (payload,) = [payload for payload in prepared.payloads if len(payload)]
    encoding = Encoding(prepared.patches[changed[0]].encoding)
    apply_patch(held.view(-1), _wrap(payload, encoding, _bits(held.view(-1))))
    assert torch.equal(held, policy.model.lm_head.weight)
