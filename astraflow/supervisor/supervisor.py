"""
The supervisor's state machine.

    start dataflow ─ready─▶ start RaaS and trainer ─all ready─▶ watch ─trainer done─▶ stop all: 0
         │                        │                               │
         └── not ready: 13 ───────┴── a role ended or hangs ──────┤
                                      ├── another try: restart    ├── nothing moves: 14
                                      └── no more: 10 11 12       └── Ctrl-C: drain, save: 130

A restart of RaaS or of the dataflow leaves the others alone: they wait and go on. A restart of the
trainer takes the dataflow back to the same checkpoint with it.

Whatever the way out, every process that was started is gone and reaped before it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from astraflow.errors import AstraFlowError, NotReadyError, RoleError, StoppedError, WireError
from astraflow.recipe.supervision import LimitsSection
from astraflow.supervisor.child import Child
from astraflow.supervisor.lines import line_of, metrics_of, mismatch_warning
from astraflow.supervisor.orphans import become_subreaper, descendants, kill_orphans
from astraflow.supervisor.plan import DATAFLOW_ADDRESS, RolePlan, RunPlan
from astraflow.supervisor.recovery import Restarts
from astraflow.supervisor.runs import write_state
from astraflow.supervisor.state import RunState
from astraflow.supervisor.summary import summarize, write_summary
from astraflow.supervisor.watch import find_culprit, find_hung, find_stall, memory_bytes
from astraflow.wire.auth import TOKEN_VARIABLE
from astraflow.wire.client import ServiceClient
from astraflow.wire.messages import Done, LostReport

__all__ = ["Supervisor"]

_WATCH_S = 0.5
_MEMORY_EVERY_S = 2.0
_STATE_EVERY_S = 1.0
_STACKS_S = 1.0
# Drains get this many times the ordinary stop limit: a step and a checkpoint must fit.
_DRAIN_FACTOR = 10


class Supervisor:
    """
    Runs one plan to its end.

    Args:
        plan: What to start.
        limits: Deadlines of the recipe.
        folder: The run folder.
        token: The run's token, given to roles by environment.
        state: Filled from events; a view may read it at any time.
        announce: Told about each thing a person should read as a line.
        restarts: How often a role may be tried again.
        replan: Plans a trainer and a dataflow that continue from the last checkpoint.
    """

    def __init__(
        self,
        plan: RunPlan,
        *,
        limits: LimitsSection,
        folder: Path,
        token: str,
        state: RunState,
        announce: Callable[[str], None],
        restarts: Restarts,
        replan: Callable[[], RunPlan],
    ) -> None:
        self._plan = plan
        self._restarts = restarts
        self._replan = replan
        self._token = token
        self._ready_by: dict[str, float] = {}
        self._next_state = 0.0
        self._limits = limits
        self._folder = folder
        self._environment = {TOKEN_VARIABLE: token}
        self._state = state
        self._announce = announce
        self._children: list[Child] = []
        self._listeners: list[asyncio.Task[None]] = []
        self._asked = asyncio.Event()
        self._killed = asyncio.Event()
        self._exit_codes = {role.name: role.exit_code for role in plan.roles()}
        self._events_file = (folder / "events.jsonl").open("a", encoding="utf-8")
        self._metrics_file = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    async def run(self) -> tuple[int, AstraFlowError | None]:
        """Run to the end; return the exit code and what ended the run, if something did."""
        become_subreaper()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        error: AstraFlowError | None = None
        try:
            await self._start_all()
            await self._watch()
        except AstraFlowError as caught:
            error = caught
        finally:
            await self._stop_all(kill=self._killed.is_set())
            exit_code = error.exit_code if error else 0
            write_state(self._folder, self._state)
            write_summary(self._folder, summarize(self._state, exit_code=exit_code, error=error))
            self._events_file.close()
            self._metrics_file.close()
        return exit_code, error

    # --- start

    async def _start_all(self) -> None:
        await self._start(self._plan.dataflow, self._plan.dataflow.command)
        await self._until_ready([self._plan.dataflow.name])
        for role in (*self._plan.raas, self._plan.trainer):
            await self._start(role, self._addressed(role))
        await self._until_ready([role.name for role in self._plan.roles()])
        self._state.training_since = time.monotonic()
        self._announce("every role is ready")

    async def _start(self, role: RolePlan, command: tuple[str, ...]) -> None:
        child = await Child.start(role, command, self._environment, self._folder / "logs")
        self._children.append(child)
        self._state.role(role.name).begin(child.pid)
        self._ready_by[role.name] = time.monotonic() + self._limits.ready_s
        self._record(role.name, {"event": "started", "pid": child.pid})
        self._announce(f"{role.name} started as process {child.pid}, log {child.log_path}")
        self._listeners.append(asyncio.create_task(child.listen(self._take)))

    async def _until_ready(self, names: list[str]) -> None:
        while any(self._state.role(name).status == "starting" for name in names):
            await self._pause()
            await self._tend()

    # --- watch

    async def _watch(self) -> None:
        """Return when the trainer is done; raise what ends the run otherwise."""
        next_memory = 0.0
        while True:
            await self._pause()
            if self._child("trainer").returncode == 0:
                await self._settle("trainer")
                return
            await self._tend()
            if time.monotonic() >= next_memory:
                self._note_memory()
                next_memory = time.monotonic() + _MEMORY_EVERY_S
            stuck = find_stall(self._state, self._limits)
            if stuck is not None:
                culprit, _ = find_culprit(self._state)
                await self._dump_stacks(self._children)
                guilty = [c for c in self._children if c.plan.name == culprit]
                for child in guilty:
                    stuck.hint += f"\nthe end of {child.log_path}:\n{_quoted(child, lines=40)}"
                raise stuck

    async def _tend(self) -> None:
        """Restart what ended or hangs, within the recipe's bounds; raise what ends the run."""
        for child in list(self._children):
            error = await self._fault_of(child)
            if error is None:
                continue
            plan = child.plan
            pause_s = self._restarts.allow(
                plan.name,
                plan.kind,
                code=child.returncode,
                was_ready=self._state.role(plan.name).was_ready,
            )
            if pause_s is None:
                tried = self._restarts.why_not(plan.name, plan.kind)
                error.hint = f"{tried}\n{error.hint}" if tried else error.hint
                raise error
            self._announce(f"{error.what}; it is restarted in {pause_s:g} s")
            self._record(plan.name, {"event": "restarting", "why": error.what})
            await asyncio.sleep(pause_s)
            await self._restart(child)
            return  # the list has changed

    async def _fault_of(self, child: Child) -> RoleError | NotReadyError | None:
        """Return what is wrong with a role, with its stacks in its log; None if nothing is."""
        role = self._state.role(child.plan.name)
        if child.returncode is not None:
            if child.returncode == 0 and child.plan.kind == "trainer":
                return None
            # What it started must not go on without it.
            await child.stop(within_s=0.0)
            await self._settle(child.plan.name)
            role.status = "ended"
            return self._ending(child)
        if role.status == "starting" and time.monotonic() > self._ready_by[role.name]:
            await self._dump_stacks([child])
            return NotReadyError(
                f"{role.name} was not ready within {self._limits.ready_s:g} s",
                where=str(child.log_path),
                hint="raise `limits.ready_s`, or see its log:\n" + _quoted(child),
            )
        hung = find_hung(role, self._limits, self._exit_codes[role.name])
        if hung is not None:
            await self._dump_stacks([child])
        return hung

    async def _restart(self, child: Child) -> None:
        """Put another process in a role's place; the trainer's takes the dataflow back with it."""
        kind = child.plan.kind
        await self._remove(child)
        if kind == "raas":
            await self._tell_lost(child.plan.name)
            await self._start(child.plan, self._addressed(child.plan))
            return
        port = self._state.role("dataflow").address.rpartition(":")[2] or "0"
        if kind == "dataflow":
            # On its old port: the others try again until it answers there.
            await self._start(
                child.plan, (*_fresh(child.plan.command), "--port", port, "--recover")
            )
            return
        await self._remove(self._child("dataflow"))
        plan = self._replan()
        await self._start(plan.dataflow, (*plan.dataflow.command, "--port", port))
        await self._start(plan.trainer, self._addressed(plan.trainer))

    async def _remove(self, child: Child) -> None:
        """End what is left of a role: its group, and ranks that had left it."""
        await child.stop(within_s=0.0)
        index = self._children.index(child)
        listener = self._listeners.pop(index)
        self._children.pop(index)
        await asyncio.wait([listener], timeout=1.0)
        listener.cancel()
        kill_orphans(frozenset(child.pid for child in self._children))

    async def _tell_lost(self, instance: str) -> None:
        """Have a dead instance's prompts handed out again; its leases would expire otherwise."""
        client = ServiceClient(self._state.role("dataflow").address, self._token)
        try:
            await client.call("/v1/lost", LostReport(instance=instance), Done, within_s=3.0)
        except WireError as error:
            self._announce(f"the leases of {instance} are left to expire: {error.what}")
        finally:
            await client.close()

    def _addressed(self, role: RolePlan) -> tuple[str, ...]:
        address = self._state.role("dataflow").address
        return tuple(part.replace(DATAFLOW_ADDRESS, address) for part in role.command)

    async def _dump_stacks(self, children: list[Child]) -> None:
        for child in children:
            child.dump_stacks()
        await asyncio.sleep(_STACKS_S)

    async def _pause(self) -> None:
        """Wait a moment, less when a role ends; act on a signal."""
        if time.monotonic() >= self._next_state:
            write_state(self._folder, self._state)
            self._next_state = time.monotonic() + _STATE_EVERY_S
        endings = [child.ended for child in self._children if not child.ended.done()]
        asked = asyncio.create_task(self._asked.wait())
        await asyncio.wait([asked, *endings], timeout=_WATCH_S, return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if self._asked.is_set():
            await self._drain()

    async def _drain(self) -> None:
        """Let the trainer finish its step and save, then end the run."""
        trainer = next((c for c in self._children if c.plan.kind == "trainer"), None)
        saved = ""
        if trainer is not None and trainer.returncode is None:
            self._announce("stopping: the trainer finishes its step and saves; Ctrl-C again kills")
            trainer.ask_to_stop()
            killed = asyncio.create_task(self._killed.wait())
            await asyncio.wait(
                [trainer.ended, killed],
                timeout=self._limits.stop_s * _DRAIN_FACTOR,
                return_when=asyncio.FIRST_COMPLETED,
            )
            killed.cancel()
            await self._settle("trainer")
            step = self._state.checkpoint_step
            saved = f"; step {step} is saved" if step is not None else "; nothing was saved yet"
        raise StoppedError(
            f"the run was stopped on request after {self._state.step} steps{saved}",
            hint="`astraflow run ... --resume` continues it",
        )

    def _ending(self, child: Child) -> RoleError:
        code = child.returncode or 0
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        reported = self._state.role(child.plan.name).error
        why = f": {reported['what']}" if reported else ""
        hint = reported.get("hint") or _hint_for(code)
        return RoleError(
            f"{child.plan.name} ended with {how}{why}",
            exit_code=child.plan.exit_code,
            where=str(child.log_path),
            hint=f"{hint}\nthe end of its log:\n{_quoted(child)}",
        )

    # --- stop

    async def _stop_all(self, *, kill: bool) -> None:
        """Stop what still runs, the newest first, and leave no descendant behind."""
        within_s = 0.0 if kill else self._limits.stop_s
        for child in reversed(self._children):
            await child.stop(within_s=within_s if not self._killed.is_set() else 0.0)
            role = self._state.role(child.plan.name)
            role.status = "stopped" if role.status in ("ready", "starting") else role.status
        for listener in self._listeners:
            await asyncio.wait([listener], timeout=1.0)
            listener.cancel()
        orphans = kill_orphans()
        if orphans:
            self._announce(f"killed {len(orphans)} process(es) that had left their group")

    # --- events

    def _take(self, child: Child, event: dict[str, Any]) -> None:
        name = child.plan.name
        self._state.take(name, event)
        if event.get("event") != "beat":
            self._record(name, event)
        line = line_of(name, event)
        if line:
            self._announce(line)
        if event.get("mismatch_mean_abs", 0.0) > self._limits.mismatch_nats:
            self._announce(mismatch_warning(event, self._limits.mismatch_nats))

    def _record(self, name: str, event: dict[str, Any]) -> None:
        record = {"time": round(time.time(), 3), "role": name, **event}
        self._events_file.write(json.dumps(record) + "\n")
        self._events_file.flush()
        if event.get("event") == "step":
            self._metrics_file.write(json.dumps(metrics_of(self._state, event)) + "\n")
            self._metrics_file.flush()

    def _note_memory(self) -> None:
        total = memory_bytes([os.getpid()])
        for child in self._children:
            if child.returncode is None:
                role = self._state.role(child.plan.name)
                role.memory_bytes = memory_bytes([child.pid, *descendants(child.pid)])
                total += role.memory_bytes
        self._state.peak_memory_bytes = max(self._state.peak_memory_bytes, total)

    def _on_signal(self) -> None:
        if self._asked.is_set():
            self._killed.set()
        self._asked.set()

    async def _settle(self, name: str) -> None:
        """Take in what a role that has ended wrote last."""
        index = next(i for i, child in enumerate(self._children) if child.plan.name == name)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._listeners[index]), 2.0)
        await asyncio.sleep(0)

    def _child(self, name: str) -> Child:
        return next(child for child in self._children if child.plan.name == name)


def _fresh(command: tuple[str, ...]) -> tuple[str, ...]:
    """Leave the checkpoint out: a dataflow that recovers is further than that."""
    if "--resume-from" not in command:
        return command
    at = command.index("--resume-from")
    return (*command[:at], *command[at + 2 :])


def _hint_for(code: int) -> str:
    if code == -signal.SIGKILL:
        return (
            "SIGKILL comes from a person or from the kernel when memory runs out; `dmesg` tells "
            "which"
        )
    return "its log says why"


def _quoted(child: Child, *, lines: int = 12) -> str:
    return "\n".join(f"  | {line}" for line in child.last_lines(lines))
