"""What a restarted service remembers, and how often a role is tried again."""

from __future__ import annotations

from pathlib import Path

from astraflow.dataflow.dispatch import Dispatch
from astraflow.recipe.supervision import RecoverySection
from astraflow.supervisor.recovery import Restarts
from tests.unit.test_dataflow import _answer, _flow, _lease


def test_restarted_service_has_every_group_where_it_was(tmp_path: Path) -> None:
    flow = _flow(tmp_path, staleness=8)
    leases = flow.lease("i", version=0, most=8, now=0)
    done, unanswered = leases[:5], leases[5:]
    flow.report([_answer(lease.lease_id, 1, 0) for lease in done], [], now=0)
    batch = flow.batch(0)
    assert batch is not None
    flow.set_version(1)

    again = _flow(tmp_path, staleness=8)
    again.recover(now=0)
    assert (again.version, again.produced, again.consumed) == (1, flow.produced, flow.consumed)
    assert again.dropped == flow.dropped
    assert again.numbers()["buffered"] == flow.numbers()["buffered"]
    # the trainer may not have got the batch: it is the same bytes
    assert again.batch(0) == batch
    # prompts that were in flight go out again, before any new one
    taken = again.lease("i", version=1, most=len(unanswered), now=0)
    assert [x.position for x in taken] == [x.position for x in unanswered]
    assert [x.seed for x in taken] == [x.seed for x in unanswered]


def test_lease_that_its_holder_never_names_goes_out_again() -> None:
    dispatch = Dispatch(timeout_s=900)
    dispatch.grant(_lease("named"), "i", now=0)
    dispatch.grant(_lease("lost on the way"), "i", now=0)
    dispatch.grant(_lease("of another"), "j", now=0)
    assert dispatch.renew("i", ["named", "unknown"], now=10) == ["unknown"]
    assert dispatch.forgotten("i", now=10) == []
    dispatch.renew("i", ["named"], now=20)
    assert [g.lease.lease_id for g in dispatch.forgotten("i", now=20)] == ["lost on the way"]
    assert dispatch.count("train") == 2
    assert [g.lease.lease_id for g in dispatch.forget("j")] == ["of another"]


def test_pauses_double_and_restarts_are_bounded_within_the_window() -> None:
    now = [0.0]
    section = RecoverySection(raas_restarts=2, backoff_s=1.5, window_s=100)
    restarts = Restarts(section, clock=lambda: now[0])

    def ask(code: int | None = -9) -> float | None:
        return restarts.allow("raas-0", "raas", code=code, was_ready=True)

    assert [ask(), ask(None), ask()] == [1.5, 3.0, None]
    assert "restarted 2 times" in restarts.why_not("raas-0", "raas")
    now[0] = 101.0
    assert ask(1) == 1.5


def test_what_another_try_cannot_cure_ends_the_run_at_once() -> None:
    restarts = Restarts(RecoverySection())
    for code in (2, 3, 4):
        assert restarts.allow("trainer", "trainer", code=code, was_ready=True) is None
    # it never came up: whatever it was, it is there again
    assert restarts.allow("trainer", "trainer", code=1, was_ready=False) is None
    # a kill while it loads says nothing about the role
    assert restarts.allow("trainer", "trainer", code=-9, was_ready=False) == 1.0
    assert restarts.why_not("raas-0", "raas") == ""
