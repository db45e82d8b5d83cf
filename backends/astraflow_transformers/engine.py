"""Engine: the thread that decodes; requests come in, samples go out, and it can be held."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch

from astraflow.errors import AstraFlowError
from astraflow_transformers.sequences import Sequence

__all__ = ["Batch", "Engine"]

log = logging.getLogger(__name__)


class Batch(Protocol):
    """How sequences are decoded together."""

    @property
    def running(self) -> int:
        """Sequences in the batch (count)."""
        ...

    @property
    def cache_used_frac(self) -> float:
        """Share of the cache in use."""
        ...

    def admit(self, waiting: list[Sequence], version: int) -> list[Sequence]:
        """Take sequences in; return which."""
        ...

    def step(self, version: int) -> None:
        """Decode one token of every sequence."""
        ...

    def drain(self) -> list[Sequence]:
        """Take every sequence out."""
        ...


class Engine:
    """
    Decodes in a thread of its own until closed.

    Args:
        load: Makes the batch, and with it the model; called in the thread.
    """

    def __init__(self, load: Callable[[], Batch]) -> None:
        self._load = load
        self._batch: Batch | None = None
        self._waiting: list[Sequence] = []
        self._wake = threading.Condition()
        self._holds = 0
        self._parked = False
        self._closed = False
        self._failure: BaseException | None = None
        self.version = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """What ended the thread; None while it is well."""
        return self._failure

    @property
    def loaded(self) -> bool:
        """True once requests are answered."""
        return self._batch is not None

    @property
    def running(self) -> int:
        """Requests being decoded (count)."""
        return self._batch.running if self._batch else 0

    @property
    def waiting(self) -> int:
        """Requests not started (count)."""
        return len(self._waiting)

    @property
    def cache_used_frac(self) -> float:
        """Share of the cache in use."""
        return self._batch.cache_used_frac if self._batch else 0.0

    def submit(self, sequence: Sequence) -> None:
        """
        Queue a sequence.

        Raises:
            AstraFlowError: the engine has failed or is closed.
        """
        with self._wake:
            if self._failure is not None or self._closed:
                raise AstraFlowError(f"the engine has ended: {self._failure or 'it was closed'!r}")
            self._waiting.append(sequence)
            self._wake.notify_all()

    def cancel(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is; its slot is free before the next step."""
        with self._wake:
            sequence.cancelled = True
            if sequence in self._waiting:
                self._waiting.remove(sequence)

    def hold(self) -> None:
        """Return when the thread stands still between two steps; it stays so until `release`."""
        with self._wake:
            self._holds += 1
            self._wake.notify_all()
            self._wake.wait_for(lambda: self._parked or self._failure is not None or self._closed)

    def release(self) -> None:
        """Let decoding go on."""
        with self._wake:
            self._holds -= 1
            self._wake.notify_all()

    def close(self) -> None:
        """End the thread; sequences that are left fail."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        self._thread.join(timeout=30)

    def _run(self) -> None:
        try:
            batch = self._load()
            with self._wake:
                self._batch = batch
            with torch.inference_mode():
                while self._next(batch):
                    self._work(batch)
        except BaseException as error:  # noqa: BLE001 - the thread's edge: every waiter is told
            log.exception("the engine ends with an error")
            self._failure = error
        self._fail_the_rest()

    def _next(self, batch: Batch) -> bool:
        """Wait until there is something to do; False when closed."""
        with self._wake:
            while not self._closed:
                if self._holds:
                    self._parked = True
                    self._wake.notify_all()
                elif batch.running or self._waiting:
                    self._parked = False
                    return True
                self._wake.wait()
            return False

    def _work(self, batch: Batch) -> None:
        with self._wake:
            waiting = [s for s in self._waiting if not s.cancelled]
        version = self.version
        batch.step(version)
        taken = batch.admit(waiting, version)
        if taken:
            gone = set(map(id, taken))
            with self._wake:
                self._waiting = [s for s in self._waiting if id(s) not in gone]

    def _fail_the_rest(self) -> None:
        with self._wake:
            left = [*self._waiting, *(self._batch.drain() if self._batch else [])]
            self._waiting = []
            self._wake.notify_all()
        reason: Any = self._failure or "it was closed"
        for sequence in left:
            if not sequence.cancelled:
                sequence.deliver(AstraFlowError(f"the engine has ended: {reason!r}"))
