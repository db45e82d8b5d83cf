"""Who holds the others up, found from what each role waits for."""

from __future__ import annotations

from typing import Any

from astraflow.supervisor.state import RunState
from astraflow.supervisor.watch import find_culprit, wait_page
from astraflow.wire.waits import Waits


def _state(raas: list[str], trainer: list[str], **dataflow: Any) -> RunState:
    state = RunState(name="r", total_steps=9)
    numbers = {"instances": {"raas-0": 0}, "produced": 100, "dropped": {}, **dataflow}
    for name, waits, own in (
        ("dataflow", [], numbers),
        ("raas-0", raas, {"samples": 800}),
        ("trainer", trainer, {"step": 3}),
    ):
        listed = [
            {"name": wait, "since_s": 50.0 - i, "deadline_s": 600.0, "count": 1}
            for i, wait in enumerate(waits)
        ]
        state.take(name, {"event": "ready"})
        state.take(name, {"event": "beat", "numbers": own, "waits": listed})
    return state


def test_engine_that_never_answers_is_the_culprit() -> None:
    state = _state(["engine: answers", "dataflow: groups"], ["dataflow: batch 3"])
    name, why = find_culprit(state)
    assert name == "raas-0"
    assert "engine took requests and does not answer" in why
    assert wait_page(state)[0].startswith("likely stuck: raas-0: its engine")


def test_reward_that_never_returns_is_the_culprit() -> None:
    name, why = find_culprit(_state(["reward: grades"], ["dataflow: batch 3"]))
    assert (name, "reward was asked for grades" in why) == ("raas-0", True)


def test_trainer_that_stops_fetching_is_the_culprit() -> None:
    name, why = find_culprit(_state(["work: a lease from dataflow"], []))
    assert name == "trainer"
    assert "since step 3" in why


def test_dropped_groups_are_the_culprit_before_any_wait() -> None:
    state = _state(["engine: answers"], ["dataflow: batch 3"], dropped={"equal_rewards": 97})
    assert find_culprit(state) == (
        "dataflow",
        "nearly every group is dropped (97 of 100 for `equal_rewards`), so no batch fills",
    )


def test_instances_that_reach_nobody_are_the_culprit() -> None:
    state = _state([], ["dataflow: batch 3"], instances={})
    assert find_culprit(state)[0] == "raas"


def test_waits_alike_are_listed_once_with_their_number_and_the_oldest_time() -> None:
    waits = Waits()
    with (
        waits.waiting("engine: answers", deadline_s=5),
        waits.waiting("engine: answers", deadline_s=5),
        waits.waiting("reward: grades", deadline_s=7),
    ):
        listed = waits.current()
    assert [(w["name"], w["count"], w["deadline_s"]) for w in listed] == [
        ("engine: answers", 2, 5),
        ("reward: grades", 1, 7),
    ]
