"""A whole run under kills, stops and cut connections; `make chaos` runs it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess

import pytest
from safetensors.torch import load_file

from tests.chaos.schedule import (
    Start,
    bounds,
    check_accounts,
    disturb,
    end,
    last_reward,
    shared_memory,
)
from tests.process.conftest import Run

_KILLS = int(os.environ.get("ASTRAFLOW_CHAOS_KILLS", "60"))
_RESUMES = int(os.environ.get("ASTRAFLOW_CHAOS_RESUMES", "30"))
_STEPS = 5 * _RESUMES
_SEED = int(os.environ.get("ASTRAFLOW_CHAOS_SEED", "1"))
_REWARD = 0.8  # of the newest steps; untrained, the model gets about 0.25


@pytest.mark.timeout(1500)
def test_run_survives_a_schedule_of_kills_and_stops_and_learns(start: Start) -> None:
    before = shared_memory()
    run = start(sets=bounds(_KILLS))
    run.until_step(1)
    print("\n".join(disturb(run, hits=_KILLS, seed=_SEED, longest_pause_s=8.0)))
    groups = end(run)
    reward = last_reward(run)
    print(f"steps {run.summary()['steps']}, groups {groups}, reward {reward:.3f}")
    assert reward >= _REWARD
    assert shared_memory() <= before


def _weights(run: Run, step: int) -> dict[str, bytes]:
    folder = run.folder / "checkpoints" / f"step-{step:06d}" / "trainer"
    (path,) = folder.glob("*.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


def _kill_everything(run: Run) -> None:
    run.process.kill()
    for pid in run.processes():
        os.kill(pid, signal.SIGKILL)
    run.process.wait(10)
    run.until_gone()


@pytest.mark.timeout(1500)
def test_run_that_is_killed_again_and_again_ends_with_the_weights_of_a_quiet_one(
    start: Start,
) -> None:
    sets = (
        f"trainer.steps={_STEPS}",
        "dataflow.max_staleness=0",
        "weights.mode=delta",
        "weights.full_sync_interval=10",
        "evaluation.every_steps=null",
    )
    quiet = start(sets=sets, name="quiet")
    assert quiet.process.wait(300) == 0, quiet.output()
    draw = random.Random(_SEED)
    run = start(sets=sets, name="unquiet")
    run.until(lambda event: event["event"] == "checkpoint")
    for number in range(_RESUMES):
        # From before anything runs to some steps later; a run takes about five seconds to start.
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = run.process.wait(draw.uniform(0.5, 10.0))
            raise AssertionError(f"it ended with {ended} after {number} kills:\n{run.output()}")
        _kill_everything(run)
        run = start("--resume", sets=sets, name="unquiet")
    assert run.process.wait(400) == 0, run.output()[-4000:]
    assert _weights(run, _STEPS) == _weights(quiet, _STEPS)
    print(f"{_RESUMES} kills, groups {check_accounts(run)}")
