"""HTTP in front of the flow, with waiting callers woken by what changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from pathlib import Path
from typing import Any

import msgspec

from astraflow.dataflow.flow import Flow
from astraflow.dataflow.store import Store
from astraflow.errors import DataError
from astraflow.recipe.schema import Recipe
from astraflow.wire import messages as m
from astraflow.wire.auth import run_id_of
from astraflow.wire.role import Role
from astraflow.wire.server import endpoint

__all__ = ["DataflowService"]

log = logging.getLogger(__name__)

_HOUSEKEEPING_S = 1.0


class _Instance(msgspec.Struct):
    """What the service knows of one RaaS instance."""

    version: int
    seen_at: float
    running: int = 0
    waiting: int = 0


class _Trainer(msgspec.Struct, frozen=True, kw_only=True):
    """What a restarted service must know of the trainer."""

    lineage: str = ""
    ranks: int = 0
    published: int = -1
    publishers: tuple[m.PublisherAddress, ...] = ()


class DataflowService:
    """
    The endpoints. Every handler runs on the event loop and changes the flow in one piece.

    Args:
        flow: The rules and the state.
        recipe: The run.
        store: The flow's own, for what a restarted service must know.
        run_folder: With recipe.json, for instances that join.
    """

    def __init__(self, flow: Flow, recipe: Recipe, store: Store, run_folder: Path) -> None:
        self._flow = flow
        self._run_folder = run_folder
        self._store = store
        self._recipe = recipe
        self._changed = asyncio.Condition()
        self._instances: dict[str, _Instance] = {}
        self._publishers: dict[int, m.PublisherAddress] = {}
        self._ranks = 0
        self._published = -1
        self._lineage = ""
        self.failure: DataError | None = None

    def endpoints(self, token: str) -> dict[str, Any]:
        """Return the handlers by path."""
        return {
            "/v1/run": endpoint(m.RunRequest, self.run, token),
            "/v1/lease": endpoint(m.LeaseRequest, self.lease, token),
            "/v1/groups": endpoint(m.GroupsReport, self.groups, token),
            "/v1/beat": endpoint(m.Beat, self.beat, token),
            "/v1/install": endpoint(m.InstallRequest, self.install, token),
            "/v1/lost": endpoint(m.LostReport, self.lost, token),
            "/v1/release": endpoint(m.ReleaseRequest, self.release, token),
            "/v1/publishers": endpoint(m.PublishersReport, self.publishers, token),
            "/v1/version": endpoint(m.VersionReport, self.version, token),
            "/v1/batch": endpoint(m.BatchRequest, self.batch, token),
            "/v1/checkpoint": endpoint(m.CheckpointRequest, self.checkpoint, token),
            "/v1/evaluation": endpoint(m.EvaluationRequest, self.evaluation, token),
        }

    # --- RaaS

    async def run(self, _: m.RunRequest) -> m.RunReply:
        """Tell an instance that joins what the run is."""
        recipe = (self._run_folder / "recipe.json").read_text(encoding="utf-8")
        return m.RunReply(run_id=run_id_of(self._run_folder), recipe=recipe)

    async def lease(self, request: m.LeaseRequest) -> m.LeaseReply:
        """Grant leases; wait a moment when there is nothing to sample now."""
        instance = self._see(request.instance, self._known(request.version, request.lineage))
        give_up = time.monotonic() + min(request.wait_s, 30.0)
        while True:
            leases = self._flow.lease(
                request.instance,
                version=instance.version,
                most=request.max_groups,
                now=time.monotonic(),
            )
            if leases or not await self._wait_for_change(give_up):
                return m.LeaseReply(leases=tuple(leases))
            if self._instances.get(request.instance) is not instance:
                return m.LeaseReply(leases=())  # it left or died meanwhile: nobody listens

    async def groups(self, report: m.GroupsReport) -> m.GroupsReply:
        """Take groups in."""
        counts = self._flow.report(report.groups, report.failed, now=time.monotonic())
        self._check_for_usable_prompts()
        await self._notify()
        return m.GroupsReply(counts=counts)

    async def beat(self, beat: m.Beat) -> m.BeatReply:
        """Take a sign of life; tell what is new."""
        instance = self._see(beat.instance, self._known(beat.version, beat.lineage))
        instance.running, instance.waiting = beat.running, beat.waiting
        lost = self._flow.renew(beat.instance, beat.lease_ids, now=time.monotonic())
        complete = self._ranks > 0 and len(self._publishers) == self._ranks
        ranks = sorted(self._publishers)
        return m.BeatReply(
            publishers=tuple(self._publishers[rank] for rank in ranks) if complete else (),
            newest=self._published,
            trainer_version=self._flow.version,
            lost=tuple(lost),
            lineage=self._lineage,
        )

    async def install(self, request: m.InstallRequest) -> m.InstallReply:
        """Allow a version to be installed, unless the held one is being evaluated there."""
        if request.installed:
            self._see(request.instance, self._known(request.version, request.lineage))
            await self._notify()
            return m.InstallReply(allowed=True)
        held = self._instances.get(request.instance)
        evaluation = self._flow.evaluation
        if (
            held is not None
            and evaluation is not None
            and evaluation.state != "done"
            and held.version == evaluation.version
            and request.version > evaluation.version
        ):
            return m.InstallReply(allowed=False, why=f"evaluating version {evaluation.version}")
        return m.InstallReply(allowed=True)

    async def release(self, request: m.ReleaseRequest) -> m.Done:
        """Take leases back from an instance that leaves."""
        count = self._flow.release(request.instance, request.lease_ids)
        self._instances.pop(request.instance, None)
        log.info("instance %s left and gave back %d leases", request.instance, count)
        await self._notify()
        return m.Done()

    async def lost(self, report: m.LostReport) -> m.Done:
        """Hand out again what a dead instance held."""
        count = self._flow.forget(report.instance)
        self._instances.pop(report.instance, None)
        log.warning("instance %s is dead and held %d leases", report.instance, count)
        await self._notify()
        return m.Done()

    # --- trainer

    async def publishers(self, report: m.PublishersReport) -> m.Done:
        """Learn where a rank serves its shards; another start of the trainer begins anew."""
        if report.lineage != self._lineage:
            self._publishers.clear()
            self._instances.clear()
            self._lineage, self._published = report.lineage, -1
        self._ranks = report.ranks
        self._publishers[report.address.rank] = report.address
        self._note()
        return m.Done()

    async def version(self, report: m.VersionReport) -> m.VersionReply:
        """Learn that a version exists, or say whether it may be published yet."""
        evaluation = self._flow.evaluation
        if (
            not report.published
            and evaluation is not None
            and evaluation.state != "done"
            and evaluation.version < report.version
            and self._held_by(evaluation.version) == 0
        ):
            why = f"no instance holds version {evaluation.version}, which is to be evaluated"
            return m.VersionReply(publish=False, why=why)
        if report.published:
            self._published = max(self._published, report.version)
            self._flow.set_version(report.version)
            self._note()
            await self._notify()
        return m.VersionReply(publish=True)

    async def batch(self, request: m.BatchRequest) -> bytes | None:
        """Hand out a batch; wait a moment when it is not whole yet."""
        give_up = time.monotonic() + min(request.wait_s, 30.0)
        while True:
            content = self._flow.batch(request.step)
            if content is not None:
                await self._notify()
                return content
            if not await self._wait_for_change(give_up):
                return None

    async def checkpoint(self, request: m.CheckpointRequest) -> m.Done:
        """Write the dataflow's part of a checkpoint."""
        self._flow.save(Path(request.folder) / "dataflow.msgpack", step=request.step)
        return m.Done()

    async def evaluation(self, request: m.EvaluationRequest) -> m.EvaluationReply:
        """Start an evaluation, or tell how far it is."""
        score = self._flow.score_of(request.version)
        if score is None and request.start:
            started = self._flow.evaluate(request.version, now=time.monotonic())
            await self._notify()
            if started is None:
                return m.EvaluationReply(
                    version=request.version, state="done", held_by=0, finished=0, total=0
                )
        if score is not None:
            return m.EvaluationReply(
                version=request.version,
                state="done",
                held_by=self._held_by(request.version),
                finished=1,
                total=1,
                accuracy=score.accuracy,
                by_dataset=dict(score.by_dataset),
            )
        current = self._flow.evaluation
        assert current is not None, "an evaluation that was never started was asked for"
        return m.EvaluationReply(
            version=request.version,
            state=current.state,
            held_by=self._held_by(request.version),
            finished=current.finished,
            total=current.total,
        )

    # --- inside

    def recover(self) -> None:
        """Continue where the service stood when it died; the trainer goes on unaware."""
        self._flow.recover(now=time.monotonic())
        known = self._store.noted("trainer", _Trainer, _Trainer())
        self._lineage, self._ranks, self._published = known.lineage, known.ranks, known.published
        self._publishers = {address.rank: address for address in known.publishers}

    def _note(self) -> None:
        known = _Trainer(
            lineage=self._lineage,
            ranks=self._ranks,
            published=self._published,
            publishers=tuple(self._publishers.values()),
        )
        self._store.note("trainer", known)

    def _known(self, version: int, lineage: str) -> int:
        """
        Return the version that an instance holds of the trainer that runs now; -1 for none.

        What an engine loaded itself is version 0 of every trainer.
        """
        fits = version == 0 if not lineage else lineage == self._lineage
        return version if fits else -1

    async def keep_house(self, role: Role) -> None:
        """Expire leases and evaluations until cancelled; report each new score."""
        told = 0  # a resumed run tells its earlier scores again
        while self.failure is None:
            await asyncio.sleep(_HOUSEKEEPING_S)
            now = time.monotonic()
            lost = self._flow.expire(now=now)
            if lost:
                log.warning("%d leases were lost; their prompts are handed out again", lost)
            self._forget_silent_instances(now)
            for score in self._flow.scores[told:]:
                role.events.send("evaluation", **msgspec.to_builtins(score))
                log.info("version %d scores %.4f", score.version, score.accuracy)
            told = len(self._flow.scores)
            await self._notify()
        raise self.failure

    def numbers(self) -> dict[str, Any]:
        """Return the counters for heartbeat and /metrics."""
        evaluation = self._flow.evaluation
        progress = (
            {
                "version": evaluation.version,
                "finished": evaluation.finished,
                "total": evaluation.total,
            }
            if evaluation is not None and evaluation.state != "done"
            else {}
        )
        return {
            **self._flow.numbers(),
            "published": self._published,
            "instances": {name: instance.version for name, instance in self._instances.items()},
            "evaluation": progress,
        }

    def _see(self, name: str, version: int) -> _Instance:
        now = time.monotonic()
        instance = self._instances.setdefault(name, _Instance(version=version, seen_at=now))
        instance.version = max(instance.version, version)
        instance.seen_at = now
        return instance

    def _held_by(self, version: int) -> int:
        return sum(instance.version == version for instance in self._instances.values())

    def _forget_silent_instances(self, now: float) -> None:
        limit_s = self._recipe.dataflow.lease_timeout_s
        silent = [n for n, i in self._instances.items() if now - i.seen_at > limit_s]
        for name in silent:
            log.warning("instance %s gave no sign of life for %g s", name, limit_s)
            del self._instances[name]

    def _check_for_usable_prompts(self) -> None:
        too_long = self._flow.dropped.get("prompt_too_long", 0)
        if too_long >= self._flow.num_prompts and self._flow.produced == too_long:
            self.failure = DataError(
                f"all {too_long} prompts of `{self._recipe.data.train}` are longer than "
                f"`data.max_prompt_tokens` = {self._recipe.data.max_prompt_tokens}: the dataset is "
                "empty after the filter",
                hint="raise `data.max_prompt_tokens`",
            )

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _wait_for_change(self, give_up: float) -> bool:
        left_s = give_up - time.monotonic()
        if left_s <= 0:
            return False
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        return True
