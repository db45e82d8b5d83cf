"""The dataflow process: HTTP in front of the flow, with waiting callers woken by what changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from astraflow.data import load_prompts
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.store import Store
from astraflow.errors import DataError
from astraflow.grading import report_golds
from astraflow.metrics import prometheus_text
from astraflow.plugins import recipe_type
from astraflow.recipe.files import read_resolved
from astraflow.recipe.schema import Recipe
from astraflow.wire import messages as m
from astraflow.wire.auth import read_token
from astraflow.wire.role import Role
from astraflow.wire.server import bind, build_app, endpoint, serve

__all__ = ["DataflowService", "run_dataflow"]

log = logging.getLogger(__name__)

_HOUSEKEEPING_S = 1.0


class _Instance(msgspec.Struct):
    """What the service knows of one RaaS instance."""

    version: int
    seen_at: float
    running: int = 0
    waiting: int = 0


class DataflowService:
    """
    The endpoints. Every handler runs on the event loop and changes the flow in one piece.

    Args:
        flow: The rules and the state.
        steps: Batches of the whole run (count).
        epoch_limit: Passes over the data without one usable prompt after which it is an error.
    """

    def __init__(self, flow: Flow, recipe: Recipe) -> None:
        self._flow = flow
        self._recipe = recipe
        self._changed = asyncio.Condition()
        self._instances: dict[str, _Instance] = {}
        self._publishers: dict[int, m.PublisherAddress] = {}
        self._ranks = 0
        self._published = -1
        self.failure: DataError | None = None

    def endpoints(self, token: str) -> dict[str, Any]:
        """Return the handlers by path."""
        return {
            "/v1/lease": endpoint(m.LeaseRequest, self.lease, token),
            "/v1/groups": endpoint(m.GroupsReport, self.groups, token),
            "/v1/beat": endpoint(m.Beat, self.beat, token),
            "/v1/install": endpoint(m.InstallRequest, self.install, token),
            "/v1/release": endpoint(m.ReleaseRequest, self.release, token),
            "/v1/publishers": endpoint(m.PublishersReport, self.publishers, token),
            "/v1/version": endpoint(m.VersionReport, self.version, token),
            "/v1/batch": endpoint(m.BatchRequest, self.batch, token),
            "/v1/checkpoint": endpoint(m.CheckpointRequest, self.checkpoint, token),
            "/v1/evaluation": endpoint(m.EvaluationRequest, self.evaluation, token),
        }

    # --- RaaS

    async def lease(self, request: m.LeaseRequest) -> m.LeaseReply:
        """Grant leases; wait a moment when there is nothing to sample now."""
        instance = self._see(request.instance, request.version)
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

    async def groups(self, report: m.GroupsReport) -> m.GroupsReply:
        """Take groups in."""
        counts = self._flow.report(report.groups, report.failed, now=time.monotonic())
        self._check_for_usable_prompts()
        await self._notify()
        return m.GroupsReply(counts=counts)

    async def beat(self, beat: m.Beat) -> m.BeatReply:
        """Take a sign of life; tell what is new."""
        instance = self._see(beat.instance, beat.version)
        instance.running, instance.waiting = beat.running, beat.waiting
        lost = self._flow.renew(beat.instance, beat.lease_ids, now=time.monotonic())
        complete = self._ranks > 0 and len(self._publishers) == self._ranks
        ranks = sorted(self._publishers)
        return m.BeatReply(
            publishers=tuple(self._publishers[rank] for rank in ranks) if complete else (),
            newest=self._published,
            trainer_version=self._flow.version,
            lost=tuple(lost),
        )

    async def install(self, request: m.InstallRequest) -> m.InstallReply:
        """Allow a version to be installed, unless the held one is being evaluated there."""
        if request.installed:
            self._see(request.instance, request.version)
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

    # --- trainer

    async def publishers(self, report: m.PublishersReport) -> m.Done:
        """Learn where a rank serves its shards."""
        self._ranks = report.ranks
        self._publishers[report.address.rank] = report.address
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


async def run_dataflow(
    role: Role, *, run_folder: Path, host: str, port: int, resume_from: Path | None
) -> None:
    """Run the service until asked to stop."""
    recipe = read_resolved(run_folder / "recipe.json", recipe_type=recipe_type()).recipe
    token = read_token(run_folder)
    listener = bind(host, port)
    store = Store(run_folder / "rollouts.sqlite")
    flow, golds = _load_flow(recipe, store)
    if resume_from is not None:
        flow.restore(resume_from / "dataflow.msgpack")
    service = DataflowService(flow, recipe)
    app = build_app(
        service.endpoints(token),
        token=token,
        healthy=lambda: True,
        metrics=lambda: prometheus_text("dataflow", service.numbers()),
    )
    server = await serve(app, listener)
    tasks = [
        asyncio.create_task(server.serve(sockets=[listener])),
        asyncio.create_task(service.keep_house(role)),
        asyncio.create_task(role.beat(service.numbers)),
        asyncio.create_task(role.stop.wait()),
    ]
    bound_host, bound_port = listener.getsockname()[:2]
    role.ready(address=f"http://{bound_host}:{bound_port}", prompts=flow.num_prompts)
    # A daemon: nobody waits for it at the end, and its workers end with this process.
    threading.Thread(target=_check_golds, args=(golds,), name="golds", daemon=True).start()
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = server.force_exit = True  # idle keep-alive connections do not count
    await asyncio.wait([tasks[0]], timeout=6)
    for task in tasks[1:]:
        task.cancel()
    store.close()
    for task in done:
        task.result()  # raises what ended the service, if something did


def _check_golds(sets: Mapping[str, Mapping[str, str]]) -> None:
    """Report golds that would be paid for their own text only, while the run goes on."""
    for name, golds in sets.items():
        report_golds(name, golds)


def _load_flow(recipe: Recipe, store: Store) -> tuple[Flow, dict[str, dict[str, str]]]:
    """Load every dataset; return the flow, and the golds of those that are not built in."""
    root = Path(recipe.data.root) if recipe.data.root else None
    train = load_prompts(
        recipe.data.train, root=root, columns=recipe.data.columns, max_rows=recipe.data.max_rows
    )
    log.info("%d prompts from %s; dropped %s", len(train.prompts), train.source, train.dropped)
    sets = {
        name: load_prompts(name, root=root, max_rows=recipe.evaluation.max_rows)
        for name in recipe.evaluation.datasets
    }
    golds = {
        loaded.name: {prompt.id: prompt.answer for prompt in loaded.prompts}
        for loaded in (train, *sets.values())
        if loaded.source != "built in"
    }
    evaluated = {name: loaded.prompts for name, loaded in sets.items()}
    dataset = f"{train.name}:{train.sha256}"
    return Flow(recipe, train.prompts, evaluated, store, dataset=dataset), golds
