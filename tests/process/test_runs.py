"""What a run does from its first process to its last."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.process.conftest import Run

Start = Callable[..., Run]


_NO_RESTARTS = (
    "recovery.raas_restarts=0",
    "recovery.dataflow_restarts=0",
    "recovery.trainer_restarts=0",
)


def _shared_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "astraflow" in name}


def test_run_trains_evaluates_saves_and_leaves_nothing_behind(start: Start) -> None:
    before = _shared_memory()
    run = start()
    assert run.wait() == 0, run.output()
    summary = run.summary()
    assert summary["steps"] == 4
    assert summary["exit_code"] == 0
    assert summary["accuracy_before"] is not None
    assert summary["accuracy_after"] is not None
    assert summary["sampled_tokens_per_s"] > 0
    assert summary["trained_tokens_per_s"] > 0
    assert 0 <= summary["trainer_wait_frac"] <= 1
    assert 0 <= summary["rollout_wait_frac"] <= 1
    assert summary["peak_memory_bytes"] > 2**20
    assert (run.folder / "checkpoints" / "step-000004" / "checkpoint.json").is_file()
    assert not (run.folder / "token").exists()
    assert run.processes() == []
    assert _shared_memory() == before


def test_every_group_is_consumed_buffered_or_dropped_by_cause(start: Start) -> None:
    run = start()
    assert run.wait() == 0, run.output()
    groups = run.summary()["groups"]
    with sqlite3.connect(run.folder / "rollouts.sqlite") as db:
        states = dict(db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state"))
        total = db.execute("SELECT COUNT(*) FROM groups").fetchone()[0]
    assert states["consumed"] == 4 * 4  # 4 batches of 32 sequences in groups of 8
    assert states.get("dropped", 0) == sum(groups["dropped"].values())
    assert total == groups["produced"]
    assert total == sum(states.values())


@pytest.mark.parametrize(("role", "exit_code"), [("dataflow", 10), ("raas-0", 11), ("trainer", 12)])
def test_killed_role_ends_the_run_with_its_code_and_its_log(
    start: Start, role: str, exit_code: int
) -> None:
    run = start(sets=("trainer.steps=500", *_NO_RESTARTS))
    run.until_step(1)
    os.kill(run.pid_of(role), signal.SIGKILL)
    assert run.wait() == exit_code, run.output()
    assert f"{role} ended with signal SIGKILL" in run.output()
    assert f"{role}.log" in run.output()
    assert run.summary()["exit_code"] == exit_code
    run.until_gone()


def test_killed_rank_ends_the_run_as_its_trainer(start: Start) -> None:
    run = start(sets=("trainer.steps=500", *_NO_RESTARTS))
    run.until_step(1)
    ranks = [
        pid
        for pid in run.processes()
        if b"astraflow.trainer.ranks" in Path(f"/proc/{pid}/cmdline").read_bytes()
        and b"torch.distributed.run" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(ranks[0], signal.SIGKILL)
    assert run.wait() == 12, run.output()
    run.until_gone()


def test_killing_the_supervisor_leaves_no_process_behind(start: Start) -> None:
    run = start(sets=("trainer.steps=500",))
    run.until_step(1)
    assert len(run.processes()) >= 5
    run.process.kill()
    run.process.wait(10)
    run.until_gone()


def test_resume_after_a_kill_goes_on_to_the_same_end(start: Start) -> None:
    run = start(sets=("trainer.steps=6",))
    run.until(lambda event: event["event"] == "checkpoint" and event["step"] >= 2)
    run.process.kill()
    run.process.wait(10)
    run.until_gone()
    resumed = start("--resume", sets=("trainer.steps=6",))
    assert resumed.wait() == 0, resumed.output()
    summary = resumed.summary()
    assert summary["steps"] == 6
    assert summary["accuracy_before"] is not None
    with sqlite3.connect(resumed.folder / "rollouts.sqlite") as db:
        per_step = db.execute(
            "SELECT step, COUNT(*) FROM groups WHERE state = 'consumed' GROUP BY step"
        ).fetchall()
    assert per_step == [(step, 4) for step in range(6)]


def test_ctrl_c_saves_the_step_and_exits_130(start: Start) -> None:
    run = start(sets=("trainer.steps=500", "checkpoint.every_steps=null"))
    run.until_step(2)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.output()
    saved = list((run.folder / "checkpoints").glob("step-*"))
    assert len(saved) == 1
    assert int(saved[0].name[5:]) >= 2
    run.until_gone()


def test_two_ranks_and_two_instances_train_one_run(start: Start) -> None:
    run = start(sets=("trainer.cpu_ranks=2", "rollout.instances=2"))
    assert run.wait() == 0, run.output()
    summary = run.summary()
    assert summary["steps"] == 4
    assert set(summary["weights"]) == {"raas-0", "raas-1"}
    folder = run.folder / "checkpoints" / "step-000004" / "trainer"
    assert len(list(folder.glob("*.safetensors"))) == 2


def _weights(run: Run, step: int) -> dict[str, object]:
    folder = run.folder / "checkpoints" / f"step-{step:06d}" / "trainer"
    (path,) = folder.glob("*.safetensors")
    return dict(load_file(path))


@pytest.mark.parametrize("mode", ["full", "delta"])
def test_on_policy_run_reproduces_bit_for_bit_even_over_a_resume(start: Start, mode: str) -> None:
    sets = ("dataflow.max_staleness=0", "trainer.steps=3")
    whole = start(sets=sets, name="whole")
    assert whole.wait() == 0, whole.output()
    if mode == "delta":
        sets = (*sets, "weights.mode=delta", "weights.full_sync_interval=10")
    cut = start(sets=sets, name="cut")
    cut.until(lambda event: event["event"] == "checkpoint" and event["step"] >= 1)
    cut.process.kill()
    cut.process.wait(10)
    cut.until_gone()
    resumed = start("--resume", sets=sets, name="cut")
    assert resumed.wait() == 0, resumed.output()
    expected, found = _weights(whole, 3), _weights(resumed, 3)
    assert expected.keys() == found.keys()
    assert all(bool((expected[name] == found[name]).all()) for name in expected)  # type: ignore[attr-defined]


def test_two_runs_at_once_do_not_meet(start: Start) -> None:
    first, second = start(name="first"), start(name="second")
    assert first.wait() == 0, first.output()
    assert second.wait() == 0, second.output()
