"""The dataflow's rules: order, admission, staleness, exact batches, accounts, resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from astraflow.dataflow.flow import Flow
from astraflow.dataflow.prompts import PromptOrder
from astraflow.dataflow.store import Store
from astraflow.plugins import recipe_type
from astraflow.recipe.files import load_recipe
from astraflow.records import FinishReason, GradedSample, Outcome, Prompt, SampleGroup
from astraflow.wire.messages import Lease

_PROMPTS = [Prompt(id=f"p{i}", problem=f"{i}?", answer=str(i)) for i in range(10)]


def _flow(tmp_path: Path, *sets: str, name: str = "a.sqlite") -> Flow:
    # 2 groups of 2 samples make a batch of 4
    recipe = load_recipe(
        "quickstart",
        [
            "rollout.samples_per_prompt=2",
            "trainer.batch_size=4",
            "algorithm.updates_per_step=1",
            "dataflow.max_staleness=1",
            *sets,
        ],
        recipe_type=recipe_type(),
    ).recipe
    return Flow(recipe, _PROMPTS, {"test": _PROMPTS[:3]}, Store(tmp_path / name), dataset="d")


def _group(
    lease: Lease, *, rewards: tuple[float, ...] = (0.0, 1.0), version: int = 0
) -> SampleGroup:
    samples = tuple(
        GradedSample(
            token_ids=(5, 6, 7),
            logprobs=(-0.5, -0.25, -0.125),
            versions=(version, version, version + 1),
            finish=FinishReason.STOP,
            reward=reward,
            outcome=Outcome.RIGHT if reward else Outcome.WRONG,
        )
        for reward in rewards
    )
    return SampleGroup(
        lease_id=lease.lease_id, prompt_ids=(1, 2), samples=samples, sampled_s=0.1, graded_s=0.0
    )


def _lease(flow: Flow, most: int = 100, *, version: int = 0) -> list[Lease]:
    return flow.lease("i", version=version, most=most, now=0.0)


def test_order_is_a_permutation_each_epoch_and_returned_prompts_come_first() -> None:
    order = PromptOrder(5, seed=3)
    positions = [order.take() for _ in range(10)]
    assert sorted(order.row(p) for p in positions[:5]) == list(range(5))
    assert sorted(order.row(p) for p in positions[5:]) == list(range(5))
    order.give_back(7)
    order.give_back(2)
    assert [order.take(), order.take(), order.take()] == [2, 7, 10]


def test_order_of_another_dataset_is_not_resumed() -> None:
    state = PromptOrder(5, seed=3).state([1])
    assert not PromptOrder(6, seed=3).restore(state)
    resumed = PromptOrder(5, seed=3)
    assert resumed.restore(state)
    assert resumed.take() == 1


def test_admission_is_the_staleness_budget_less_what_is_out(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    # (version 0 + max_staleness 1 + 1) * 2 groups - 0 consumed
    leases = _lease(flow)
    assert len(leases) == 4
    flow.report([_group(lease) for lease in leases[:2]], [], now=0.0)
    assert flow.admissible == 0
    assert flow.batch(0) is not None
    assert flow.admissible == 0  # consumed what it used up
    flow.set_version(1)
    assert flow.admissible == 2


def test_instance_that_lags_too_far_gets_no_training_prompts(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    flow.set_version(2)
    assert _lease(flow, version=0) == []
    assert len(_lease(flow, version=1)) > 0


def test_batch_holds_whole_groups_and_the_rest_stays(tmp_path: Path) -> None:
    flow = _flow(tmp_path, "dataflow.max_staleness=2")
    leases = _lease(flow)
    flow.report([_group(lease) for lease in leases[:3]], [], now=0.0)
    content = flow.batch(0)
    assert content is not None
    tensors = load(content)
    assert tensors["cu_seqlens"].tolist() == [0, 5, 10, 15, 20]
    assert tensors["token_ids"][:5].tolist() == [1, 2, 5, 6, 7]
    assert tensors["behavior_logprobs"][:5].tolist() == [0, 0, -0.5, -0.25, -0.125]
    assert tensors["rewards"].tolist() == [0, 1, 0, 1]
    assert tensors["group_ids"].tolist() == [0, 0, 1, 1]
    assert tensors["prompt_tokens"].tolist() == [2, 2, 2, 2]
    assert tensors["min_versions"].dtype == np.int32
    assert flow.batch(0) == content
    assert flow.numbers()["buffered"] == 1


@pytest.mark.parametrize(("limit", "kept"), [(0, 1), (1, 2), (8, 9)])
def test_group_is_too_old_exactly_when_it_lies_beyond_the_limit(
    tmp_path: Path, limit: int, kept: int
) -> None:
    from astraflow.dataflow.buffer import Buffer, BufferedGroup

    buffer = Buffer(max_staleness=limit, order="earliest_deadline")
    lease = _lease(_flow(tmp_path))[0]
    for version in range(10):
        buffer.add(
            BufferedGroup(
                row_id=version, position=version, min_version=version, arrived=version,
                group=_group(lease),
            )
        )  # fmt: skip
    stale = buffer.drop_stale(version=9)
    assert len(buffer) == kept
    assert all(group.min_version < 9 - limit for group in stale)


def test_groups_without_signal_are_dropped_by_cause_and_replaced(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    leases = _lease(flow)
    counts = flow.report(
        [_group(leases[0], rewards=(1.0, 1.0)), _group(leases[1], rewards=(1.0,))], [], now=0.0
    )
    assert counts == {"equal_rewards": 1, "malformed": 1}
    assert len(_lease(flow)) == 2
    assert flow.dropped == {"equal_rewards": 1, "malformed": 1}
    assert flow.produced == 2


def test_answer_to_a_lost_lease_is_not_counted_twice(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    lease = _lease(flow, 1)[0]
    assert flow.expire(now=1e9) == 1
    assert flow.report([_group(lease)], [], now=0.0) == {"late": 1}
    assert _lease(flow, 1)[0].position == lease.position


def test_resumed_flow_goes_on_with_buffer_prompts_in_flight_and_accounts(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    leases = _lease(flow)
    flow.report([_group(lease) for lease in leases[:3]], [], now=0.0)
    first = flow.batch(0)
    flow.set_version(1)
    flow.save(tmp_path / "state", step=1)
    resumed = _flow(tmp_path)
    resumed.restore(tmp_path / "state")
    assert resumed.consumed == 2
    assert resumed.numbers()["buffered"] == 1
    assert [lease.position for lease in _lease(resumed, 1, version=1)] == [leases[3].position]
    assert first is not None


def test_evaluation_goes_to_its_version_only_and_missing_answers_are_wrong(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    flow.evaluate(0, now=0.0)
    assert all(lease.purpose == "train" for lease in _lease(flow, version=1))
    leases = [lease for lease in _lease(flow, 3) if lease.purpose == "evaluate"]
    assert len(leases) == 3
    flow.report([_group(leases[0], rewards=(1.0,)), _group(leases[1], rewards=(0.0,))], [], now=0.0)
    assert flow.evaluation is not None
    score = flow.evaluation.close(now=1.0)
    assert score.accuracy == pytest.approx(1 / 3)
    assert score.missing == 1


def test_group_whose_gold_cannot_be_read_is_dropped_whatever_it_was_paid(tmp_path: Path) -> None:
    from dataclasses import replace

    flow = _flow(tmp_path)
    group = _group(_lease(flow)[0])
    broken = replace(group.samples[0], outcome=Outcome.GOLD_UNPARSABLE)
    report = [replace(group, samples=(broken, group.samples[1]))]
    assert flow.report(report, [], now=0.0) == {"gold_unparsable": 1}
