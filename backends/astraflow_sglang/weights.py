"""ServedWeights: updates on their way to the workers of every server."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from astraflow.errors import AstraFlowError, ProofError, StaleBaseError, WireError
from astraflow.interfaces import InferenceContext, TensorPatch, WeightUpdate
from astraflow.records import PolicyVersion
from astraflow_sglang.control import (
    MAILBOX_BYTES,
    Answer,
    Control,
    Mailbox,
    Order,
    Piece,
    State,
    Tensor,
)
from astraflow_sglang.server import Server

if TYPE_CHECKING:
    import torch

__all__ = ["ServedWeights"]

_PAGE_BYTES = 2 * 1024 * 1024
_LOOK_AGAIN_S = 0.0005
_TURN_WITHIN_S = 120.0


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
        self._payload = _SharedMemory(_PAGE_BYTES)
        self._mail = [_SharedMemory(MAILBOX_BYTES) for _ in servers]
        self._boxes = [Mailbox(memory.map) for memory in self._mail]
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
        first = msgspec.msgpack.encode(Order(tensors=tensors))
        answers = await asyncio.gather(*(self._begin(n, first) for n in range(len(self._servers))))
        for server, answer in zip(self._servers, answers, strict=True):
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
        if self._payload.size < offset:
            self._payload.close()
            self._payload = _SharedMemory(-(-offset * 5 // 4 // _PAGE_BYTES) * _PAGE_BYTES)
        view = np.frombuffer(self._payload.map, np.uint8)

        def copy(index: int) -> None:
            piece, patch = pieces[index], update.patches[index]
            view[piece.offset : piece.offset + piece.size] = np.frombuffer(patch.payload, np.uint8)

        spread(copy, range(len(pieces)), total_bytes=offset)
        path, size = self._payload.path, self._payload.size
        order = Order(pieces=tuple(pieces), path=path, size=size)
        self._orders = {id(update): (order, update)}

    async def hold(self) -> None:
        """Stop decoding in every server after the step it is in."""
        await self._turn(State.HOLD, State.HELD)

    async def release(self) -> None:
        """Go on decoding."""
        await self._turn(State.RELEASE, State.RUNNING)

    async def install(self, update: WeightUpdate) -> list[dict[str, int]]:
        """
        Have every worker write a prepared update and prove it; ``version`` changes last.

        Returns:
            For each server, the tokens that each of its requests had.

        Raises:
            StaleBaseError: the update is a delta against other weights; nothing was written.
            ProofError: a segment does not hash to its proof.
        """
        self._require_base(update)
        order, _ = self._orders[id(update)]
        written = {patch.spec.name for patch in update.patches}
        self.unproved |= written
        content = msgspec.msgpack.encode(order)
        for box in self._boxes:
            box.put(content)
        await self._turn(State.ORDER, State.ANSWERED)
        answers = [_answer(box) for box in self._boxes]
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
        return [{p.request_id: p.tokens for p in answer.progress} for answer in answers]

    def close(self) -> None:
        """Give the memory back."""
        for memory in (self._payload, *self._mail):
            memory.close()

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

    async def _begin(self, number: int, first: bytes) -> Answer:
        """Have SGLang call the loader, which serves the mailbox from then on."""
        server, box = self._servers[number], self._boxes[number]
        box.put(first)
        control = Control(mailbox=self._mail[number].path)
        await server.run_loader(msgspec.json.encode(control).decode())
        answer = _answer(box)
        if answer.error:
            raise AstraFlowError(f"{server.name}: {answer.error}")
        return answer

    async def _turn(self, ours: State, theirs: State) -> None:
        """
        Set the state of every mailbox and wait for every worker's.

        Raises:
            AstraFlowError: a server has ended, or its scheduler does not come round.
        """
        for box in self._boxes:
            box.state = ours
        give_up = time.monotonic() + _TURN_WITHIN_S
        for server, box in zip(self._servers, self._boxes, strict=True):
            while box.state != theirs:
                server.require_alive()
                if time.monotonic() > give_up:
                    raise AstraFlowError(
                        f"{server.name} did not answer {ours.name} within {_TURN_WITHIN_S:g} s",
                        hint="its scheduler hangs: the end of its log may say why",
                    )
                await asyncio.sleep(_LOOK_AGAIN_S)


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

    def close(self) -> None:
        """Give it back once the last view is gone; calling twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _answer(box: Mailbox) -> Answer:
    return msgspec.msgpack.decode(box.take(), type=Answer)


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
