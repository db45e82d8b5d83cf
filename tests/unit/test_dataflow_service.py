"""The dataflow service's handlers, called as the server calls them: many at once on one loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from astraflow.dataflow.flow import Flow
from astraflow.dataflow.service import DataflowService
from astraflow.dataflow.store import Store
from astraflow.plugins import recipe_type
from astraflow.recipe.files import load_recipe
from astraflow.records import FinishReason, GradedSample, Outcome, Prompt, SampleGroup
from astraflow.wire import messages as m

_PROMPTS = [Prompt(id=f"p{i}", problem=f"{i}?", answer=str(i)) for i in range(10)]
_LINEAGE = "first"


def _service(folder: Path) -> DataflowService:
    # 2 groups of 2 samples make a batch; with staleness 0 no more than one batch is sampled
    overrides = [
        "rollout.samples_per_prompt=2",
        "trainer.batch_size=4",
        "algorithm.updates_per_step=1",
        "dataflow.max_staleness=0",
    ]
    recipe = load_recipe("quickstart", overrides, recipe_type=recipe_type()).recipe
    store = Store(folder / "rollouts.sqlite")
    return DataflowService(Flow(recipe, _PROMPTS, {}, store, dataset="d"), recipe, store, folder)


def _ask(instance: str, *, most: int = 8, wait_s: float = 20.0) -> m.LeaseRequest:
    return m.LeaseRequest(instance=instance, version=0, max_groups=most, wait_s=wait_s, lineage="")


def _beat(instance: str, *lease_ids: str) -> m.Beat:
    return m.Beat(instance=instance, version=0, running=0, waiting=0, lease_ids=lease_ids)


async def _until_waiting(service: DataflowService, waiting: asyncio.Task[m.LeaseReply]) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()


def _answer(lease: m.Lease) -> SampleGroup:
    samples = tuple(
        GradedSample(
            token_ids=(5, 6), logprobs=(-0.5, -0.25), versions=(0, 0), finish=FinishReason.STOP,
            reward=reward, outcome=Outcome.RIGHT if reward else Outcome.WRONG,
        )
        for reward in (0.0, 1.0)
    )  # fmt: skip
    return SampleGroup(
        lease_id=lease.lease_id, prompt_ids=(1, 2), samples=samples,
        sampled_s=0.1, graded_s=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("ending", ["release", "lost"])
def test_lease_that_waits_when_its_instance_goes_is_granted_to_another(
    tmp_path: Path, ending: str
) -> None:
    async def scene() -> None:
        service = _service(tmp_path)
        stays = await service.lease(_ask("stays"))
        assert len(stays.leases) == 2  # the admission allows no more before a step is trained
        waiting = asyncio.create_task(service.lease(_ask("goes")))
        await _until_waiting(service, waiting)
        if ending == "release":
            await service.release(m.ReleaseRequest(instance="goes", lease_ids=()))
        else:
            await service.lost(m.LostReport(instance="goes"))
        # what comes free then is for somebody who listens
        await service.release(
            m.ReleaseRequest(instance="stays", lease_ids=(stays.leases[0].lease_id,))
        )
        assert (await waiting).leases == ()
        again = await service.lease(_ask("stays"))
        assert [lease.position for lease in again.leases] == [stays.leases[0].position]

    asyncio.run(scene())


def test_waiting_lease_is_granted_as_soon_as_another_instance_gives_back(tmp_path: Path) -> None:
    async def scene() -> None:
        service = _service(tmp_path)
        first = await service.lease(_ask("first"))
        waiting = asyncio.create_task(service.lease(_ask("second")))
        await _until_waiting(service, waiting)
        ids = tuple(lease.lease_id for lease in first.leases)
        await service.release(m.ReleaseRequest(instance="first", lease_ids=ids))
        reply = await asyncio.wait_for(waiting, 5)
        assert sorted(lease.position for lease in reply.leases) == [0, 1]

    asyncio.run(scene())


def test_waiting_batch_is_handed_out_once_it_is_whole_and_again_when_asked_again(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        service = _service(tmp_path)
        leases = (await service.lease(_ask("i"))).leases
        asked = m.BatchRequest(step=0, wait_s=20.0)
        waiting = asyncio.create_task(service.batch(asked))
        for lease in leases:
            await service.groups(m.GroupsReport(instance="i", groups=(_answer(lease),), failed=()))
        content = await asyncio.wait_for(waiting, 5)
        assert content
        assert await service.batch(asked) == content  # its answer was lost on the way

    asyncio.run(scene())


def test_beat_names_leases_that_the_instance_does_not_hold(tmp_path: Path) -> None:
    async def scene() -> None:
        service = _service(tmp_path)
        leases = (await service.lease(_ask("i"))).leases
        ids = tuple(lease.lease_id for lease in leases)
        assert (await service.beat(_beat("i", *ids))).lost == ()
        assert (await service.beat(_beat("other", *ids))).lost == ids
        await service.lost(m.LostReport(instance="i"))
        assert (await service.beat(_beat("i", *ids))).lost == ids

    asyncio.run(scene())
