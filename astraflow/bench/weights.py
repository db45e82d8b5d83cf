"""
A new version from diff to applied and proved: delta, full and the plain way, in one run.

Sender and receiver are the ones of a run, in one process, over loopback TCP. The plain way is
what most toolkits do: compare two host copies with numpy, send a 4-byte index and the value of
each change, rewrite the whole safetensors file, load it again.
"""

from __future__ import annotations

import asyncio
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow.errors import RecipeError
from astraflow.interfaces import Encoding, Shard, TensorSpec
from astraflow.recipe.models import ModelFacts, find_facts
from astraflow.records import PolicyVersion
from astraflow.weights import TcpPublisher, TcpReceiver
from astraflow.weights.apply import apply_patches
from astraflow.weights.delta import encoded_sizes, take_changes
from astraflow.weights.hashes import segment_hashes

__all__ = ["Round", "Trained", "measure_weights"]

Shapes = dict[str, tuple[int, ...]]

_STD = 0.02  # of freshly trained transformers' weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One version's way, in seconds."""

    publish_s: float
    """The trainer is held up: shards compared, or copied."""
    encode_s: float
    """Hashes and encoding, behind the trainer."""
    fetch_s: float
    """From published to whole in the receiver's memory; waits for encoding."""
    apply_s: float
    """Written onto the live weights and every segment hashed."""
    total_s: float
    """From the first to the last."""
    wire_bytes: int


def measure_weights(
    *, model: str | None, params: int, changed: float, rounds: int, device: str, seed: int
) -> dict[str, Any]:
    """
    Measure all ways and return every figure.

    Args:
        model: Shapes of this model; None takes a Qwen3-like one of ``params`` weights.
        params: Weights when there is no model (count).
        changed: Share of weights that a version changes, 0 to 1.
        rounds: Versions measured of each kind, after one that warms up (count).
        device: ``cpu`` or ``cuda``.
        seed: Of weights and changes.

    Raises:
        RecipeError: the model is unknown.
    """
    shapes = _shapes(model, params)
    world = _World(shapes, changed=changed, device=torch.device(device), seed=seed)
    delta = asyncio.run(_rounds(world, mode="delta", rounds=rounds))
    full = asyncio.run(_rounds(world, mode="full", rounds=rounds))
    plain = [_plain(world) for _ in range(rounds)]
    medians = {
        "delta": statistics.median(r.total_s for r in delta),
        "full": statistics.median(r.total_s for r in full),
        "plain": statistics.median(r["total_s"] for r in plain),
    }
    wire = statistics.median(r.wire_bytes for r in delta)
    return {
        "params": world.elements,
        "tensors": len(shapes),
        "changed_frac": world.changed_elements / world.elements,
        "device": torch.cuda.get_device_name() if device == "cuda" else f"{_cores()} CPU cores",
        "bytes_per_changed": {
            **{
                encoding.name.lower(): size / world.changed_elements
                for encoding, size in world.sizes.items()
            },
            "index_value": 6.0,
            "wire": wire / world.changed_elements,
        },
        "median_s": medians,
        "faster_than_full": medians["full"] / medians["delta"],
        "faster_than_plain": medians["plain"] / medians["delta"],
        "hash_s": world.hash_s(),
        "delta_rounds": [asdict(r) for r in delta],
        "full_rounds": [asdict(r) for r in full],
        "plain_rounds": plain,
    }


class Trained:
    """
    A trainer's live weights, which move between two neighboring versions.

    Args:
        tensors: bfloat16 weights of the first version, by name, on one device.
        changed: Share of weights that the second version changes, 0 to 1.
        seed: Of the changes.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, changed: float, seed: int) -> None:
        self.specs = [
            TensorSpec(name=name, dtype="BF16", shape=tuple(tensor.shape))
            for name, tensor in tensors.items()
        ]
        self.trained = [tensor.reshape(-1) for tensor in tensors.values()]
        self.device = self.trained[0].device
        self.elements = sum(tensor.numel() for tensor in self.trained)
        self._generator = torch.Generator(self.device).manual_seed(seed)
        self._rate = self._find_rate(changed)
        self.changed_elements = 0
        self.sizes: dict[Encoding, int] = {}
        # Two neighboring versions that take turns: making a new one takes longer than moving it.
        moved = [self._moved(tensor, self._rate) for tensor in self.trained]
        self._versions = ([tensor.clone() for tensor in self.trained], moved)
        self._current = 0
        self._count()

    def shards(self) -> Iterator[Shard]:
        """Yield the trainer's shards."""
        for spec, values in zip(self.specs, self.trained, strict=True):
            yield Shard(spec=spec, first=0, values=values)

    def train(self) -> None:
        """Move the weights on to their next version."""
        self._current = 1 - self._current
        for tensor, moved in zip(self.trained, self._versions[self._current], strict=True):
            tensor.copy_(moved)
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def _moved(self, tensor: Tensor, rate: float) -> Tensor:
        """
        Return the tensor after one version, as an optimizer with float32 masters moves it.

        A master lies anywhere within its stored value's rounding interval, and Adam's steps
        are about as large as the rate: a stored value changes when a step crosses a bound.
        """
        values = tensor.float()
        mantissa, exponent = torch.frexp(values)
        spacing = torch.ldexp(torch.ones_like(values), exponent - 8)
        noise = torch.rand(values.shape, generator=self._generator, device=tensor.device) - 0.5
        # Below a power of two, values lie twice as close.
        noise[(mantissa.abs() == 0.5) & (noise * values < 0)] /= 2
        step = torch.randn(values.shape, generator=self._generator, device=tensor.device)
        return (values + 0.998 * noise * spacing + rate * step).bfloat16()

    def _find_rate(self, changed: float) -> float:
        sample = self.trained[0][: 1 << 20]
        low, high = 1e-9, 1e-2
        for _ in range(30):
            middle = (low * high) ** 0.5
            moved = self._moved(sample, middle) != sample
            low, high = (middle, high) if float(moved.float().mean()) < changed else (low, middle)
        return low

    def _count(self) -> None:
        """Count what one version changes, and its bytes in every encoding."""
        for old, new in zip(*self._versions, strict=True):
            new_bits = _bits(new)
            changes = take_changes(new_bits, _bits(old).copy())
            self.changed_elements += len(changes.positions)
            for encoding, size in encoded_sizes(changes, new_bits).items():
                self.sizes[encoding] = self.sizes.get(encoding, 0) + size


class _World(Trained):
    """Random weights at both ends."""

    def __init__(self, shapes: Shapes, *, changed: float, device: torch.device, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        tensors = {
            name: (torch.randn(shape, generator=generator) * _STD).bfloat16().to(device)
            for name, shape in shapes.items()
        }
        super().__init__(tensors, changed=changed, seed=seed + 1)
        self.served = [tensor.clone() for tensor in self.trained]

    def require_equal(self) -> None:
        """Check that what serves is what was trained, bit for bit."""
        for spec, a, b in zip(self.specs, self.trained, self.served, strict=True):
            assert torch.equal(a.view(torch.int16), b.view(torch.int16)), spec.name

    def hash_s(self) -> float:
        """Time the hash of all weights (s)."""
        segment_hashes(self.served)
        started = time.perf_counter()
        segment_hashes(self.served)
        return time.perf_counter() - started


async def _rounds(world: _World, *, mode: str, rounds: int) -> list[Round]:
    publisher = TcpPublisher(
        run_id="bench", token="bench", rank=0, keep_deltas=2 if mode == "delta" else 0
    )
    receiver = TcpReceiver([publisher.address], run_id="bench", token="bench", name="bench")
    try:
        publisher.publish(PolicyVersion(0), world.shards())
        update = await receiver.newest(held=PolicyVersion(-1))
        apply_patches(world.served, update.patches)
        done = [await _round(world, publisher, receiver, v) for v in range(1, rounds + 2)]
        world.require_equal()
        return done[1:]
    finally:
        receiver.close()
        publisher.close()


async def _round(
    world: _World, publisher: TcpPublisher, receiver: TcpReceiver, version: int
) -> Round:
    await asyncio.to_thread(world.train)
    started = time.perf_counter()
    publisher.publish(PolicyVersion(version), world.shards())
    published = time.perf_counter()
    update = await receiver.newest(held=PolicyVersion(version - 1))
    fetched = time.perf_counter()
    wrong = await asyncio.to_thread(apply_patches, world.served, update.patches)
    proved = time.perf_counter()
    assert not wrong, f"{len(wrong)} segments do not hash to their proof"
    await receiver.confirm(PolicyVersion(version))
    encoded = publisher.encoded
    return Round(
        publish_s=published - started,
        encode_s=(encoded.get("hash_ms", 0) + encoded.get("encode_ms", 0)) / 1000,
        fetch_s=fetched - published,
        apply_s=proved - fetched,
        total_s=proved - started,
        wire_bytes=update.wire_bytes,
    )


def _plain(world: _World) -> dict[str, float]:
    """Take one version the plain way."""
    from safetensors.torch import load_file, save_file

    names = [spec.name for spec in world.specs]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        host = {n: t.cpu() for n, t in zip(names, world.served, strict=True)}
        held = {name: _bits(tensor).copy() for name, tensor in host.items()}
        save_file({name: t.clone() for name, t in host.items()}, path)
        world.train()
        started = time.perf_counter()
        changes = []
        for name, tensor in zip(names, world.trained, strict=True):
            new = _bits(tensor)
            at = np.flatnonzero(new != held[name]).astype(np.uint32)
            changes.append((name, at, new[at]))
            held[name] = new.copy()
        compared = time.perf_counter()
        received = _over_loopback([a for _, at, v in changes for a in (at, v)])
        sent = time.perf_counter()
        for (name, _, _), at, values in zip(changes, received[::2], received[1::2], strict=True):
            _bits(host[name])[at] = values
        save_file(host, path)
        saved = time.perf_counter()
        loaded_tensors = load_file(path)
        for name, target in zip(names, world.served, strict=True):
            target.copy_(loaded_tensors[name])
        if world.device.type == "cuda":
            torch.cuda.synchronize()
        loaded = time.perf_counter()
    return {
        "compare_s": compared - started,
        "send_s": sent - compared,
        "rewrite_s": saved - sent,
        "reload_s": loaded - saved,
        "total_s": loaded - started,
        "wire_bytes": float(sum(a.nbytes for a in received)),
    }


def _over_loopback(arrays: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Send arrays through a TCP connection of this machine to itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()

    def send() -> None:
        with sender:
            for array in arrays:
                sender.sendall(array.data)

    thread = threading.Thread(target=send)
    thread.start()
    received = []
    with receiver:
        for array in arrays:
            target = np.empty_like(array)
            view, done = target.data.cast("B"), 0
            while done < len(view):
                done += receiver.recv_into(view[done:])
            received.append(target)
    thread.join()
    return received


def _shapes(model: str | None, params: int) -> Shapes:
    if model is not None:
        facts = find_facts(model)
        if facts is None:
            raise RecipeError(
                f"the shapes of `{model}` are not known here",
                hint="a folder with a config.json, or `--params`",
            )
        return _model_shapes(facts)
    hidden = 1024 if params >= 50_000_000 else 256
    like = ModelFacts(
        model_type="qwen3",
        num_layers=1 << 30,
        hidden=hidden,
        intermediate=3 * hidden,
        num_heads=hidden // 64,
        num_kv_heads=hidden // 128,
        head_dim=64,
        vocab=32_000,
        tied=True,
        max_position=4096,
    )
    shapes: Shapes = {}
    left = params
    for name, shape in _named_shapes(like):
        size = int(np.prod(shape))
        if size >= left:
            shapes[name] = (left,)
            break
        shapes[name] = shape
        left -= size
    return shapes


def _model_shapes(facts: ModelFacts) -> Shapes:
    shapes = dict(_named_shapes(facts))
    if not facts.tied:
        shapes["lm_head.weight"] = (facts.vocab, facts.hidden)
    return shapes | {"model.norm.weight": (facts.hidden,)}


def _named_shapes(facts: ModelFacts) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of a dense decoder, layer by layer."""
    hidden, inner = facts.hidden, facts.intermediate
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    yield "model.embed_tokens.weight", (facts.vocab, hidden)
    for layer in range(facts.num_layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.self_attn.q_proj.weight", (queries, hidden)
        yield f"{prefix}.self_attn.k_proj.weight", (keys, hidden)
        yield f"{prefix}.self_attn.v_proj.weight", (keys, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, queries)
        yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, inner)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)


def _bits(tensor: Tensor) -> NDArray[Any]:
    bits: NDArray[Any] = tensor.view(torch.int16).cpu().numpy().view(np.uint16)
    return bits


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))
