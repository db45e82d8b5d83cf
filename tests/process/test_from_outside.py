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

from tests.process.conftest import Run, join

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
    run = start(sets=("trainer.steps=500", "checkpoint.every_steps=null"))
    run.until_step(1)
    address = _status(run)["roles"]["dataflow"]["address"]
    token = (run.folder / "token").read_text()
    joiner = join(address, runs=run.runs, token=token)  # as from another host: no run folder
    try:
        _until_instances(run, 2, joiner)
        run.until_step(_status(run)["step"] + 3)
        joiner.send_signal(signal.SIGTERM)
        _, log = joiner.communicate(timeout=30)
    finally:
        joiner.kill()
    assert joiner.returncode == 0, log
    run.until_step(_status(run)["step"] + 5)  # what it held was sampled by the other
    assert _ask("stop", str(run.folder)).returncode == 0
    assert run.wait() == 130, run.output()
    _accounts_balance(run)
    run.until_gone()


def test_joined_instance_leaves_by_itself_when_the_run_has_ended(start: Start) -> None:
    run = start(sets=("trainer.steps=500", "checkpoint.every_steps=null"))
    run.until_step(1)
    joiner = join(str(run.folder), runs=run.runs)
    try:
        _until_instances(run, 2, joiner)
        assert _ask("stop", str(run.folder)).returncode == 0
        assert run.wait() == 130, run.output()
        _, log = joiner.communicate(timeout=60)
    finally:
        joiner.kill()
    assert joiner.returncode == 0, log
    assert "has ended" in log
    run.until_gone()


def _until_instances(run: Run, count: int, joiner: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + 60
    while len(_status(run)["dataflow"].get("instances", {})) < count:
        assert time.monotonic() < give_up
        assert joiner.poll() is None


def _accounts_balance(run: Run) -> None:
    summary = run.summary()
    with sqlite3.connect(run.folder / "rollouts.sqlite") as db:
        total, positions = db.execute(
            "SELECT COUNT(*), COUNT(DISTINCT position) FROM groups"
        ).fetchone()
        consumed = db.execute("SELECT COUNT(*) FROM groups WHERE state = 'consumed'").fetchone()
    assert total == positions == summary["groups"]["produced"]
    assert consumed[0] in (4 * summary["steps"], 4 * (summary["steps"] + 1))
