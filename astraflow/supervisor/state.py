"""RunState: what is known of a run, built from the events of its roles; the views read it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

__all__ = ["RoleState", "RunState"]

_KEPT_STEPS = 4096


@dataclass(slots=True)
class RoleState:
    """One role as the supervisor sees it."""

    name: str
    status: str = "starting"
    """``starting``, ``ready``, ``done``, ``ended`` or ``stopped``."""

    pid: int = 0
    address: str = ""
    started_at: float = field(default_factory=time.monotonic)
    beat_at: float = field(default_factory=time.monotonic)
    numbers: dict[str, Any] = field(default_factory=dict)
    waits: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] = field(default_factory=dict)
    memory_bytes: int = 0
    """Held by the role and all it started, shared pages counted once in all."""

    was_ready: bool = False
    """True once this process or one before it had come up."""
    restarts: int = -1
    """Processes beyond the first (count)."""

    def begin(self, pid: int) -> None:
        """Note a new process in this role."""
        self.pid, self.status = pid, "starting"
        self.beat_at = self.started_at = time.monotonic()
        self.waits, self.error = [], {}
        self.restarts += 1

    @property
    def uptime_s(self) -> float:
        """Time since it was started (s)."""
        return time.monotonic() - self.started_at


@dataclass(slots=True)
class RunState:
    """The whole run."""

    name: str
    total_steps: int
    steps: list[dict[str, Any]] = field(default_factory=list)
    """One entry a step, the newest last; at most some thousands are kept."""

    evaluations: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Scores by version."""

    roles: dict[str, RoleState] = field(default_factory=dict)
    checkpoint_step: int | None = None
    started_at: float = field(default_factory=time.monotonic)
    training_since: float | None = None
    trained_at: float | None = None
    moved_at: float = field(default_factory=time.monotonic)
    moved_mark: tuple[Any, ...] = ()
    peak_memory_bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def role(self, name: str) -> RoleState:
        """Return a role's state, made on first sight."""
        return self.roles.setdefault(name, RoleState(name=name))

    def take(self, name: str, event: dict[str, Any]) -> None:
        """Apply one event of a role."""
        role = self.role(name)
        role.beat_at = time.monotonic()
        kind = event.get("event")
        if kind == "ready":
            role.status = "ready"
            role.was_ready = True
            role.address = event.get("address", role.address)
        elif kind == "beat":
            role.numbers = event.get("numbers", {})
            role.waits = event.get("waits", [])
        elif kind == "error":
            role.error = event
        elif kind == "done":
            role.status = "done"
        elif kind == "step":
            self.steps.append(event)
            del self.steps[:-_KEPT_STEPS]
        elif kind == "evaluation":
            self.evaluations[int(event["version"])] = event
        elif kind == "checkpoint":
            self.checkpoint_step = int(event["step"])
        elif kind == "trained":
            self.trained_at = time.monotonic()
        self._note_progress()

    @property
    def step(self) -> int:
        """Steps finished (count)."""
        trainer = self.roles.get("trainer")
        newest = int(self.steps[-1]["step"]) if self.steps else 0
        return max(newest, int(trainer.numbers.get("step", 0)) if trainer else 0)

    @property
    def dataflow(self) -> dict[str, Any]:
        """The dataflow service's last numbers."""
        role = self.roles.get("dataflow")
        return role.numbers if role else {}

    def instances(self) -> list[RoleState]:
        """Return the RaaS instances, by name."""
        return [role for name, role in sorted(self.roles.items()) if name.startswith("raas")]

    def total(self, number: str) -> float:
        """Add up a number over RaaS instances."""
        return float(sum(role.numbers.get(number, 0) for role in self.instances()))

    def training_s(self) -> float:
        """Wall time since every role was ready, up to the last step (s)."""
        if self.training_since is None:
            return 0.0
        return (self.trained_at or time.monotonic()) - self.training_since

    def _note_progress(self) -> None:
        """Notice when anything moved: a sample, an evaluated problem, a step."""
        dataflow = self.dataflow
        mark = (
            self.step,
            dataflow.get("produced"),
            dataflow.get("evaluation"),
            self.total("samples"),
            tuple(role.status for role in self.roles.values()),
        )
        if mark != self.moved_mark:
            self.moved_mark, self.moved_at = mark, time.monotonic()
