"""Watch: heartbeats, progress and memory of the roles."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from astraflow.errors import NoProgressError, RoleError
from astraflow.recipe.supervision import LimitsSection
from astraflow.supervisor.state import RoleState, RunState

__all__ = ["find_culprit", "find_hung", "find_stall", "memory_bytes", "wait_page"]

_NEARLY_ALL = 0.95
_GRADER = "its reward was asked for grades and does not return"


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
    """Say who is stuck, then who waits for whom since when, and what moved last."""
    culprit, why = find_culprit(state)
    lines = [f"likely stuck: {culprit}: {why}"]
    for role in state.roles.values():
        for wait in role.waits:
            times = f" ({wait['count']} times)" if wait.get("count", 1) > 1 else ""
            lines.append(
                f"{role.name} waits for {wait['name']}{times} since {wait['since_s']:.0f} s "
                f"(gives up after {wait['deadline_s']:.0f} s); {_progress(role)}"
            )
        if not role.waits:
            lines.append(f"{role.name} waits for nobody; {_progress(role)}")
    return lines


def find_culprit(state: RunState) -> tuple[str, str]:
    """
    Follow the waits to the role that holds the others up; return its name and the reason.

    A wait names whom it is for. Who is waited for and waits for nobody is where it ends; the
    dataflow service never waits, so a trainer without a batch leads on to RaaS.
    """
    dropped = state.dataflow.get("dropped", {})
    produced = state.dataflow.get("produced", 0)
    if produced and sum(dropped.values()) > _NEARLY_ALL * produced:
        cause = max(dropped, key=lambda key: dropped[key])
        return "dataflow", (
            f"nearly every group is dropped ({dropped[cause]} of {produced} for `{cause}`), so no "
            "batch fills"
        )
    instances = state.instances()
    stuck = [(wait, role) for role in instances for wait in role.waits if _inner(wait["name"])]
    if stuck:
        wait, role = max(stuck, key=lambda item: float(item[0]["since_s"]))
        whose = {"engine": "its engine took requests and does not answer", "reward": _GRADER}
        return role.name, (
            f"{whose[wait['name'].partition(':')[0]]} (`{wait['name']}` since "
            f"{wait['since_s']:.0f} s)"
        )
    trainer = state.roles.get("trainer")
    if trainer is not None and not trainer.waits:
        return "trainer", (
            f"it fetches no batch and waits for nobody since step {state.step}; its stacks say "
            "where it is"
        )
    if not instances or not state.dataflow.get("instances"):
        return "raas", "no instance reaches the dataflow service"
    return "dataflow", "every role waits for it; its stacks say where it is"


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


def _inner(name: str) -> bool:
    """Tell a wait inside an instance from one for another role."""
    return name.partition(":")[0] in ("engine", "reward")
