"""
Intake: new versions on their way into the engine.

    fetch (sampling goes on) ─▶ may I? ─▶ hold ─ patch ─ prove ─▶ version + 1 ─▶ go on
                                   │              └─ a proof fails: again, then whole, then refuse
                                   └─ not while the held version is being evaluated here
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from astraflow.errors import AstraFlowError, ProofError, StaleBaseError, WireError
from astraflow.interfaces import InferenceBackend, WeightUpdate
from astraflow.weights import TcpReceiver
from astraflow.wire import messages as m
from astraflow.wire.client import ServiceClient
from astraflow.wire.waits import Waits

__all__ = ["Intake"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_ASK_AGAIN_S = 0.1
_RETRY_S = 1.0
_GIVE_UP_AFTER_S = 120.0


class Intake:
    """
    Brings every newer version into one engine.

    Args:
        instance: Name of this instance, for the senders' ledger.
        engine: Where versions are installed.
        client: The dataflow service, which may put an installation off.
        beat: Returns the last beat's answer, with the senders' addresses.
        run_id: The run.
        token: The run's token.
        waits: Where waiting is noted.
        adopted: Told of the trainer's start whose weights the engine holds from now on.
        patience_s: Time for senders to come back (s).
    """

    def __init__(
        self,
        instance: str,
        engine: InferenceBackend,
        client: ServiceClient,
        beat: Callable[[], m.BeatReply | None],
        *,
        run_id: str,
        token: str,
        waits: Waits,
        adopted: Callable[[str], None] = lambda _: None,
        patience_s: float = 120.0,
    ) -> None:
        self._adopted = adopted
        self._patience_s = patience_s
        self._lineage = ""
        self._instance = instance
        self._engine = engine
        self._client = client
        self._beat = beat
        self._run_id = run_id
        self._token = token
        self._waits = waits
        self._held_ms: list[float] = []
        self._wire_bytes = 0
        self._last: dict[str, Any] = {}
        self._swaps = 0

    async def run(self) -> None:
        """
        Fetch and install until cancelled.

        Raises:
            WireError: no sender could be reached for a while, or a version cannot be proved.
        """
        publishers: tuple[m.PublisherAddress, ...] = ()
        lineage = ""
        receiver: TcpReceiver | None = None
        failing_since: float | None = None
        while True:
            reply = self._beat()
            if reply is None or not reply.publishers:
                await asyncio.sleep(_ASK_AGAIN_S)
                continue
            if receiver is None or (reply.publishers, reply.lineage) != (publishers, lineage):
                publishers, lineage = reply.publishers, reply.lineage
                receiver = self._connect(publishers)
            try:
                await self._bring_in(receiver, lineage)
                failing_since = None
            except StaleBaseError as error:
                log.warning("%s", error)
                await receiver.refuse(self._engine.version, str(error))
            except ProofError:
                raise
            except WireError as error:
                failing_since = failing_since or time.monotonic()
                if time.monotonic() - failing_since > self._patience_s:
                    raise
                log.warning("%s; trying again", error)
                await asyncio.sleep(_RETRY_S)

    def numbers(self) -> dict[str, Any]:
        """Return counters and the last swap's times."""
        recent = self._held_ms[-100:]
        return {
            "swaps": self._swaps,
            "wire_bytes": self._wire_bytes,
            "held_ms_median": round(statistics.median(recent), 2) if recent else 0.0,
            "held_ms_max": round(max(self._held_ms, default=0.0), 2),
            "last": self._last,
        }

    def _connect(self, publishers: tuple[m.PublisherAddress, ...]) -> TcpReceiver:
        log.info("weights come from %s", ", ".join(f"{a.host}:{a.port}" for a in publishers))
        return TcpReceiver(
            [(address.host, address.port) for address in publishers],
            run_id=self._run_id,
            token=self._token,
            name=self._instance,
        )

    async def _bring_in(self, receiver: TcpReceiver, lineage: str) -> None:
        # No wait is noted here: having no newer version is the normal state.
        if self._lineage and self._lineage != lineage:
            # The trainer was restarted: its versions count anew, and nothing held is one of them.
            log.info("another start of the trainer: its weights are fetched whole")
            update = await receiver.whole()
        else:
            update = await receiver.newest(held=self._engine.version)
        fetched = time.monotonic()
        await self._engine.prepare(update)
        prepared = time.monotonic()
        await self._until_allowed(update)
        held_ms = await self._install(receiver, update)
        self._lineage = lineage
        self._adopted(lineage)
        self._swaps += 1
        self._held_ms.append(held_ms)
        self._wire_bytes += update.wire_bytes
        self._last = {
            "version": int(update.version),
            "mode": "full" if update.base is None else "delta",
            "bytes": update.wire_bytes,
            "held_ms": round(held_ms, 2),
            "prepare_ms": round((prepared - fetched) * 1000, 2),
            "ready_to_serving_ms": round((time.monotonic() - fetched) * 1000, 2),
        }
        await receiver.confirm(self._engine.version)
        await self._ask(int(self._engine.version), installed=True)

    async def _until_allowed(self, update: WeightUpdate) -> None:
        reply = await self._ask(int(update.version), installed=False)
        if reply.allowed:
            return
        with self._waits.waiting(f"evaluation: {reply.why}", deadline_s=3600.0):
            while not reply.allowed:
                await asyncio.sleep(_ASK_AGAIN_S)
                reply = await self._ask(int(update.version), installed=False)

    async def _ask(self, version: int, *, installed: bool) -> m.InstallReply:
        request = m.InstallRequest(
            instance=self._instance, version=version, installed=installed, lineage=self._lineage
        )
        return await self._client.call("/v1/install", request, m.InstallReply)

    async def _install(self, receiver: TcpReceiver, update: WeightUpdate) -> float:
        started = time.monotonic()
        async with self._engine.held():
            try:
                await self._engine.install(update)
            except ProofError as error:
                with self._waits.waiting("trainer: whole tensors", deadline_s=_GIVE_UP_AFTER_S):
                    await self._cure(receiver, update, error)
        return (time.monotonic() - started) * 1000

    async def _cure(self, receiver: TcpReceiver, update: WeightUpdate, error: ProofError) -> None:
        """Bring weights that failed their proof to a proved version before decoding goes on."""
        log.warning("%s; the differing tensors are fetched whole", error)
        await self._persist(lambda: receiver.refuse(update.version, error.what))
        for tensors in (error.tensors, ()):
            try:
                whole = await self._persist(partial(receiver.whole, tensors=tensors))
                if tensors and whole.version != update.version:
                    continue  # the other tensors are of an older version: take everything
                await self._engine.prepare(whole)
                await self._engine.install(whole)
                return
            except ProofError as still:
                log.warning("%s", still)
        raise AstraFlowError(
            f"version {update.version} cannot be proved here, even sent whole",
            hint="this machine's memory or the engine's weight mapping is faulty; see the log",
        )

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeat a call over the wire: decoding stands still, and must not go on unproved."""
        give_up = time.monotonic() + _GIVE_UP_AFTER_S
        while True:
            try:
                return await call()
            except WireError as error:
                if time.monotonic() > give_up:
                    raise
                log.warning("%s; decoding stays held, trying again", error)
                await asyncio.sleep(_RETRY_S)
