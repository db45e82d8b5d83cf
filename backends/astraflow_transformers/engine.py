"""
Engine: one thread that loads the model and decodes, and how the event loop talks to it.

    event loop                               engine thread
    submit(job) ── waiting ──▶ choose ─▶ start ─▶ step ─▶ step ─▶ ...
    hold() ──────────────────▶ parks between two steps ─▶ parked event
    release() ───────────────▶ goes on
                 ◀── results, one call into the loop for all answers that a step ended
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable

import torch

from astraflow.errors import AstraFlowError
from astraflow.interfaces import EngineLoad, InferenceContext
from astraflow.learning.policy import load_policy
from astraflow.records import PolicyVersion, Sample
from astraflow_transformers import TransformersSettings
from astraflow_transformers.attention import DECODE_ATTENTION, register
from astraflow_transformers.decoding import (
    ContinuousDecoder,
    Decoder,
    Finished,
    GroupDecoder,
    takes_continuous,
)
from astraflow_transformers.rows import Job
from astraflow_transformers.weights import LiveWeights

__all__ = ["Engine"]

log = logging.getLogger(__name__)


class Engine:
    """
    The thread.

    Args:
        context: What the recipe says.
        loop: The event loop that all other calls come from.
    """

    def __init__(self, context: InferenceContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._settings: TransformersSettings = context.settings
        self._loop = loop
        self._condition = threading.Condition()
        self._waiting: list[Job] = []
        self._holds = 0
        self._closing = False
        self._any_cancelled = False
        self._open: set[Job] = set()  # touched by the event loop only
        self._decoder: Decoder | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.ready = asyncio.Event()
        """Set once requests are answered, or the engine has failed."""
        self.parked = asyncio.Event()
        """Set while no decoding step runs."""
        self.failure: AstraFlowError | None = None
        """Why the engine ended, when it has."""
        self.weights: LiveWeights | None = None
        """The live parameters; None until loaded."""

    @property
    def version(self) -> PolicyVersion:
        """Version that serves; 0 before the checkpoint is loaded."""
        return self.weights.version if self.weights is not None else PolicyVersion(0)

    def start(self) -> None:
        """Start loading."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._open.add(job)
        job.future.add_done_callback(lambda _: self._open.discard(job))
        with self._condition:
            self._waiting.append(job)
            self._condition.notify()

    def cancel(self, job: Job) -> None:
        """Free what a job holds, before the next step."""
        with self._condition:
            job.cancelled = True
            self._any_cancelled = True
            self._condition.notify()

    def hold(self) -> None:
        """Ask for a halt; ``parked`` is set once it has come about."""
        with self._condition:
            self._holds += 1
            self._condition.notify()

    def release(self) -> None:
        """Take one halt back."""
        with self._condition:
            self._holds -= 1
            if self._holds == 0:
                self.parked.clear()
            self._condition.notify()

    def read_load(self) -> EngineLoad:
        """Count running and waiting answers."""
        running = self._decoder.running if self._decoder is not None else 0
        capacity = self._settings.max_batch
        return EngineLoad(
            running=running,
            waiting=len(self._waiting),
            cache_used_frac=min(running / capacity, 1.0),
            capacity=capacity,
        )

    def give_up(self, failure: AstraFlowError) -> None:
        """End the engine because its weights can no longer be trusted."""
        self._fail(failure)

    def stop(self, *, within_s: float) -> None:
        """End the thread; blocks, so not for the event loop."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if self._thread.is_alive():
            self._thread.join(within_s)

    # --- the thread

    def _run(self) -> None:
        try:
            self._load()
            self._tell(self.ready.set)
            with torch.inference_mode():
                while self._turn():
                    pass
            self._fail(AstraFlowError("the engine was closed"))
        except Exception as error:  # noqa: BLE001 - the edge of the thread: logged and passed on
            log.exception("the engine ends with an error")
            if isinstance(error, AstraFlowError):
                self._fail(error)
                return
            failure = AstraFlowError(f"the engine ended with {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _load(self) -> None:
        settings, context = self._settings, self._context
        on_gpu = settings.device == "cuda" or (settings.device == "auto" and bool(context.gpus))
        device = torch.device("cuda", context.gpus[0] if context.gpus else 0) if on_gpu else None
        device = device or torch.device("cpu")
        # The setting belongs to the thread that computes.
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(settings.threads or max(1, cores // 2))
        register()
        policy = load_policy(
            context.model_path,
            dtype=getattr(torch, context.dtype),
            attention=DECODE_ATTENTION,
        )
        policy.model.requires_grad_(requires_grad=False).eval().to(device)
        self.weights = LiveWeights(policy)
        continuous = not context.reproducible and takes_continuous(policy.model.config)
        if continuous:
            self._decoder = ContinuousDecoder(
                policy.model, max_batch=settings.max_batch, device=device
            )
        else:
            joined = 1 if context.reproducible else settings.max_batch
            self._decoder = GroupDecoder(policy.model, device=device, max_batch=joined)
        log.info(
            "transformers engine on %s, %s",
            device,
            "continuous batching" if continuous else "whole groups",
        )

    def _turn(self) -> bool:
        """Wait for work, do one step of it; False when closing."""
        decoder, weights = self._decoder, self.weights
        assert decoder is not None
        assert weights is not None
        jobs = self._next_jobs(decoder)
        if jobs is None:
            return False
        version = weights.version
        if jobs:
            self._deliver(decoder.start(jobs, version))
        if decoder.running:
            self._deliver(decoder.step(version))
        return True

    def _next_jobs(self, decoder: Decoder) -> list[Job] | None:
        """Return what to start before the next step, having parked and waited as need be."""
        with self._condition:
            while not self._closing:
                if self._any_cancelled:
                    self._any_cancelled = False
                    self._waiting = [job for job in self._waiting if not job.cancelled]
                    decoder.drop_cancelled()
                if self._holds:
                    self._tell(self._announce_parked)
                    self._condition.wait()
                    continue
                jobs, ask_again_s = decoder.choose(self._waiting, time.monotonic())
                if jobs:
                    chosen = set(map(id, jobs))
                    self._waiting = [job for job in self._waiting if id(job) not in chosen]
                if jobs or decoder.running:
                    return jobs
                self._condition.wait(ask_again_s)
        return None

    def _announce_parked(self) -> None:
        """Run in the event loop: a halt that was taken back meanwhile is not announced."""
        if self._holds:
            self.parked.set()

    def _deliver(self, finished: Finished) -> None:
        if finished:
            self._tell(lambda: _resolve(finished))

    def _fail(self, failure: AstraFlowError) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify()

        def tell() -> None:
            self.failure = self.failure or failure
            self.ready.set()
            self.parked.set()
            for job in tuple(self._open):
                if not job.future.done():
                    job.future.set_exception(self.failure)

        self._tell(tell)

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed: nobody waits any more
            log.info("the event loop is closed; the engine ends")
            self._closing = True


def _resolve(finished: list[tuple[Job, Sample]]) -> None:
    for job, sample in finished:
        if not job.future.done():
            job.future.set_result(sample)
