"""The kernels of weight transfer, against the loops of the CPU. Needs a CUDA device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("triton")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from astraflow.interfaces import Shard, TensorSpec
from astraflow.weights.apply import apply_patches
from astraflow.weights.gpu_apply import Piece, Staged
from astraflow.weights.gpu_bits import GpuBits
from astraflow.weights.hashes import PIECE_BYTES, segment_hash, segment_hashes
from astraflow.weights.host_bits import HostBits

pytestmark = pytest.mark.gpu

_COUNTS = [10_000, 5, 4096, 300_000, 8193, 300, 1]


def _random(counts: list[int], seed: int) -> list[torch.Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.integers(-32768, 32767, n, dtype=np.int16)) for n in counts]


def _shards(tensors: list[torch.Tensor]) -> list[Shard]:
    return [
        Shard(
            spec=TensorSpec(name=str(number), dtype="BF16", shape=(len(tensor),)),
            first=0,
            values=tensor.view(torch.bfloat16),
        )
        for number, tensor in enumerate(tensors)
    ]


def _train(tensors: list[torch.Tensor], share: float, rng: np.random.Generator) -> None:
    for tensor in tensors:
        where: NDArray[np.bool_] = rng.random(len(tensor)) < share
        flips = rng.choice([1, 3, 257], int(where.sum())).astype(np.int16)
        tensor[torch.from_numpy(where)] ^= torch.from_numpy(flips)


@pytest.mark.parametrize("size", [1, 8, 30, PIECE_BYTES, PIECE_BYTES + 24, 5 * PIECE_BYTES + 6])
def test_the_gpu_gives_the_hash_of_the_cpu(size: int) -> None:
    content = torch.from_numpy(np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8))
    assert segment_hash(content.cuda()) == segment_hash(content)


@pytest.mark.parametrize("memory", ["gpu", "host"])
def test_the_gpu_writes_the_payloads_of_the_cpu(memory: str) -> None:
    rng = np.random.default_rng(0)
    host = _random(_COUNTS, seed=1)
    live = [tensor.cuda() for tensor in host]
    gpu_bits = GpuBits(_shards(live), memory=memory)  # type: ignore[arg-type]
    host_bits = HostBits(_shards(host))
    steps = []
    for share in (0.01, 0.0005, 0.9, 0.0):
        _train(host, share, rng)
        for target, source in zip(live, host, strict=True):
            target.copy_(source)
        step = gpu_bits.advance(_shards(live)), host_bits.advance(_shards(host))
        steps.append(step)
        assert gpu_bits.encode(step[0]) == host_bits.encode(step[1])
        assert gpu_bits.hashes() == host_bits.hashes()
    on_gpu, on_host = steps[0]
    for more_gpu, more_host in steps[1:]:
        on_gpu = gpu_bits.merge(on_gpu, more_gpu)
        on_host = host_bits.merge(on_host, more_host)
    assert gpu_bits.encode(on_gpu) == host_bits.encode(on_host)


@pytest.mark.parametrize("share", [0.0005, 0.01, 0.3, 0.9])
def test_payloads_land_on_the_gpu_bit_for_bit_and_twice_does_no_harm(share: float) -> None:
    old = _random(_COUNTS, seed=2)
    new = [tensor.clone() for tensor in old]
    bits = HostBits(_shards(new))
    _train(new, share, np.random.default_rng(3))
    encoded = bits.encode(bits.advance(_shards(new)))
    live = [tensor.cuda() for tensor in old]
    pieces, payload = [], b""
    for target, (encoding, content) in zip(live, encoded, strict=True):
        pieces.append(
            Piece(
                name="w",
                encoding=encoding,
                offset=len(payload),
                size=len(bytes(content)),
                target=target,
            )
        )
        payload += bytes(content)
    if not payload:
        pytest.skip("nothing changed")
    memory = torch.frombuffer(bytearray(payload), dtype=torch.uint8).pin_memory()
    staged = Staged(memory, pieces, torch.device("cuda"))
    staged.write()
    staged.write()
    assert all(torch.equal(a.cpu(), b) for a, b in zip(live, new, strict=True))
    assert segment_hashes(live) == segment_hashes(new)
    assert apply_patches([], []) == []
