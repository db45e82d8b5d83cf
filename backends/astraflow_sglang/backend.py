"""SglangBackend: SGLang servers behind the InferenceBackend protocol."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from astraflow.errors import AstraFlowError, ProofError
from astraflow.interfaces import EngineLoad, InferenceContext, WeightUpdate
from astraflow.records import FinishReason, PolicyVersion, Sample, SampleRequest
from astraflow_sglang import SglangSettings
from astraflow_sglang.answers import Answers, read_reply
from astraflow_sglang.server import Server
from astraflow_sglang.weights import ServedWeights

__all__ = ["SglangBackend"]

log = logging.getLogger(__name__)

_LOAD_KEPT_S = 0.2


class SglangBackend:
    """
    One server for each copy of the model; all hold the same version.

    Args:
        context: What the recipe says.
    """

    def __init__(self, context: InferenceContext) -> None:
        self._context = context
        self._settings: SglangSettings = context.settings
        copies = max(context.data_parallel, 1)
        self._servers = [self._build_server(number) for number in range(copies)]
        self._answers = Answers(copies)
        self._weights = ServedWeights(context, self._servers)
        self._hold = asyncio.Lock()
        self._load = EngineLoad(running=0, waiting=0, cache_used_frac=0.0, capacity=1)
        self._load_at = 0.0
        self._failure: AstraFlowError | None = None

    @property
    def version(self) -> PolicyVersion:
        """Version that a request started now would be sampled with."""
        return self._weights.version

    async def start(self, *, within_s: float) -> None:
        """
        Start every server, and check that each tensor has its place there.

        Raises:
            NotReadyError: a server did not answer in time.
            AstraFlowError: a server ended, or holds tensors that updates cannot reach.
        """
        within_s = min(within_s, self._settings.start_timeout_s)
        await asyncio.gather(*(server.start(within_s=within_s) for server in self._servers))
        await self._weights.find()

    async def sample(self, request: SampleRequest) -> Sample:
        """
        Sample one answer; cancelling the call frees its place.

        Raises:
            AstraFlowError: the request does not fit, was aborted, or its server has ended.
        """
        self._require_usable()
        total = len(request.prompt_ids) + request.max_new_tokens
        if not request.prompt_ids or total > self._context.context_length:
            raise AstraFlowError(
                f"request {request.request_id} has a prompt of {len(request.prompt_ids)} "
                f"tokens and asks for up to {request.max_new_tokens} more; "
                f"`model.context_length` is {self._context.context_length}"
            )
        with self._answers.open(request, self.version) as answer:
            server = self._servers[answer.server]
            try:
                reply = await server.generate(answer.body())
            except asyncio.CancelledError:
                await asyncio.shield(server.abort(answer.request_id))
                raise
            ids, logprobs, finish = read_reply(reply)
            return Sample(
                token_ids=ids,
                logprobs=logprobs,
                versions=answer.versions(len(ids)),
                finish=FinishReason(finish),
            )

    async def read_load(self) -> EngineLoad:
        """Add up the servers' loads; a reading is kept for a moment."""
        self._require_usable()
        if time.monotonic() - self._load_at > _LOAD_KEPT_S:
            loads = await asyncio.gather(*(server.read_load() for server in self._servers))
            self._load = EngineLoad(
                running=sum(running for running, _, _ in loads),
                waiting=sum(waiting for _, waiting, _ in loads),
                cache_used_frac=max(used for _, _, used in loads),
                capacity=self._settings.max_running_requests * len(loads),
                waiting_target=self._settings.waiting_target * len(loads),
            )
            self._load_at = time.monotonic()
        return self._load

    async def prepare(self, update: WeightUpdate) -> None:
        """Put an update where every server's worker can read it; decoding goes on."""
        await asyncio.to_thread(self._weights.prepare, update)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """
        Keep decoding still in every server; answers go on afterwards where they were.

        Raises:
            ProofError: the block left tensors that hash to no proof; nothing is sampled again.
        """
        self._require_usable()
        async with self._hold:
            await self._weights.hold()
            try:
                yield
            finally:
                self._require_proved()
                await self._weights.release()

    async def install(self, update: WeightUpdate) -> None:
        """
        Patch the weights on the servers' GPUs; only inside ``held``.

        Raises:
            StaleBaseError: the update is a delta against another version.
            ProofError: a tensor does not hash to its proof.
            WireError: a tensor is unknown, or of another type or size.
        """
        assert self._hold.locked(), "install() outside held()"
        old = self.version
        progress = await self._weights.install(update)
        for server, reached in enumerate(progress):
            self._answers.note_swap(server, old, self.version, reached)
        log.info("version %d serves; %s", update.version, self._weights.times)

    async def checksums(self) -> list[Any]:
        """Return each server's own checksum of its weights, as SGLang computes it."""
        return list(await asyncio.gather(*(server.checksum() for server in self._servers)))

    async def close(self) -> None:
        """Stop every server; calling twice is harmless."""
        await asyncio.gather(*(server.close() for server in self._servers))
        self._weights.close()

    # --- inside

    def _build_server(self, number: int) -> Server:
        context, settings = self._context, self._settings
        options: dict[str, str | int | float | bool] = {
            "model_path": context.model_path,
            "host": "127.0.0.1",
            "dtype": context.dtype,
            "context_length": context.context_length,
            "mem_fraction_static": settings.mem_fraction_static,
            "max_running_requests": settings.max_running_requests,
            "skip_tokenizer_init": True,
            "custom_weight_loader": "astraflow_sglang.loader.apply",
            "log_level": "warning",
        }
        for name in ("attention_backend", "sampling_backend"):
            if getattr(settings, name) != "auto":
                options[name] = getattr(settings, name)
        if settings.chunked_prefill_size is not None:
            options["chunked_prefill_size"] = settings.chunked_prefill_size
        if not settings.cuda_graph:
            options["disable_cuda_graph"] = True
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        devices = visible.split(",") if visible else [str(gpu) for gpu in context.gpus]
        return Server(
            f"sglang-{number}",
            {**options, **settings.server_args},
            devices=devices[number % max(len(devices), 1)],
            log_path=context.log_folder / f"sglang-{os.getpid()}-{number}.log",
        )

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        for server in self._servers:
            server.require_alive()

    def _require_proved(self) -> None:
        if self._weights.unproved:
            self._failure = ProofError(
                f"{len(self._weights.unproved)} tensors were left unproved, so nothing may be "
                "sampled from them",
                tensors=sorted(self._weights.unproved),
            )
            raise self._failure
