"""Parts of the dataflow one by one, and its books under any schedule."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load

from astraflow.dataflow import batches, filters
from astraflow.dataflow.buffer import Buffer, BufferedGroup
from astraflow.dataflow.dispatch import Dispatch
from astraflow.dataflow.evaluate import Evaluation
from astraflow.dataflow.flow import Flow
from astraflow.dataflow.prompts import PromptOrder
from astraflow.dataflow.store import Store
from astraflow.errors import DataError, WireError
from astraflow.plugins import recipe_type
from astraflow.recipe.files import load_recipe
from astraflow.records import FinishReason, GradedSample, Outcome, Prompt, SampleGroup
from astraflow.wire.messages import FailedLease, Lease

_PROMPTS = [Prompt(id=f"p{i}", problem=f"{i}?", answer=str(i)) for i in range(10)]


def _sample(reward: float = 1.0, *, versions: tuple[int, ...] = (0, 0)) -> GradedSample:
    return GradedSample(
        token_ids=(5, 6), logprobs=(-0.5, -0.25), versions=versions, finish=FinishReason.STOP,
        reward=reward, outcome=Outcome.RIGHT if reward else Outcome.WRONG,
    )  # fmt: skip


def _answer(lease_id: str, *rewards: float, version: int = 0) -> SampleGroup:
    samples = tuple(_sample(reward, versions=(version, version)) for reward in rewards)
    return SampleGroup(
        lease_id=lease_id, prompt_ids=(1, 2), samples=samples, sampled_s=0.1, graded_s=0.0
    )


def _buffered(position: int, *, version: int = 0, arrived: int = 0) -> BufferedGroup:
    return BufferedGroup(
        row_id=position, position=position, min_version=version, arrived=arrived,
        group=_answer(f"t{position}", 0.0, 1.0, version=version),
    )  # fmt: skip


def _lease(lease_id: str, *, purpose: str = "train", position: int = 0) -> Lease:
    return Lease(
        lease_id=lease_id, purpose=purpose, prompt=_PROMPTS[0], position=position,  # type: ignore[arg-type]
        samples=2, temperature=1.0, max_new_tokens=4, seed=1,
    )  # fmt: skip


def _flow(folder: Path, *sets: str, staleness: int = 1, dataset: str = "d") -> Flow:
    # 2 groups of 2 samples make a batch
    overrides = [
        "rollout.samples_per_prompt=2",
        "trainer.batch_size=4",
        "algorithm.updates_per_step=1",
        f"dataflow.max_staleness={staleness}",
        *sets,
    ]
    recipe = load_recipe("quickstart", overrides, recipe_type=recipe_type()).recipe
    evaluation = {"a": _PROMPTS[:2], "b": _PROMPTS[:1]}
    return Flow(recipe, _PROMPTS, evaluation, Store(folder / "a.sqlite"), dataset=dataset)


def _books_balance(flow: Flow) -> bool:
    numbers = flow.numbers()
    return bool(flow.produced == flow.consumed + numbers["buffered"] + sum(flow.dropped.values()))


# --- the order of prompts


def test_order_depends_on_the_seed_and_the_epoch_alone() -> None:
    first, second = PromptOrder(50, seed=3), PromptOrder(50, seed=3)
    rows = [first.row(first.take()) for _ in range(100)]
    assert rows == [second.row(position) for position in range(100)]
    # looking back into an earlier epoch gives what it gave
    assert [second.row(position) for position in range(50)] == rows[:50]
    assert rows[:50] != rows[50:]
    other = PromptOrder(50, seed=4)
    assert rows[:50] != [other.row(position) for position in range(50)]


def test_order_without_shuffling_is_the_files() -> None:
    order = PromptOrder(3, seed=3, shuffle=False)
    assert [order.row(order.take()) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert order.epoch == pytest.approx(7 / 3)


def test_empty_training_set_is_refused() -> None:
    with pytest.raises(DataError, match="empty after its filters"):
        PromptOrder(0, seed=1)


def test_restored_order_takes_what_was_in_flight_and_returned_once_each() -> None:
    order = PromptOrder(9, seed=3)
    for _ in range(6):
        order.take()
    order.give_back(2)
    state = order.state([1, 4, 2])  # 2 was returned and is named in flight as well
    resumed = PromptOrder(9, seed=3)
    assert resumed.restore(state)
    assert [resumed.take() for _ in range(5)] == [1, 2, 4, 6, 7]


def test_order_of_another_seed_is_not_resumed() -> None:
    assert not PromptOrder(9, seed=4).restore(PromptOrder(9, seed=3).state([]))


def test_seeds_of_neighboring_positions_do_not_run_into_each_other() -> None:
    # sample i of a group is drawn with seed + i, so seeds must lie further apart than a group
    order = PromptOrder(9, seed=3)
    seeds = np.sort(np.array([order.seed_of(position) for position in range(1000)], np.uint64))
    assert np.diff(seeds).min() > 1024
    assert order.seed_of(5) == PromptOrder(9, seed=3).seed_of(5)


# --- leases


def test_lease_lives_while_its_holder_names_it() -> None:
    dispatch = Dispatch(timeout_s=10)
    dispatch.grant(_lease("x"), "i", now=0)
    assert dispatch.renew("i", ["x"], now=9) == []
    assert dispatch.expire(now=18.9) == []
    assert [granted.lease.lease_id for granted in dispatch.expire(now=19)] == ["x"]
    assert dispatch.renew("i", ["x"], now=19) == ["x"]


def test_stranger_neither_renews_nor_releases_a_lease() -> None:
    dispatch = Dispatch(timeout_s=10)
    dispatch.grant(_lease("x"), "i", now=0)
    assert dispatch.renew("j", ["x"], now=5) == ["x"]
    assert dispatch.release("j", ["x"]) == []
    assert len(dispatch.release("i", ["x", "unknown"])) == 1


def test_lease_is_answered_once() -> None:
    dispatch = Dispatch(timeout_s=10)
    dispatch.grant(_lease("x", position=3), "i", now=0)
    dispatch.grant(_lease("e", purpose="evaluate", position=4), "i", now=0)
    assert (dispatch.count("train"), dispatch.count("evaluate")) == (1, 1)
    assert dispatch.positions() == [3]
    assert dispatch.finish("x") is not None
    assert dispatch.finish("x") is None


# --- the buffer


def test_what_expires_first_is_taken_first_then_what_came_first_in_the_order() -> None:
    buffer = Buffer(max_staleness=8, order="earliest_deadline")
    for group in (
        _buffered(1, version=5, arrived=1),
        _buffered(4, version=2, arrived=2),
        _buffered(3, version=2, arrived=3),
        _buffered(2, version=9, arrived=4),
    ):
        buffer.add(group)
    assert [group.position for group in buffer.take(3)] == [3, 4, 1]
    assert [group.position for group in buffer.groups()] == [2]


def test_fifo_takes_what_arrived_first() -> None:
    buffer = Buffer(max_staleness=8, order="fifo")
    for position, arrived in ((1, 3), (2, 1), (3, 2)):
        buffer.add(_buffered(position, version=position, arrived=arrived))
    assert [group.position for group in buffer.take(2)] == [2, 3]


def test_groups_beyond_the_batch_wait_and_the_oldest_go_next() -> None:
    buffer = Buffer(max_staleness=8, order="fifo")
    for position in range(10):
        buffer.add(_buffered(position, arrived=position))
    assert len(buffer.take(8)) == 8
    assert [group.position for group in buffer.take(8)] == [8, 9]


# --- filters


@pytest.mark.parametrize("reward", [0.7, 0.9, 0.3, 0.1, 1 / 3, 0.0, 1.0])
@pytest.mark.parametrize("count", [2, 3, 7, 10])
def test_equal_rewards_are_seen_exactly(reward: float, count: int) -> None:
    assert filters.equal_rewards(_answer("x", *[reward] * count))
    assert not filters.equal_rewards(_answer("x", *[reward] * count, np.nextafter(reward, 2)))


def test_group_whose_gold_answer_cannot_be_read_is_ungradable() -> None:
    group = _answer("x", 0.0, 1.0)
    gold = replace(_sample(0.0), outcome=Outcome.GOLD_UNPARSABLE)
    assert not filters.ungradable(group)
    assert filters.ungradable(replace(group, samples=(*group.samples, gold)))


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (replace(_sample(), logprobs=()), "2 tokens, 0 log-probabilities"),
        (replace(_sample(), logprobs=(-0.5,)), "2 tokens, 1 log-probabilities"),
        (replace(_sample(), versions=(0,)), "1 versions"),
        (replace(_sample(), logprobs=(-0.5, float("-inf"))), "not finite"),
        (replace(_sample(), logprobs=(-0.5, float("nan"))), "not finite"),
        (replace(_sample(), reward=float("nan")), "reward nan"),
        (replace(_sample(), token_ids=(), logprobs=(), versions=()), "is empty"),
    ],
)
def test_sample_that_breaks_the_contract_is_refused_with_the_reason(
    broken: GradedSample, why: str
) -> None:
    group = replace(_answer("x", 0.0, 1.0), samples=(_sample(), broken))
    said = filters.malformed(group, samples=2)
    assert said.startswith("sample 1 ")
    assert why in said


def test_group_with_too_few_or_too_many_samples_is_refused() -> None:
    assert filters.malformed(_answer("x", 0.0, 1.0), samples=2) == ""
    assert "1 samples instead of 2" in filters.malformed(_answer("x", 0.0), samples=2)
    assert "3 samples instead of 2" in filters.malformed(_answer("x", 0, 1, 0), samples=2)
    assert "prompt is empty" in filters.malformed(
        replace(_answer("x", 0.0, 1.0), prompt_ids=()), samples=2
    )


# --- batches


def test_batch_lays_sequences_of_unequal_length_end_to_end() -> None:
    long = GradedSample(
        token_ids=(7, 8, 9), logprobs=(-1.0, -2.0, -3.0), versions=(4, 3, 5),
        finish=FinishReason.LENGTH, reward=0.25, outcome=Outcome.WRONG,
    )  # fmt: skip
    short = replace(_sample(1.0), token_ids=(7,), logprobs=(-4.0,), versions=(6,))
    groups = [
        replace(_buffered(0), group=replace(_answer("x"), samples=(long, short))),
        replace(_buffered(1), group=replace(_answer("y"), prompt_ids=(3,), samples=(short,))),
    ]
    tensors = load(batches.pack(groups, step=0))
    expected: dict[str, tuple[list[float], type]] = {
        "token_ids": ([1, 2, 7, 8, 9, 1, 2, 7, 3, 7], np.int32),
        "behavior_logprobs": ([0, 0, -1, -2, -3, 0, 0, -4, 0, -4], np.float32),
        "cu_seqlens": ([0, 5, 8, 10], np.int32),
        "prompt_tokens": ([2, 2, 1], np.int32),
        "rewards": ([0.25, 1, 1], np.float32),
        "group_ids": ([0, 0, 1], np.int32),
        "min_versions": ([3, 6, 6], np.int32),
        "truncated": ([1, 0, 0], np.uint8),
    }
    assert set(tensors) == set(expected)
    for name, (values, dtype) in expected.items():
        assert tensors[name].tolist() == values, name
        assert tensors[name].dtype == dtype, name


def test_lag_counts_from_the_oldest_token_of_each_sample() -> None:
    group = replace(_answer("x"), samples=(_sample(versions=(2, 6)), _sample(versions=(6, 6))))
    assert batches.lags([replace(_buffered(0), group=group)], version=6) == {0: 1, 4: 1}


# --- the flow


@pytest.mark.parametrize(("staleness", "version", "admitted"), [(0, 0, 2), (1, 0, 4), (8, 0, 18),
                                                                (0, 3, 2), (8, 3, 18)])  # fmt: skip
def test_admission_is_version_plus_staleness_plus_one_batches(
    tmp_path: Path, staleness: int, version: int, admitted: int
) -> None:
    flow = _flow(tmp_path, staleness=staleness)
    for step in range(version):
        leases = flow.lease("i", version=step, most=2, now=0)
        flow.report([_answer(x.lease_id, 0, 1, version=step) for x in leases], [], now=0)
        assert flow.batch(step) is not None
        flow.set_version(step + 1)
    # (version + staleness + 1) * 2 - 2 * version consumed
    assert len(flow.lease("i", version=version, most=100, now=0)) == admitted
    assert flow.admissible == 0


def test_nothing_is_sampled_that_no_step_will_train_on(tmp_path: Path) -> None:
    flow = _flow(tmp_path, "trainer.steps=3", staleness=8)
    assert len(flow.lease("i", version=0, most=100, now=0)) == 6


def test_retried_batch_is_the_same_bytes_and_consumes_once(tmp_path: Path) -> None:
    flow = _flow(tmp_path, staleness=8)
    leases = flow.lease("i", version=0, most=5, now=0)
    assert flow.batch(0) is None
    flow.report([_answer(x.lease_id, 0, 1) for x in leases[:1]], [], now=0)
    assert flow.batch(0) is None
    flow.report([_answer(x.lease_id, 0, 1) for x in leases[1:]], [], now=0)
    first = flow.batch(0)
    assert first == flow.batch(0)
    assert (flow.consumed, flow.numbers()["buffered"]) == (2, 3)
    flow.set_version(1)
    assert flow.batch(1) not in (None, first)


def test_trainer_that_resumed_from_another_checkpoint_is_told(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    with pytest.raises(WireError, match="asks for batch 7, and the dataflow would hand out 0"):
        flow.batch(7)


def test_stale_groups_are_dropped_at_hand_out_too(tmp_path: Path) -> None:
    flow = _flow(tmp_path, staleness=1)
    leases = flow.lease("i", version=0, most=4, now=0)
    flow.report([_answer(x.lease_id, 0, 1, version=0) for x in leases], [], now=0)
    assert flow.batch(0) is not None
    flow.set_version(1)
    assert flow.batch(1) is not None  # lag 1 is within the bound
    flow.set_version(2)
    late = flow.lease("i", version=2, most=3, now=0)
    # sampled at version 0 all the same: a straggler
    flow.report([_answer(late[0].lease_id, 0, 1, version=0)], [], now=0)
    flow.report([_answer(x.lease_id, 0, 1, version=1) for x in late[1:]], [], now=0)
    tensors = load(flow.batch(2) or b"")
    assert tensors["min_versions"].tolist() == [1, 1, 1, 1]
    assert flow.dropped == {"stale": 1}
    assert flow.lag_counts == {0: 4, 1: 8}
    assert _books_balance(flow)


def test_failed_lease_is_counted_by_cause_and_its_prompt_is_replaced(tmp_path: Path) -> None:
    flow = _flow(tmp_path)
    leases = flow.lease("i", version=0, most=4, now=0)
    failed = FailedLease(lease_id=leases[0].lease_id, cause="sampling_failed", why="500")
    assert flow.report([], [failed], now=0) == {"sampling_failed": 1}
    assert flow.report([], [failed], now=0) == {"late": 1}
    assert flow.dropped == {"sampling_failed": 1}
    (other,) = flow.lease("i", version=0, most=4, now=0)
    assert other.position == 4
    assert _books_balance(flow)


def test_equal_rewards_can_be_kept(tmp_path: Path) -> None:
    flow = _flow(tmp_path, "dataflow.drop_equal_rewards=false")
    (lease,) = flow.lease("i", version=0, most=1, now=0)
    assert flow.report([_answer(lease.lease_id, 1, 1)], [], now=0) == {"buffered": 1}


def test_returned_prompt_goes_out_again_with_the_same_seed_under_another_lease(
    tmp_path: Path,
) -> None:
    flow = _flow(tmp_path)
    first, second = flow.lease("i", version=0, most=2, now=0)
    assert flow.release("i", [second.lease_id, first.lease_id]) == 2
    again, _ = flow.lease("j", version=0, most=2, now=0)
    assert (again.position, again.seed, again.prompt) == (first.position, first.seed, first.prompt)
    assert again.lease_id != first.lease_id


@settings(max_examples=60, derandomize=True, deadline=None)
@given(data=st.data())
def test_books_balance_and_bounds_hold_under_any_schedule(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    staleness = data.draw(st.integers(0, 2))
    flow = _flow(tmp_path_factory.mktemp("flow"), staleness=staleness)
    out: list[Lease] = []
    clock, step = 0.0, 0
    for action in data.draw(st.lists(st.sampled_from("lllrrrfxb"), max_size=40)):
        clock += 1
        if action == "l":
            held = max(0, flow.version - data.draw(st.integers(0, 3)))
            out += flow.lease("i", version=held, most=3, now=clock)
        elif action == "r" and out:
            lease = out.pop(data.draw(st.integers(0, len(out) - 1)))
            rewards = data.draw(st.sampled_from([(0, 1), (1, 1), (1,)]))
            version = max(0, flow.version - data.draw(st.integers(0, 3)))
            flow.report([_answer(lease.lease_id, *rewards, version=version)], [], now=clock)
        elif action == "f" and out:
            failed = FailedLease(lease_id=out.pop(0).lease_id, cause="grading_failed", why="-")
            flow.report([], [failed], now=clock)
        elif action == "x":
            clock += 1e6
            flow.expire(now=clock)  # what is still in `out` will come late
        elif action == "b" and (content := flow.batch(step)) is not None:
            tensors = load(content)
            assert tensors["rewards"].tolist() == [0, 1, 0, 1]
            assert tensors["min_versions"].min() >= step - staleness
            step += 1
            flow.set_version(step)
        numbers = flow.numbers()
        assert _books_balance(flow)
        waiting = numbers["in_flight"] + numbers["buffered"]
        assert waiting + flow.consumed <= (flow.version + staleness + 1) * 2
    counts = flow._store.counts()
    assert counts.get("consumed", 0) == flow.consumed
    assert counts.get("buffered", 0) == flow.numbers()["buffered"]
    assert counts.get("dropped:equal_rewards", 0) == flow.dropped.get("equal_rewards", 0)


# --- checkpoints


def test_resumed_flow_goes_on_exactly_as_the_unbroken_one(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    unbroken, broken = _flow(tmp_path / "a"), _flow(tmp_path / "b")

    def one_step(flow: Flow, step: int) -> bytes:
        leases = flow.lease("i", version=step, most=3, now=0)
        flow.report([_answer(x.lease_id, 0, 1, version=step) for x in leases], [], now=0)
        content = flow.batch(step)
        assert content is not None
        flow.set_version(step + 1)
        return content

    for flow in (unbroken, broken):
        one_step(flow, 0)
    broken.save(tmp_path / "state", step=1)
    # what happens after the checkpoint is forgotten, in memory and in the store
    broken.lease("i", version=1, most=2, now=0)
    one_step(broken, 1)
    resumed = _flow(tmp_path / "b")
    resumed.restore(tmp_path / "state")
    assert [one_step(resumed, step) for step in (1, 2)] == [
        one_step(unbroken, step) for step in (1, 2)
    ]
    assert resumed.numbers()["consumed"] == unbroken.numbers()["consumed"]
    assert resumed._store.counts() == unbroken._store.counts()
    assert _books_balance(resumed)


def test_another_dataset_starts_at_its_first_prompt_and_the_books_still_balance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flow = _flow(tmp_path)
    leases = flow.lease("i", version=0, most=4, now=0)
    flow.report([_answer(x.lease_id, 0, 1) for x in leases[:3]], [], now=0)
    flow.batch(0)
    flow.set_version(1)
    flow.save(tmp_path / "state", step=1)
    other = _flow(tmp_path, dataset="another")
    with caplog.at_level(logging.WARNING):
        other.restore(tmp_path / "state")
    assert "not the one of the checkpoint" in caplog.text
    assert (other.version, other.consumed, other.numbers()["buffered"]) == (1, 2, 0)
    assert other.dropped == {"other_dataset": 1}
    assert other._store.counts() == {"consumed": 2, "dropped:other_dataset": 1}
    assert _books_balance(other)
    assert other.lease("i", version=1, most=1, now=0)[0].position == 0


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x80", b"not msgpack"])
def test_damaged_state_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(WireError, match="cannot be read"):
        _flow(tmp_path).restore(tmp_path / "state")


# --- evaluation


def test_accuracy_is_the_mean_over_datasets_and_not_over_problems() -> None:
    evaluation = Evaluation(3, {"a": _PROMPTS[:2], "b": _PROMPTS[:1]}, samples=2, started_at=5.0)
    assert (evaluation.state, evaluation.total) == ("waiting", 3)
    for lease_id in "xyz":
        evaluation.take(lease_id)
    assert evaluation.state == "running"
    for lease_id, rewards in (("x", (1, 0)), ("y", (0, 0)), ("z", (1, 1))):
        assert evaluation.finish(_answer(lease_id, *rewards), now=9.0) is not None
    assert evaluation.score is not None
    # avg@2: a has 1 right of 4, b has 2 of 2
    assert evaluation.score.by_dataset == {"a": 0.25, "b": 1.0}
    assert evaluation.score.accuracy == 0.625
    assert (evaluation.score.missing, evaluation.score.wall_s) == (0, 4.0)
    assert evaluation.finish(_answer("x", 1, 1), now=9.0) is None


def test_a_runs_evaluation_says_what_astraflow_eval_says_of_the_same_answers() -> None:
    evaluation = Evaluation(3, {"a": _PROMPTS[:3]}, samples=2, started_at=0.0, seed=7)
    for lease_id in "xyz":
        evaluation.take(lease_id)
    evaluation.finish(_answer("x", 1, 0), now=1.0)
    evaluation.finish(_answer("y", 0, 0), now=1.0)
    evaluation.give_up("z", now=1.0, why="the engine fell over")
    assert evaluation.score is not None
    found = evaluation.score.datasets["a"]
    # 1 right of 6 asked for; one problem of three solved at all; two answers never came
    assert found["avg_at_k"]["value"] == pytest.approx(1 / 6)
    assert found["pass_at_k"]["value"] == pytest.approx(1 / 3)
    assert found["avg_at_k"]["low"] <= 1 / 6 <= found["avg_at_k"]["high"]
    assert (found["problems"], found["samples"], found["failed"]) == (3, 2, 2)
    assert found["failures"] == {"the engine fell over": 1}


def test_problem_that_was_given_up_is_wrong_and_one_given_back_goes_out_again() -> None:
    evaluation = Evaluation(3, {"a": _PROMPTS[:2]}, samples=1, started_at=0.0)
    first = evaluation.take("x")
    evaluation.give_back("x")
    assert evaluation.take("y") == first
    evaluation.take("z")
    assert not evaluation.has_work
    evaluation.give_up("y", now=1.0)
    evaluation.finish(_answer("z", 1), now=1.0)
    assert evaluation.score is not None
    assert (evaluation.score.accuracy, evaluation.score.missing) == (0.5, 1)


def test_every_version_is_asked_the_same_problems_with_the_same_seeds(tmp_path: Path) -> None:
    flow = _flow(tmp_path, "evaluation.samples=3", "evaluation.temperature=0.6", staleness=8)

    def asked(version: int) -> list[tuple[str, int, int, float, int]]:
        flow.evaluate(version, now=0)
        leases = flow.lease("i", version=version, most=3, now=0)
        flow.report([_answer(x.lease_id, 1, 0, 0) for x in leases], [], now=0)
        return [(x.prompt.id, x.seed, x.samples, x.temperature, x.position) for x in leases]

    first = asked(0)
    assert [samples for _, _, samples, _, _ in first] == [3, 3, 3]
    flow.set_version(5)
    assert asked(5) == first
    assert [score.version for score in flow.scores] == [0, 5]
    assert flow.scores[0].accuracy == pytest.approx(1 / 3)


def test_lost_evaluation_lease_goes_to_another_instance_of_the_same_version(
    tmp_path: Path,
) -> None:
    flow = _flow(tmp_path)
    flow.evaluate(0, now=0)
    lost = flow.lease("i", version=0, most=1, now=0)[0]
    assert flow.expire(now=1000) == 1
    again = flow.lease("j", version=0, most=1, now=1000)[0]
    assert (again.purpose, again.prompt, again.seed) == ("evaluate", lost.prompt, lost.seed)
    assert flow.report([_answer(lost.lease_id, 1)], [], now=1000) == {"late": 1}


def test_evaluation_that_takes_too_long_ends_with_what_it_has(tmp_path: Path) -> None:
    flow = _flow(tmp_path, "evaluation.timeout_s=50")
    flow.evaluate(0, now=10)
    leases = flow.lease("i", version=0, most=2, now=10)
    flow.report([_answer(leases[0].lease_id, 1)], [], now=20)
    flow.expire(now=60)
    assert not flow.scores
    flow.expire(now=60.5)
    (score,) = flow.scores
    # datasets a and b: 1 of 2 right, 0 of 1
    assert (score.version, score.accuracy, score.missing) == (0, 0.25, 2)


def test_next_evaluation_closes_the_one_before_with_what_is_missing_as_wrong(
    tmp_path: Path,
) -> None:
    flow = _flow(tmp_path)
    flow.evaluate(0, now=0)
    leases = flow.lease("i", version=0, most=2, now=0)
    flow.report([_answer(leases[0].lease_id, 1)], [], now=0)
    flow.evaluate(1, now=9)
    (score,) = flow.scores
    # datasets a and b: 1 of 2 right, 0 of 1
    assert (score.version, score.accuracy, score.missing) == (0, 0.25, 2)
    assert flow.report([_answer(leases[1].lease_id, 1)], [], now=9) == {"late": 1}
