"""How much work an instance asks for."""

from __future__ import annotations

from astraflow.interfaces import EngineLoad
from astraflow.raas.admission import groups_wanted


def _load(waiting: int, target: int | None) -> EngineLoad:
    return EngineLoad(
        running=0, waiting=waiting, cache_used_frac=0.0, capacity=64, waiting_target=target
    )


def test_an_engine_with_a_target_queue_is_kept_at_it() -> None:
    # 64 places and a queue of 4, but at least a group of 8: 72 samples, 40 of them in flight
    assert groups_wanted(_load(0, 4), in_flight=40, group_size=8, limit=None) == 4
    assert groups_wanted(_load(9, 4), in_flight=0, group_size=8, limit=None) == 0


def test_without_a_target_a_quarter_of_the_places_may_wait() -> None:
    # 64 places and 16 more
    assert groups_wanted(_load(0, None), in_flight=0, group_size=8, limit=None) == 10
    assert groups_wanted(_load(17, None), in_flight=0, group_size=8, limit=None) == 0


def test_a_limit_counts_instead_of_the_places() -> None:
    assert groups_wanted(_load(50, 4), in_flight=16, group_size=8, limit=32) == 2
