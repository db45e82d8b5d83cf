"""TransformersBackend: the engine behind the InferenceBackend protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from astraflow.errors import AstraFlowError, NotReadyError, ProofError
from astraflow.interfaces import EngineLoad, InferenceContext, WeightUpdate
from astraflow.records import PolicyVersion, Sample, SampleRequest
from astraflow_transformers.engine import Engine
from astraflow_transformers.rows import Job

__all__ = ["TransformersBackend"]

_STOP_WITHIN_S = 10.0


class TransformersBackend:
    """
    Samples with transformers in a thread of this process.

    Args:
        context: What the recipe says.
    """

    def __init__(self, context: InferenceContext) -> None:
        self._context = context
        self._started: Engine | None = None

    @property
    def version(self) -> PolicyVersion:
        """Version that a request started now would be sampled with."""
        return self._started.version if self._started is not None else PolicyVersion(0)

    async def start(self, *, within_s: float) -> None:
        """
        Load the checkpoint and return once requests are answered.

        Raises:
            NotReadyError: loading took longer.
            RecipeError: there is no such checkpoint.
        """
        engine = Engine(self._context, asyncio.get_running_loop())
        self._started = engine
        engine.start()
        try:
            await asyncio.wait_for(engine.ready.wait(), within_s)
        except TimeoutError as error:
            raise NotReadyError(
                f"`{self._context.model_path}` was not loaded within {within_s:g} s",
                hint="raise `limits.ready_s`",
            ) from error
        self._engine()

    async def sample(self, request: SampleRequest) -> Sample:
        """
        Sample one answer; cancelling the call frees its row before the next step.

        Raises:
            AstraFlowError: the request does not fit, or the engine has ended.
        """
        engine = self._engine()
        total = len(request.prompt_ids) + request.max_new_tokens
        if not request.prompt_ids or total > self._context.context_length:
            raise AstraFlowError(
                f"request {request.request_id} has a prompt of {len(request.prompt_ids)} "
                f"tokens and asks for up to {request.max_new_tokens} more; "
                f"`model.context_length` is {self._context.context_length}"
            )
        job = Job(
            request=request,
            future=asyncio.get_running_loop().create_future(),
            arrived_s=time.monotonic(),
        )
        engine.submit(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            engine.cancel(job)
            raise

    async def read_load(self) -> EngineLoad:
        """Count running and waiting answers."""
        return self._engine().read_load()

    async def prepare(self, update: WeightUpdate) -> None:
        """Do nothing: an update lies in this process's memory already."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """
        Keep decoding still between two steps; answers go on afterwards where they were.

        Raises:
            ProofError: the block left tensors that hash to no proof; the engine has ended.
        """
        engine = self._engine()
        engine.hold()
        try:
            await engine.parked.wait()
            try:
                yield
            finally:
                # However the block ends: nothing may be sampled from unproved tensors.
                self._require_proved(engine)
        finally:
            engine.release()

    async def install(self, update: WeightUpdate) -> None:
        """
        Patch the parameters in place; only inside ``held``.

        Raises:
            StaleBaseError: the update is a delta against another version.
            ProofError: a tensor does not hash to its proof.
            WireError: a tensor is unknown, or of another type or size.
        """
        engine = self._engine()
        assert engine.parked.is_set(), "install() outside held()"
        assert engine.weights is not None
        # A thread, so that the event loop goes on answering while weights are copied.
        await asyncio.to_thread(engine.weights.install, update)

    async def close(self) -> None:
        """Stop the engine; calls that still wait raise. Calling twice is harmless."""
        if self._started is not None:
            await asyncio.to_thread(self._started.stop, within_s=_STOP_WITHIN_S)

    def _engine(self) -> Engine:
        if self._started is None:
            raise AstraFlowError("the engine has not been started")
        if self._started.failure is not None:
            raise self._started.failure
        return self._started

    def _require_proved(self, engine: Engine) -> None:
        assert engine.weights is not None
        if engine.weights.unproved:
            failure = ProofError(
                f"{len(engine.weights.unproved)} tensors were left unproved, so nothing may be "
                "sampled from them",
                tensors=sorted(engine.weights.unproved),
            )
            engine.give_up(failure)
            raise failure
