"""ServedWeights: updates on their way to the workers of every server."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from astraflow.errors import AstraFlowError, ProofError, StaleBaseError, WireError
from astraflow.interfaces import InferenceContext, TensorPatch, WeightUpdate
from astraflow.records import PolicyVersion
from astraflow_sglang.control import ANSWER_BYTES, Answer, Control, Order, Piece, Tensor
from astraflow_sglang.server import Server

if TYPE_CHECKING:
    import torch

__all__ = ["ServedWeights"]

_PAGE_BYTES = 2 * 1024 * 1024


class ServedWeights:
    """
    The version that the servers hold, and the memory through which they are told of a new one.

    Args:
        context: What the recipe says.
        servers: Every copy of the model.
    """

    def __init__(self, context: InferenceContext, servers: Sequence[Server]) -> None:
        self._context = context
        self._servers = servers
        self._tensors: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._hashes: dict[tuple[str, int], int] = {}
        self._memory: list[_SharedMemory] = []
        self._orders: dict[int, tuple[Order, WeightUpdate]] = {}
        self.version = PolicyVersion(0)
        self.unproved: frozenset[str] = frozenset()
        """Tensors whose bits are not those that any sender proved."""
        self.times = ""
        """What the last installation took in the slowest worker."""

    async def find(self) -> None:
        """
        Find every tensor of the checkpoint in the servers, and compare their bits.

        Raises:
            AstraFlowError: a tensor has no place there, or other bits than the checkpoint.
        """
        from astraflow.weights.hashes import segment_hashes

        checkpoint = await asyncio.to_thread(
            lambda: list(_checkpoint(self._context.model_path, self._context.dtype))
        )
        tensors = tuple(Tensor(name, tuple(values.shape)) for name, values in checkpoint)
        self._tensors = {t.name: (number, t.shape) for number, t in enumerate(tensors)}
        expected = await asyncio.to_thread(segment_hashes, [values for _, values in checkpoint])
        self._reserve(0)
        for server, answer in zip(self._servers, await self._run(Order(tensors=tensors))):  # noqa: B905
            wrong = [
                f"{tensor.name}: other bits than in the checkpoint"
                for tensor, found, want in zip(tensors, answer.hashes, expected, strict=False)
                if found != want
            ]
            problems = [*answer.unmapped, *wrong]
            if problems:
                raise AstraFlowError(
                    f"{len(problems)} of {len(tensors)} tensors of {self._context.model_path} "
                    f"cannot be updated in {server.name}:\n  " + "\n  ".join(problems[:8]),
                    hint="`--set rollout.backend=transformers`, or a checkpoint that SGLang keeps "
                    "as it is (not a quantized one)",
                )
        self._hashes = {(t.name, 0): h for t, h in zip(tensors, expected, strict=True)}

    def prepare(self, update: WeightUpdate) -> None:
        """
        Copy an update's bytes to where the workers read them.

        Raises:
            WireError: a tensor is unknown, or of another type or size.
        """
        from astraflow.weights.threads import spread

        pieces, offset = [], 0
        for patch in update.patches:
            pieces.append(self._piece(patch, offset))
            offset += -(-len(patch.payload) // 16) * 16
        target = self._reserve(offset)
        view = np.frombuffer(target.map, np.uint8)

        def copy(index: int) -> None:
            piece, patch = pieces[index], update.patches[index]
            view[piece.offset : piece.offset + piece.size] = np.frombuffer(patch.payload, np.uint8)

        spread(copy, range(len(pieces)), total_bytes=offset)
        self._orders = {id(update): (Order(pieces=tuple(pieces)), update)}

    async def install(self, update: WeightUpdate) -> list[dict[str, int] | None]:
        """
        Have every worker write a prepared update and prove it; ``version`` changes last.

        Returns:
            For each server, the tokens that each of its requests had; None if it cannot tell.

        Raises:
            StaleBaseError: the update is a delta against other weights; nothing was written.
            ProofError: a segment does not hash to its proof.
        """
        self._require_base(update)
        order, _ = self._orders[id(update)]
        written = {patch.spec.name for patch in update.patches}
        self.unproved |= written
        answers = await self._run(order, version=int(update.version))
        wrong = {update.patches[i].spec.name for answer in answers for i in answer.wrong}
        failed = [answer.error for answer in answers if answer.error]
        if failed:
            raise ProofError(
                f"version {update.version} could not be written: {failed[0]}",
                tensors=sorted(self.unproved),
            )
        self.unproved -= written - wrong
        if self.unproved:
            raise ProofError(
                f"{len(self.unproved)} of {len(self._tensors)} tensors of version "
                f"{update.version} do not hash to their proof",
                tensors=sorted(self.unproved),
            )
        for patch in update.patches:
            self._hashes[patch.spec.name, patch.first] = patch.target_hash
        self.version = update.version
        slowest = max(answers, key=lambda a: a.stage_ms + a.write_ms + a.prove_ms)
        self.times = (
            f"staged in {slowest.stage_ms:.1f} ms, written in {slowest.write_ms:.1f} ms, proved "
            f"in {slowest.prove_ms:.1f} ms"
        )
        return [
            None if a.progress is None else {p.request_id: p.tokens for p in a.progress}
            for a in answers
        ]

    def close(self) -> None:
        """Give the memory back."""
        for memory in self._memory:
            memory.close()
        self._memory.clear()

    # --- inside

    def _require_base(self, update: WeightUpdate) -> None:
        if update.base is None:
            return
        if update.base != self.version:
            raise StaleBaseError(
                f"version {update.version} is a delta against version {update.base}, and this "
                f"engine holds {self.version}"
            )
        for patch in update.patches:
            held = self._hashes.get((patch.spec.name, patch.first))
            if held not in (None, patch.base_hash):
                raise StaleBaseError(
                    f"version {update.version} builds on other bits of `{patch.spec.name}` than "
                    f"were proved here as version {self.version}"
                )

    def _piece(self, patch: TensorPatch, offset: int) -> Piece:
        known = self._tensors.get(patch.spec.name)
        if known is None or known[1] != tuple(patch.spec.shape):
            raise WireError(
                f"an update names `{patch.spec.name}` of {list(patch.spec.shape)}, which this "
                "model has not",
                hint="trainer and engine must start from the same `model.path`",
            )
        if patch.spec.dtype not in ("BF16", "F16"):
            raise WireError(f"`{patch.spec.name}` arrives as {patch.spec.dtype}")
        return Piece(
            tensor=known[0],
            first=patch.first,
            count=patch.count,
            encoding=int(patch.encoding),
            offset=offset,
            size=len(patch.payload),
            target_hash=patch.target_hash,
        )

    async def _run(self, order: Order, *, version: int | None = None) -> list[Answer]:
        """Have the workers of all servers follow one order, one memory a server."""
        content = msgspec.msgpack.encode(order)
        if len(content) > ANSWER_BYTES:
            raise AstraFlowError(f"an order of {len(content)} bytes is too long")
        return list(
            await asyncio.gather(
                *(
                    self._run_one(server, number, content, version)
                    for number, server in enumerate(self._servers)
                )
            )
        )

    async def _run_one(
        self, server: Server, number: int, content: bytes, version: int | None
    ) -> Answer:
        payload = self._memory[0]
        mailbox = self._memory[number + 1]
        mailbox.put(content)
        control = Control(
            path=payload.path,
            size=payload.size,
            mailbox=mailbox.path,
            order_bytes=len(content),
        )
        await server.run_loader(msgspec.json.encode(control).decode(), version=version)
        answer = mailbox.take()
        if answer.error and not self.unproved:
            raise AstraFlowError(f"{server.name}: {answer.error}")
        return answer

    def _reserve(self, size: int) -> _SharedMemory:
        """Return memory for at least ``size`` bytes; the workers map it anew when it grows."""
        if not self._memory:
            self._memory = [_SharedMemory(_PAGE_BYTES)]
            self._memory += [_SharedMemory(ANSWER_BYTES) for _ in self._servers]
        if self._memory[0].size < size:
            self._memory[0].close()
            self._memory[0] = _SharedMemory(-(-size * 5 // 4 // _PAGE_BYTES) * _PAGE_BYTES)
        return self._memory[0]


class _SharedMemory:
    """Memory that others open by a path and that nobody has to remove."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._descriptor = os.memfd_create("astraflow-weights", os.MFD_CLOEXEC)
        os.truncate(self._descriptor, size)
        self.map = mmap.mmap(self._descriptor, size)

    @property
    def path(self) -> str:
        """Where another process of this user opens it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def put(self, content: bytes) -> None:
        """Put an order into a mailbox."""
        self.map[: len(content)] = content

    def take(self) -> Answer:
        """Take the answer out of a mailbox."""
        size = int.from_bytes(self.map[:8], "little")
        return msgspec.msgpack.decode(self.map[8 : 8 + size], type=Answer)

    def close(self) -> None:
        """Give it back once the last view is gone."""
        os.close(self._descriptor)


def _checkpoint(model_path: str, dtype: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a checkpoint that serve, in the type that serves, tied ones once."""
    import torch
    from safetensors import safe_open

    folder = _local_folder(model_path)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a mapping
                if (tied and name == "lm_head.weight") or _is_not_text(name):
                    continue
                yield name, content.get_tensor(name).to(getattr(torch, dtype))


def _is_not_text(name: str) -> bool:
    """Tell vision towers and draft heads, which are not trained, from the language model."""
    return "visual." in name or name.startswith("mtp.") or "rotary_emb." in name


def _local_folder(model_path: str) -> Path:
    if Path(model_path).is_dir():
        return Path(model_path)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model_path, allow_patterns=["*.safetensors", "*.json"]))
