"""A run seen and changed from another terminal: ps, status, logs, stop, and one more instance."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.process.conftest import Run

Start = Callable[..., Run]


def _ask(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "astraflow", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def _status(run: Run) -> dict[str, Any]:
    return dict(json.loads(_ask("status", str(run.folder), "--json").stdout))


def test_live_run_is_listed_described_and_stopped_with_its_step_saved(start: Start) -> None:
    run = start(sets=("trainer.steps=500", "checkpoint.every_steps=null"))
    run.until_step(2)
    listed = json.loads(_ask("ps", "--json").stdout)["runs"]
    assert str(run.folder.resolve()) in [entry["folder"] for entry in listed]
    said = _status(run)
    assert said["live"]
    assert said["step"] >= 1
    assert said["roles"]["raas-0"]["status"] == "ready"
    assert "trainer" in _ask("status", str(run.folder)).stdout
    assert "raas-0 | " in _ask("logs", str(run.folder), "raas-0").stdout
    assert "there are: dataflow, raas-0, trainer" in _ask("logs", str(run.folder), "x").stderr
    assert _ask("stop", str(run.folder)).returncode == 0
    assert run.wait() == 130
    assert run.summary()["checkpoint_step"] == run.summary()["steps"]
    run.until_gone()
    assert not _status(run)["live"]
    assert "had ended already" in _ask("stop", str(run.folder)).stderr


def test_instance_joins_a_live_run_and_leaves_without_a_trace_in_the_accounts(
    start: Start,
) -> None:
    run = start(sets=("trainer.steps=25",))
    run.until_step(1)
    joiner = subprocess.Popen(
        [sys.executable, "-m", "astraflow", "serve", "raas", "--join", str(run.folder)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        give_up = time.monotonic() + 60
        while len(_status(run)["dataflow"].get("instances", {})) < 2:
            assert time.monotonic() < give_up
            assert joiner.poll() is None
        joiner.send_signal(signal.SIGTERM)
        _, log = joiner.communicate(timeout=30)
    finally:
        joiner.kill()
    assert joiner.returncode == 0, log
    assert run.wait() == 0, run.output()
    with sqlite3.connect(run.folder / "rollouts.sqlite") as db:
        total, positions = db.execute(
            "SELECT COUNT(*), COUNT(DISTINCT position) FROM groups"
        ).fetchone()
        consumed = db.execute("SELECT COUNT(*) FROM groups WHERE state = 'consumed'").fetchone()
    groups = run.summary()["groups"]
    assert consumed == (25 * 4,)
    assert total == positions == groups["produced"]
    run.until_gone()
