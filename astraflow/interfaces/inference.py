"""InferenceBackend: sample tokens under a known policy version."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from astraflow.interfaces.weights import WeightUpdate
from astraflow.records import PolicyVersion, Sample, SampleRequest

__all__ = ["EngineLoad", "InferenceBackend", "InferenceContext", "Sampler"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceContext:
    """What an inference adapter is built from."""

    model_path: str
    """Folder or hub id of the starting checkpoint."""

    dtype: str
    """``bfloat16`` or ``float32``: type of the weights that serve."""

    context_length: int
    """Longest prompt plus answer (tokens)."""

    settings: Any
    """The adapter's own section of the recipe, validated (its ``Plugin.settings``)."""

    gpus: tuple[int, ...]
    """Devices this instance may use; empty for the CPU."""

    tensor_parallel: int
    """Devices that hold one copy of the model (count)."""

    data_parallel: int
    """Copies of the model in this instance (count)."""

    reproducible: bool
    """True when a sample may depend on its request and the weights only, not on its neighbors."""

    log_folder: Path
    """Where the adapter's own processes write their logs."""

    run_id: str
    """Scopes names that the operating system shares, such as those in /dev/shm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """How busy an engine is, for admission."""

    running: int
    """Requests being decoded (count)."""

    waiting: int
    """Requests admitted and not started (count)."""

    cache_used_frac: float
    """Share of the key-value cache in use, 0 to 1."""

    capacity: int
    """Requests that can be decoded at once (count)."""

    waiting_target: int | None = None
    """Requests that should wait so that the engine never runs dry; None leaves it to admission
    (count)."""


class Sampler(Protocol):
    """The one thing that a workflow asks of an engine."""

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one answer; cancelling the call frees its slot in the engine."""
        ...


class InferenceBackend(Sampler, Protocol):
    """
    One engine, or several copies that always hold the same version.

    Every method may be awaited from one event loop only. A method that fails leaves the
    engine as it was, or raises from every later call.
    """

    @property
    def version(self) -> PolicyVersion:
        """Version that a request started now would be sampled with."""
        ...

    async def start(self, *, within_s: float) -> None:
        """
        Load the checkpoint and return once requests are answered.

        Raises:
            NotReadyError: the engine did not answer in time.
        """
        ...

    async def read_load(self) -> EngineLoad:
        """Read the load; cheap enough to call ten times a second."""
        ...

    async def prepare(self, update: WeightUpdate) -> None:
        """
        Bring an update near the weights while sampling goes on; ``install`` follows.

        Raises:
            WireError: the update does not fit this model.
        """
        ...

    def held(self) -> AbstractAsyncContextManager[None]:
        """Keep decoding still while the block runs; no request is aborted."""
        ...

    async def install(self, update: WeightUpdate) -> None:
        """
        Patch the weights in place; only inside ``held``. ``version`` changes last.

        Raises:
            StaleBaseError: the update is a delta against a version other than ``version``.
            ProofError: a tensor does not hash to its proof; the engine must not leave
                ``held`` before an update with whole tensors has been installed.
        """
        ...

    async def close(self) -> None:
        """Stop the engine and every process it started; calling twice is harmless."""
        ...
