"""Child: one role's process, with its lifeline, its events, its log, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from astraflow.supervisor.plan import RolePlan
from astraflow.wire.events import EVENTS_VARIABLE, LIFELINE_VARIABLE

__all__ = ["Child"]

_LINE_BYTES = 4 * 1024 * 1024


class Child:
    """
    A started role.

    It is the leader of a session and group of its own. The write end of its lifeline is held by
    this process alone: when this process ends, however it ends, the role learns of it at once.
    """

    def __init__(
        self,
        plan: RolePlan,
        process: asyncio.subprocess.Process,
        lifeline: int,
        events: asyncio.StreamReader,
        log_path: Path,
    ) -> None:
        self.plan = plan
        self.log_path = log_path
        self.started_at = time.monotonic()
        self.ended = asyncio.create_task(process.wait())
        self._process = process
        self._lifeline: int | None = lifeline
        self._events = events

    @classmethod
    async def start(
        cls,
        plan: RolePlan,
        command: tuple[str, ...],
        environment: Mapping[str, str],
        logs: Path,
    ) -> Child:
        """Start a role; its output goes to ``logs/NAME.log``, appended."""
        lifeline_read, lifeline_write = os.pipe()
        events_read, events_write = os.pipe()
        log_path = logs / f"{plan.name}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                env={
                    **os.environ,
                    **environment,
                    **plan.environment,
                    # Paths, not numbers, so that a process further down can open them as well.
                    LIFELINE_VARIABLE: f"/proc/self/fd/{lifeline_read}",
                    EVENTS_VARIABLE: f"/proc/self/fd/{events_write}",
                },
                pass_fds=(lifeline_read, events_write),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(lifeline_read)
        os.close(events_write)
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(events_read, "rb")
        )
        return cls(plan, process, lifeline_write, reader, log_path)

    @property
    def pid(self) -> int:
        """Process id, and id of its group."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """As in subprocess; None while it runs."""
        return self._process.returncode

    async def listen(self, take: Callable[[Child, dict[str, Any]], None]) -> None:
        """Hand every event to ``take`` until the pipe ends."""
        async for line in self._events:
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a process that was killed while it wrote
            take(self, event)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the role itself; what it started it stops in its own order."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)

    def dump_stacks(self) -> None:
        """Have the role and its ranks write all their stacks to the log."""
        if self.returncode is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            role = psutil.Process(self.pid)
            for process in (role, *role.children(recursive=True)):
                # The signal ends a process that does not expect it, such as a grading worker.
                if _expects(process.pid, signal.SIGUSR1):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGUSR1)

    async def stop(self, *, within_s: float) -> None:
        """Ask, wait, then kill the whole group; returns when it is reaped."""
        self.ask_to_stop()
        if within_s > 0:
            await asyncio.wait([self.ended], timeout=within_s)
        self._cut_lifeline()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self.ended

    def last_lines(self, count: int = 12) -> list[str]:
        """Return the end of the log."""
        try:
            with self.log_path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 16384))
                return file.read().decode(errors="replace").splitlines()[-count:]
        except OSError:
            return []

    def _cut_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None


def _expects(pid: int, number: signal.Signals) -> bool:
    """Tell whether a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended meanwhile
    caught = next(line for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
