"""Episodes: leases in flight, from asking for them to handing their groups back."""

from __future__ import annotations

import asyncio
import collections
import logging
import time
from typing import Any

from astraflow.errors import AstraFlowError
from astraflow.interfaces import InferenceBackend, Sampler
from astraflow.raas.admission import groups_wanted
from astraflow.raas.workflow import PromptTooLong, Workflow
from astraflow.recipe.schema import Recipe
from astraflow.records import Sample, SampleGroup, SampleRequest
from astraflow.wire import messages as m
from astraflow.wire.client import ServiceClient
from astraflow.wire.waits import Waits

__all__ = ["Episodes", "sample_with_retries"]

log = logging.getLogger(__name__)

_LEASE_WAIT_S = 5.0
_BEAT_S = 1.0
_LEAVE_S = 3.0


class Episodes:
    """
    Keeps the engine busy.

    Args:
        instance: Name of this instance.
        recipe: The run.
        engine: Where answers are sampled.
        client: The dataflow service.
        waits: Where waiting for work is noted.
    """

    def __init__(
        self,
        instance: str,
        recipe: Recipe,
        engine: InferenceBackend,
        client: ServiceClient,
        waits: Waits,
    ) -> None:
        self._instance = instance
        self._recipe = recipe
        self._engine = engine
        self._client = client
        self._waits = waits
        self._running: dict[str, tuple[m.Lease, asyncio.Task[None]]] = {}
        self._finished: asyncio.Queue[SampleGroup | m.FailedLease] = asyncio.Queue()
        self._freed = asyncio.Event()
        self._outcomes: collections.Counter[str] = collections.Counter()
        self._sampled_tokens = 0
        self._samples = 0
        self._graded_s = 0.0
        self._unreported: set[str] = set()
        self.last_beat: m.BeatReply | None = None
        self.lineage = ""
        """The trainer's start that the engine's weights were proved against."""

    @property
    def in_flight(self) -> int:
        """Samples leased and not handed back (count)."""
        return sum(lease.samples for lease, _ in self._running.values())

    async def pull(self, workflow: Workflow) -> None:
        """Lease and start work until cancelled."""
        while True:
            wanted = groups_wanted(
                await self._engine.read_load(),
                in_flight=self.in_flight,
                group_size=self._recipe.rollout.samples_per_prompt,
                limit=self._recipe.rollout.max_concurrent_samples,
            )
            if wanted == 0:
                self._freed.clear()
                await asyncio.wait([asyncio.ensure_future(self._freed.wait())], timeout=_BEAT_S)
                continue
            for lease in await self._lease(wanted):
                task = asyncio.create_task(self._run(workflow, lease))
                self._running[lease.lease_id] = (lease, task)

    async def report(self) -> None:
        """Hand finished groups back, all that are there in one message, until cancelled."""
        while True:
            items = [await self._finished.get()]
            while not self._finished.empty():
                items.append(self._finished.get_nowait())
            message = m.GroupsReport(
                instance=self._instance,
                groups=tuple(item for item in items if isinstance(item, SampleGroup)),
                failed=tuple(item for item in items if isinstance(item, m.FailedLease)),
            )
            deadline_s = self._recipe.limits.ready_s
            with self._waits.waiting("dataflow: groups", deadline_s=deadline_s):
                await self._client.call("/v1/groups", message, m.GroupsReply)
            self._unreported -= {item.lease_id for item in items}

    async def beat(self) -> None:
        """Renew the leases each second and learn what is new, until cancelled."""
        while True:
            load = await self._engine.read_load()
            reply = await self._client.call(
                "/v1/beat",
                m.Beat(
                    instance=self._instance,
                    version=self._engine.version,
                    running=load.running,
                    waiting=load.waiting,
                    lease_ids=(*self._running, *self._unreported),
                    lineage=self.lineage,
                ),
                m.BeatReply,
            )
            self.last_beat = reply
            for lease_id in reply.lost:
                self._cancel(lease_id)
            await asyncio.sleep(_BEAT_S)

    async def leave(self) -> None:
        """
        Stop the work and give back every lease, those of groups too that were not handed in.

        A group whose report was cut off may have arrived; its lease has ended then, and is not
        given back twice.
        """
        lease_ids = (*self._running, *self._unreported)
        for lease_id in tuple(self._running):
            self._cancel(lease_id)
        await self._client.call(
            "/v1/release",
            m.ReleaseRequest(instance=self._instance, lease_ids=lease_ids),
            m.Done,
            within_s=_LEAVE_S,
        )

    def numbers(self) -> dict[str, Any]:
        """Return counters since the start."""
        return {
            "samples": self._samples,
            "sampled_tokens": self._sampled_tokens,
            "graded_s": round(self._graded_s, 3),
            "outcomes": dict(self._outcomes),
            "groups_in_flight": len(self._running),
            "idle_s": round(self._waits.total_s("work"), 3),
        }

    async def _lease(self, wanted: int) -> tuple[m.Lease, ...]:
        request = m.LeaseRequest(
            instance=self._instance,
            version=self._engine.version,
            max_groups=wanted,
            wait_s=_LEASE_WAIT_S,
            lineage=self.lineage,
        )
        if self._running:
            reply = await self._client.call("/v1/lease", request, m.LeaseReply)
        else:
            # Only now does the engine stand still for want of work.
            with self._waits.waiting("work: a lease from dataflow", deadline_s=_LEASE_WAIT_S):
                reply = await self._client.call("/v1/lease", request, m.LeaseReply)
        return reply.leases

    async def _run(self, workflow: Workflow, lease: m.Lease) -> None:
        try:
            group = await workflow.run(lease)
        except PromptTooLong as error:
            self._fail(lease, "prompt_too_long", error)
        except AstraFlowError as error:
            self._fail(lease, "sampling_failed", error)
        else:
            self._note(group)
            self._hand_back(group)
        finally:
            self._running.pop(lease.lease_id, None)
            self._freed.set()

    def _fail(self, lease: m.Lease, cause: Any, error: AstraFlowError) -> None:
        log.warning("prompt `%s`: %s", lease.prompt.id, error)
        self._hand_back(m.FailedLease(lease_id=lease.lease_id, cause=cause, why=str(error)))

    def _hand_back(self, item: SampleGroup | m.FailedLease) -> None:
        self._unreported.add(item.lease_id)
        self._finished.put_nowait(item)

    def _note(self, group: SampleGroup) -> None:
        self._samples += len(group.samples)
        self._sampled_tokens += sum(len(sample.token_ids) for sample in group.samples)
        self._graded_s += group.graded_s
        self._outcomes.update(sample.outcome.value for sample in group.samples)

    def _cancel(self, lease_id: str) -> None:
        item = self._running.pop(lease_id, None)
        if item is not None:
            item[1].cancel()


async def sample_with_retries(
    engine: Sampler, request: SampleRequest, *, timeout_s: float, retries: int
) -> Sample:
    """
    Sample one answer, again after a failure.

    Raises:
        AstraFlowError: it failed ``retries + 1`` times; the last cause is chained.
    """
    failure: Exception | None = None
    started = time.monotonic()
    for _ in range(retries + 1):
        try:
            return await asyncio.wait_for(engine.sample(request), timeout_s)
        except (AstraFlowError, TimeoutError) as error:
            failure = error
            log.warning("request %s failed: %r", request.request_id, error)
    raise AstraFlowError(
        f"request {request.request_id} failed {retries + 1} times in "
        f"{time.monotonic() - started:.1f} s: {failure!r}"
    ) from failure
