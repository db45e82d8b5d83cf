"""
A run under a seeded schedule of kills and stops; `make chaos` runs it, the ordinary tests do not.

Every process of the run may be hit: roles, ranks, launchers. The run must go on with exact accounts
and leave nothing behind.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.conftest import Run

Start = Callable[..., Run]

_KILLS = int(os.environ.get("ASTRAFLOW_CHAOS_KILLS", "60"))
_SEED = int(os.environ.get("ASTRAFLOW_CHAOS_SEED", "1"))
_STEPS = 10 * _KILLS
_BOUNDS = (
    f"trainer.steps={_STEPS}",
    "checkpoint.every_steps=1",
    "evaluation.every_steps=null",
    "limits.heartbeat_s=5",
    "recovery.backoff_s=0.1",
    "recovery.window_s=1",
    *(f"recovery.{kind}_restarts=50" for kind in ("raas", "dataflow", "trainer")),
)


def _victims(run: Run) -> list[int]:
    """List every process of the run but the supervisor."""
    return [pid for pid in run.processes() if pid != run.process.pid]


def _hit(run: Run, draw: random.Random) -> str:
    """Kill a process of the run, or stop it for a while; say what was done."""
    pid = draw.choice(_victims(run))
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-60:]
    if draw.random() < 0.7:
        os.kill(pid, signal.SIGKILL)
        return f"SIGKILL {pid} {command}"
    os.kill(pid, signal.SIGSTOP)
    still_s = draw.uniform(0.1, 8.0)
    time.sleep(still_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    return f"SIGSTOP {pid} for {still_s:.1f} s {command}"


@pytest.mark.timeout(1500)
def test_run_survives_a_schedule_of_kills_and_stops(start: Start) -> None:
    draw = random.Random(_SEED)
    run = start(sets=_BOUNDS)
    run.until_step(1)
    done: list[str] = []
    while len(done) < _KILLS:
        time.sleep(draw.uniform(0.2, 8.0))
        assert run.process.poll() is None, "\n".join([*done, run.output()[-4000:]])
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, IndexError):
            done.append(_hit(run, draw))
    print("\n".join(done))
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.process.wait(120) == 130, run.output()[-4000:]
    _check(run)
    run.until_gone()


def _check(run: Run) -> None:
    with sqlite3.connect(run.folder / "rollouts.sqlite") as db:
        states = dict(db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state"))
        total, positions = db.execute(
            "SELECT COUNT(*), COUNT(DISTINCT position) FROM groups"
        ).fetchone()
        sizes = db.execute(
            "SELECT COUNT(*) FROM groups WHERE state = 'consumed' GROUP BY step"
        ).fetchall()
    assert total == positions == sum(states.values())
    assert set(sizes) == {(4,)}
    print(f"steps {run.summary()['steps']}, groups {states}")
