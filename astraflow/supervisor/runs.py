"""
Runs of this machine, seen from outside: found by their processes, described by a file.

The supervisor writes `run.json` into the run folder about once a second. A run lives while the
process that wrote it does; a number that another process has got since then is not taken for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from astraflow.errors import NotReadyError, RecipeError
from astraflow.supervisor.state import RunState

__all__ = ["LiveRun", "find_run", "live_runs", "stop_run", "write_state"]

_STATE = "run.json"
_ASK_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A run folder and what its supervisor last said."""

    folder: Path
    said: dict[str, Any]

    @property
    def name(self) -> str:
        """``NAME/N``."""
        return f"{self.folder.parent.name}/{self.folder.name}"

    @property
    def pid(self) -> int | None:
        """Process id of the supervisor; None once it has ended."""
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(int(self.said["pid"]))
            same = abs(process.create_time() - float(self.said["created"])) < 1.0
            if same and process.status() != psutil.STATUS_ZOMBIE:
                return int(process.pid)
        return None


def write_state(folder: Path, state: RunState) -> None:
    """Write run.json, whole or not at all."""
    said = {
        "pid": os.getpid(),
        "created": psutil.Process().create_time(),
        "written_at": round(time.time(), 3),
        "step": state.step,
        "total_steps": state.total_steps,
        "reward_mean": state.steps[-1].get("reward_mean") if state.steps else None,
        "checkpoint_step": state.checkpoint_step,
        "still_s": round(time.monotonic() - state.moved_at, 1),
        "dataflow": state.dataflow,
        "roles": {
            role.name: {
                "status": role.status,
                "pid": role.pid,
                "address": role.address,
                "restarts": role.restarts,
                "silent_s": round(time.monotonic() - role.beat_at, 1),
                "memory_bytes": role.memory_bytes,
                "waits": role.waits,
            }
            for role in state.roles.values()
        },
    }
    scratch = folder / f".{_STATE}.tmp"
    scratch.write_text(json.dumps(said), encoding="utf-8")
    scratch.rename(folder / _STATE)


def live_runs() -> list[LiveRun]:
    """Find every live run of this machine that this user may look at, by its processes."""
    folders: set[Path] = set()
    for process in psutil.process_iter(["cmdline"]):
        command = process.info["cmdline"] or []
        if "dataflow" in command and "--run-folder" in command[:-1]:
            folder = Path(command[command.index("--run-folder") + 1])
            with contextlib.suppress(psutil.Error, OSError):
                folders.add((Path(process.cwd()) / folder).resolve())
    runs = [_read(folder) for folder in sorted(folders)]
    return [run for run in runs if run is not None and run.pid is not None]


def find_run(name: str, runs: Path) -> LiveRun:
    """
    Find a run by its folder, by ``NAME/N``, or by its name, which means its newest.

    Raises:
        RecipeError: there is no such run.
    """
    for folder in (Path(name), runs / name, runs / name / "latest", Path(name) / "latest"):
        run = _read(folder.resolve()) if folder.is_dir() else None
        if run is not None:
            return run
    named = [run for run in live_runs() if name in (run.name, run.folder.parent.name)]
    if named:
        return named[-1]
    raise RecipeError(
        f"there is no run `{name}` in `{runs}`, and none of that name is live",
        hint="`astraflow ps` lists live runs; give `--runs DIR`, or the run folder itself",
    )


def stop_run(run: LiveRun, *, within_s: float, kill: bool) -> bool:
    """
    Ask a run to save and end, and wait for it; False if it had ended before.

    Args:
        run: Which.
        within_s: Longest wait (s).
        kill: Do not wait for the step in progress.

    Raises:
        NotReadyError: it still runs.
    """
    pid = run.pid
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    if kill:
        # The second request is what makes the supervisor kill.
        time.sleep(_ASK_AGAIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    give_up = time.monotonic() + within_s
    while run.pid is not None:
        if time.monotonic() > give_up:
            raise NotReadyError(
                f"run {run.name} (process {pid}) still runs after {within_s:g} s",
                hint=f"`astraflow stop {run.name} --kill`",
            )
        time.sleep(_ASK_AGAIN_S)
    return True


def _read(folder: Path) -> LiveRun | None:
    try:
        said = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return LiveRun(folder=folder, said=said)
