"""A run that loses a role: it goes on, the accounts stay exact, nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable

import pytest

from tests.process.conftest import Run

Start = Callable[..., Run]

# `checkpoint.every_steps=2` leaves steps between a checkpoint and most kills.
_RUN = ("trainer.steps=10", "checkpoint.every_steps=2", "recovery.backoff_s=0.1")


def _newest_pid(run: Run, role: str) -> int:
    started = [e for e in run.events() if e["event"] == "started" and e["role"] == role]
    return int(started[-1]["pid"])


def _check_accounts(run: Run) -> None:
    """Every prompt of the order was sampled once, and every group went somewhere."""
    with sqlite3.connect(run.folder / "rollouts.sqlite") as db:
        states = dict(db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state"))
        total, positions = db.execute(
            "SELECT COUNT(*), COUNT(DISTINCT position) FROM groups"
        ).fetchone()
        by_step = db.execute(
            "SELECT step, COUNT(*) FROM groups WHERE state = 'consumed' GROUP BY step"
        ).fetchall()
    groups = run.summary()["groups"]
    # batches of 32 sequences are 4 groups of 8, each step's trained on once
    assert by_step == [(step, 4) for step in range(10)]
    assert states["consumed"] == groups["consumed"] == 40
    assert states.get("dropped", 0) == sum(groups["dropped"].values())
    assert total == positions == groups["produced"] == sum(states.values())


@pytest.mark.parametrize("role", ["raas-0", "dataflow", "trainer"])
def test_killed_role_comes_back_and_the_run_reaches_its_end(start: Start, role: str) -> None:
    run = start(sets=_RUN)
    run.until_step(3)
    os.kill(_newest_pid(run, role), signal.SIGKILL)
    assert run.wait() == 0, run.output()
    assert f"{role} ended with signal SIGKILL; it is restarted in 0.1 s" in run.output()
    assert run.summary()["steps"] == 10
    _check_accounts(run)
    run.until_gone()


def test_stopped_instance_counts_as_hung_and_is_replaced(start: Start) -> None:
    run = start(sets=(*_RUN, "limits.heartbeat_s=4"))
    run.until_step(2)
    os.kill(_newest_pid(run, "raas-0"), signal.SIGSTOP)
    assert run.wait() == 0, run.output()
    assert "counts as hung; it is restarted" in run.output()
    _check_accounts(run)
    run.until_gone()


def test_every_role_killed_in_turn_ends_with_the_weights_of_a_quiet_run(start: Start) -> None:
    quiet = start(name="quiet", sets=(*_RUN, "dataflow.max_staleness=0"))
    assert quiet.wait() == 0, quiet.output()
    run = start(name="unquiet", sets=(*_RUN, "dataflow.max_staleness=0"))
    for step, role in ((2, "dataflow"), (4, "raas-0"), (6, "trainer")):
        run.until_step(step)
        os.kill(_newest_pid(run, role), signal.SIGKILL)
        run.until(
            lambda e, role=role: e["event"] == "restarting" and e["role"] == role  # type: ignore[misc]
        )
    assert run.wait() == 0, run.output()
    _check_accounts(run)
    assert _final_loss(run) == _final_loss(quiet)
    assert _hashes(run) == _hashes(quiet) != {}


def test_role_that_dies_too_often_ends_the_run_with_what_was_tried(start: Start) -> None:
    run = start(sets=("trainer.steps=500", "recovery.raas_restarts=1", "recovery.backoff_s=0.1"))
    run.until_step(1)
    first = _newest_pid(run, "raas-0")
    os.kill(first, signal.SIGKILL)
    run.until(lambda e: e["event"] == "started" and e["role"] == "raas-0" and e["pid"] != first)
    os.kill(_newest_pid(run, "raas-0"), signal.SIGKILL)
    assert run.wait() == 11, run.output()
    assert "it was restarted 1 times within 3600 s" in run.output()
    run.until_gone()


def _final_loss(run: Run) -> float:
    return float(run.until(lambda e: e["event"] == "step" and e["step"] == 10)["loss"])


def _hashes(run: Run) -> dict[str, str]:
    """Return the content hash of every weight file of the last checkpoint."""
    folder = run.folder / "checkpoints" / "step-000010"
    files = json.loads((folder / "checkpoint.json").read_text())["files"]
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}
