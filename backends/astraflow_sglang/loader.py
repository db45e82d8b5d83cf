"""
Inside SGLang's worker: writes an update onto the weights on its GPU, and proves it there.

SGLang calls :func:`apply` by its import path. It must not raise: an exception here ends the
server with every answer in it, so whatever goes wrong is part of the answer instead.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from astraflow.errors import AstraFlowError
from astraflow.interfaces.weights import Encoding
from astraflow.weights.gpu_apply import Piece as StagedPiece
from astraflow.weights.gpu_apply import Staged
from astraflow.weights.hashes import segment_hashes
from astraflow_sglang.control import (
    MAILBOX_BYTES,
    Answer,
    Control,
    Mailbox,
    Order,
    Progress,
    State,
)
from astraflow_sglang.mapping import find_tensors

__all__ = ["apply"]

_LOOK_AGAIN_S = 0.0002


class _Memory:
    """The adapter's memory, mapped here and known to the GPU."""

    def __init__(self, path: str, size: int) -> None:
        self.key = (path, size)
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._registered = torch.cuda.is_available() and not int(
            _cudart().cudaHostRegister(self.bytes.data_ptr(), size, 0)
        )

    def close(self) -> None:
        """Forget it; the mapping itself goes with its last view."""
        if self._registered:
            _cudart().cudaHostUnregister(self.bytes.data_ptr())


class _State:
    """What one worker keeps between calls."""

    memory: _Memory | None = None
    names: tuple[str, ...] = ()
    tensors: tuple[Tensor, ...] = ()


_STATE = _State()


def apply(model: nn.Module, named_tensors: list[tuple[str, Tensor]]) -> None:
    """
    Follow the first order, and from here on serve the mailbox between the scheduler's steps.

    Args:
        model: SGLang's model on this worker's GPU.
        named_tensors: One tensor of bytes, the control line.
    """
    control = msgspec.json.decode(bytes(named_tensors[0][1].cpu().numpy()), type=Control)
    descriptor = os.open(control.mailbox, os.O_RDWR)
    try:
        mailbox = Mailbox(mmap.mmap(descriptor, MAILBOX_BYTES))
    finally:
        os.close(descriptor)
    answer = _follow(model, mailbox.take())
    scheduler = _calling_scheduler()
    if scheduler is None:
        answer = Answer(error="SGLang's scheduler was not found: this version is not known")
    elif not answer.error and not answer.unmapped:
        _serve_between_steps(scheduler, model, mailbox)
    mailbox.put(msgspec.msgpack.encode(answer))


def _serve_between_steps(scheduler: Any, model: nn.Module, mailbox: Mailbox) -> None:
    """
    Look into the mailbox in every turn of the scheduler's loop.

    SGLang's own pause goes through the process that answers HTTP, which may have hundreds of
    answers to write first: that took up to five seconds. Here it takes one step.
    """
    process = scheduler.process_input_requests

    def process_and_serve(requests: Any) -> None:
        process(requests)
        if mailbox.state != State.RUNNING:
            _serve(scheduler, model, mailbox)

    scheduler.process_input_requests = process_and_serve


def _serve(scheduler: Any, model: nn.Module, mailbox: Mailbox) -> None:
    """Keep the scheduler here until it is released."""
    mailbox.state = State.HELD
    while (state := mailbox.state) != State.RELEASE:
        if state == State.ORDER:
            answer = _follow(model, mailbox.take(), scheduler)
            mailbox.put(msgspec.msgpack.encode(answer))
            mailbox.state = State.ANSWERED
        else:
            time.sleep(_LOOK_AGAIN_S)
    mailbox.state = State.RUNNING


def _follow(model: nn.Module, content: bytes, scheduler: Any = None) -> Answer:
    try:
        order = msgspec.msgpack.decode(content, type=Order)
        return _find(model, order) if order.tensors else _install(order, scheduler)
    except (AstraFlowError, RuntimeError, ValueError, KeyError, msgspec.MsgspecError) as error:
        return Answer(error=f"{type(error).__name__}: {error}")


def _memory(order: Order) -> _Memory:
    held = _STATE.memory
    if held is None or held.key != (order.path, order.size):
        if held is not None:
            held.close()
        held = _STATE.memory = _Memory(order.path, order.size)
    return held


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _find(model: nn.Module, order: Order) -> Answer:
    found, unmapped = find_tensors(
        {name: parameter.data for name, parameter in model.named_parameters()},
        {tensor.name: tensor.shape for tensor in order.tensors},
    )
    if unmapped:
        return Answer(unmapped=tuple(unmapped))
    _STATE.tensors = tuple(found[tensor.name] for tensor in order.tensors)
    return Answer(hashes=tuple(segment_hashes(_STATE.tensors)))


def _install(order: Order, scheduler: Any) -> Answer:
    started = time.perf_counter()
    memory = _memory(order)
    device = _STATE.tensors[0].device
    targets = [_STATE.tensors[p.tensor].view(-1)[p.first : p.first + p.count] for p in order.pieces]
    staged = Staged(
        memory.bytes,
        [
            StagedPiece(
                name=str(piece.tensor),
                encoding=Encoding(piece.encoding),
                offset=piece.offset,
                size=piece.size,
                target=target,
            )
            for piece, target in zip(order.pieces, targets, strict=True)
        ],
        device,
    )
    # The last step's kernels may still run on another stream: they read the old weights to the end.
    torch.cuda.synchronize(device)
    staged_at = time.perf_counter()
    staged.write()
    torch.cuda.synchronize(device)
    written_at = time.perf_counter()
    hashes = segment_hashes(targets)
    wrong = [i for i, piece in enumerate(order.pieces) if hashes[i] != piece.target_hash]
    return Answer(
        wrong=tuple(wrong),
        progress=_progress(scheduler),
        stage_ms=(staged_at - started) * 1000,
        write_ms=(written_at - staged_at) * 1000,
        prove_ms=(time.perf_counter() - written_at) * 1000,
    )


def _progress(scheduler: Any) -> tuple[Progress, ...]:
    """
    Read from the scheduler how many tokens each answer has.

    A token of the last step may be drawn and not yet counted: its result waits in a queue.
    """
    last = scheduler.last_batch
    pending: set[str] = set()
    if last is not None and getattr(scheduler, "result_queue", None):
        # A prompt that is prefilled in parts draws no token before its last part.
        pending = {req.rid for req in last.reqs if req.inflight_middle_chunks <= 0}
    requests: dict[str, Any] = {}
    for batch in (scheduler.running_batch, last):
        requests |= {req.rid: req for req in (batch.reqs if batch is not None else ())}
    requests |= {req.rid: req for req in scheduler.waiting_queue}
    return tuple(
        Progress(rid, len(req.output_ids) + (rid in pending)) for rid, req in requests.items()
    )


def _calling_scheduler() -> Any:
    walk: Any = sys._getframe()  # noqa: SLF001 - SGLang hands its loader the model only
    while walk is not None:
        caller = walk.f_locals.get("self")
        if type(caller).__name__ == "Scheduler" and hasattr(caller, "running_batch"):
            return caller
        walk = walk.f_back
    return None
