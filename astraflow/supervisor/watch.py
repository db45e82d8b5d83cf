"""Watch: heartbeats, progress and memory of the roles."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from astraflow.errors import NoProgressError, RoleError
from astraflow.recipe.supervision import LimitsSection
from astraflow.supervisor.state import RoleState, RunState

__all__ = ["find_hung", "find_stall", "memory_bytes", "wait_page"]


def find_hung(role: RoleState, limits: LimitsSection, exit_code: int) -> RoleError | None:
    """Return an error for a ready role whose heartbeat stopped."""
    silent_s = time.monotonic() - role.beat_at
    if role.status != "ready" or silent_s <= limits.heartbeat_s:
        return None
    return RoleError(
        f"{role.name} gave no heartbeat for {silent_s:.0f} s and counts as hung",
        exit_code=exit_code,
        hint="its stacks are at the end of its log; a stopped process (SIGSTOP) and a "
        "machine without memory look alike",
    )


def find_stall(state: RunState, limits: LimitsSection) -> NoProgressError | None:
    """Return an error, with the page that explains it, when nothing moved for too long."""
    still_s = time.monotonic() - state.moved_at
    if state.training_since is None or still_s <= limits.no_progress_s:
        return None
    return NoProgressError(
        f"neither a sample nor a step was finished for {still_s:.0f} s",
        hint="\n".join(wait_page(state)),
    )


def wait_page(state: RunState) -> list[str]:
    """Say who waits for whom since when, and what moved last."""
    lines = []
    for role in state.roles.values():
        for wait in role.waits:
            lines.append(
                f"{role.name} waits for {wait['name']} since {wait['since_s']:.0f} s "
                f"(gives up after {wait['deadline_s']:.0f} s)"
            )
        if not role.waits:
            lines.append(f"{role.name} waits for nobody; {_progress(role)}")
    lines.append(_likely_cause(state))
    return lines


def memory_bytes(pids: list[int]) -> int:
    """Add up the memory that processes hold, pages they share counted once (bytes)."""
    total = 0
    for pid in pids:
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it ended meanwhile
        for line in rollup.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def _progress(role: RoleState) -> str:
    numbers: dict[str, Any] = role.numbers
    known = {
        key: numbers[key] for key in ("step", "samples", "produced", "version") if key in numbers
    }
    return ", ".join(f"{key} {value}" for key, value in known.items()) or "no numbers yet"


def _likely_cause(state: RunState) -> str:
    dropped = state.dataflow.get("dropped", {})
    produced = state.dataflow.get("produced", 0)
    if produced and sum(dropped.values()) > 0.95 * produced:
        cause = max(dropped, key=lambda key: dropped[key])
        return (
            f"likely cause: nearly every group is dropped ({dropped[cause]} of {produced} for "
            f"`{cause}`), so no batch fills"
        )
    if not state.dataflow.get("instances"):
        return "likely cause: no RaaS instance reaches the dataflow service"
    return "likely cause: see the stacks at the end of the logs"
