"""TransformersBackend: the InferenceBackend in front of the engine thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from astraflow.errors import AstraFlowError, NotReadyError, ProofError, StaleBaseError, WireError
from astraflow.interfaces import (
    Encoding,
    EngineLoad,
    InferenceContext,
    TensorPatch,
    WeightUpdate,
)
from astraflow.records import PolicyVersion, Sample, SampleRequest
from astraflow.weights.delta import apply_patch
from astraflow.weights.hashes import segment_hash
from astraflow_transformers.continuous import ContinuousBatch
from astraflow_transformers.engine import Batch, Engine
from astraflow_transformers.grouped import GroupedBatch
from astraflow_transformers.sequences import Sequence

__all__ = ["TransformersBackend"]

log = logging.getLogger(__name__)

_POLL_S = 0.05


class TransformersBackend:
    """Samples in this process; weights are patched in place between two decode steps."""

    def __init__(self, context: InferenceContext) -> None:
        self._context = context
        self._engine: Engine | None = None
        self._model: Any = None
        self._parameters: dict[str, Tensor] = {}

    @property
    def version(self) -> PolicyVersion:
        """Version that a request started now would be sampled with."""
        return PolicyVersion(self._engine.version if self._engine else 0)

    async def start(self, *, within_s: float) -> None:
        """
        Load the checkpoint in the engine's thread.

        Raises:
            NotReadyError: it took longer than ``within_s``.
            AstraFlowError: the model could not be loaded.
        """
        engine = self._engine = Engine(self._load)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + within_s
        while not engine.loaded:
            if engine.failure is not None:
                raise AstraFlowError(
                    f"`{self._context.model_path}` cannot be loaded: {engine.failure}",
                    hint="a folder with config.json and safetensors, or a hub id with network or "
                    "a filled cache",
                ) from engine.failure
            if loop.time() > give_up:
                raise NotReadyError(
                    f"`{self._context.model_path}` was not loaded within {within_s:g} s"
                )
            await asyncio.sleep(_POLL_S)

    async def sample(self, request: SampleRequest) -> Sample:
        """
        Sample one answer; cancelling the call frees its slot.

        Raises:
            AstraFlowError: the request does not fit, or the engine has failed.
        """
        longest = len(request.prompt_ids) + request.max_new_tokens
        if longest > self._context.context_length:
            raise AstraFlowError(
                f"request {request.request_id} may reach {longest} tokens, and the context holds "
                f"{self._context.context_length}"
            )
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Sample] = loop.create_future()

        def settle(result: Sample | BaseException) -> None:
            if future.done():
                return
            if isinstance(result, Sample):
                future.set_result(result)
            else:
                future.set_exception(result)

        sequence = Sequence(request, lambda result: loop.call_soon_threadsafe(settle, result))
        engine = self._running()
        engine.submit(sequence)
        try:
            return await future
        finally:
            if not future.done() or future.cancelled():
                engine.cancel(sequence)

    async def read_load(self) -> EngineLoad:
        """
        Read the engine's counters.

        Raises:
            AstraFlowError: the engine has failed.
        """
        engine = self._running()
        if engine.failure is not None:
            raise AstraFlowError(f"the engine has ended: {engine.failure!r}") from engine.failure
        return EngineLoad(
            running=engine.running,
            waiting=engine.waiting,
            cache_used_frac=engine.cache_used_frac,
            capacity=self._context.settings.max_batch,
        )

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Keep decoding still between two steps while the block runs."""
        engine = self._running()
        await asyncio.to_thread(engine.hold)
        try:
            yield
        finally:
            engine.release()

    async def install(self, update: WeightUpdate) -> None:
        """
        Patch the weights in place and prove them; the version changes last.

        Raises:
            StaleBaseError: the update starts from another version than ours.
            WireError: a patch names a tensor that this model does not have.
            ProofError: a tensor does not hash to its proof.
        """
        engine = self._running()
        if update.base is not None and update.base != engine.version:
            raise StaleBaseError(
                f"version {update.version} is a delta against {update.base}, and the engine holds "
                f"{engine.version}"
            )
        targets = [self._target(patch) for patch in update.patches]
        await asyncio.to_thread(_write_and_prove, update, targets)
        engine.version = int(update.version)

    async def close(self) -> None:
        """End the engine's thread."""
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)

    def _running(self) -> Engine:
        if self._engine is None:
            raise AstraFlowError("the engine was not started")
        return self._engine

    def _target(self, patch: TensorPatch) -> Tensor:
        parameter = self._parameters.get(patch.spec.name)
        if parameter is None:
            raise WireError(f"the engine has no tensor `{patch.spec.name}`")
        if tuple(parameter.shape) != tuple(patch.spec.shape):
            raise WireError(
                f"`{patch.spec.name}` is {list(parameter.shape)} here and "
                f"{list(patch.spec.shape)} at the trainer"
            )
        if _DTYPES.get(patch.spec.dtype) is not parameter.dtype:
            raise WireError(
                f"`{patch.spec.name}` is {parameter.dtype} here and {patch.spec.dtype} at the "
                "trainer"
            )
        return parameter.detach().view(-1)[patch.first : patch.first + patch.count]

    def _load(self) -> Batch:
        context = self._context
        settings = context.settings
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        model = AutoModelForCausalLM.from_pretrained(
            context.model_path, dtype=getattr(torch, context.dtype), attn_implementation="sdpa"
        )
        model = model.to(_device(context)).eval()
        for parameter in model.parameters():
            parameter.requires_grad_(requires_grad=False)
        self._model = model
        # Tied tensors appear once, under the name that the trainer publishes.
        self._parameters = dict(model.named_parameters(remove_duplicate=True))
        grouped = context.reproducible or _has_recurrent_layers(model)
        log.info(
            "%s on %s, %s, batches by %s",
            type(model).__name__,
            model.device,
            context.dtype,
            "group" if grouped else "slot",
        )
        form = GroupedBatch if grouped else ContinuousBatch
        return form(model, max_batch=settings.max_batch)


_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def _write_and_prove(update: WeightUpdate, targets: list[Tensor]) -> None:
    with torch.inference_mode():
        for patch, target in zip(update.patches, targets, strict=True):
            apply_patch(target, patch)
        wrong = [
            patch.spec.name
            for patch, target in zip(update.patches, targets, strict=True)
            if segment_hash(target) != patch.target_hash
        ]
    if wrong:
        raise ProofError(
            f"version {update.version} cannot be proved: {len(wrong)} of {len(targets)} segments "
            f"differ, `{wrong[0]}` first",
            tensors=sorted(set(wrong)),
        )
    log.info(
        "version %d proved: %d segments, %d bytes, %s",
        update.version,
        len(targets),
        update.wire_bytes,
        "whole" if update.base is None else _encodings(update),
    )


def _encodings(update: WeightUpdate) -> str:
    counts: dict[str, int] = {}
    for patch in update.patches:
        name = Encoding(patch.encoding).name
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _device(context: InferenceContext) -> str:
    wanted: str = context.settings.device
    if wanted == "auto":
        return "cuda:0" if context.gpus else "cpu"
    return wanted


def _has_recurrent_layers(model: Any) -> bool:
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or []
    return any(kind != "full_attention" for kind in kinds)
