"""The short part of `make chaos`: kills, stops and cut connections in a living run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from tests.chaos.schedule import CuttingProxy, Start, bounds, disturb, end
from tests.process.conftest import Run, join


def test_run_survives_a_few_kills_and_stops_with_exact_accounts(start: Start) -> None:
    run = start(sets=bounds(4))
    run.until_step(1)
    disturb(run, hits=4, seed=7, longest_pause_s=4.0)
    run.until_step(2)
    assert end(run)["consumed"] >= 8


def _status(run: Run) -> dict[str, object]:
    command = [sys.executable, "-m", "astraflow", "status", str(run.folder), "--json"]
    return dict(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


def test_instance_whose_connections_break_all_the_time_loses_nothing(start: Start) -> None:
    run = start(sets=("trainer.steps=500", "checkpoint.every_steps=null"))
    run.until_step(1)
    port = int(_status(run)["roles"]["dataflow"]["address"].rpartition(":")[2])  # type: ignore[index]
    proxy = CuttingProxy(port, seed=3, longest_life_s=0.8)
    guest = join(
        f"http://127.0.0.1:{proxy.port}", runs=run.runs, token=(run.folder / "token").read_text()
    )
    try:
        while proxy.cuts < 4:
            run.until_step(_step(run) + 1)
            assert guest.poll() is None, guest.communicate()[1]
        guest.send_signal(signal.SIGTERM)
        _, log = guest.communicate(timeout=60)
        assert guest.returncode == 0, log
        run.until_step(_step(run) + 2)  # what the guest held was sampled by the other
    finally:
        guest.kill()
        proxy.close()
    assert end(run)["consumed"] >= 8


def _step(run: Run) -> int:
    steps = [event["step"] for event in run.events() if event.get("event") == "step"]
    return max(steps, default=0)
