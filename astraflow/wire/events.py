"""
The two pipes between the supervisor and a role.

The *lifeline* is open for reading in the role and for writing in the supervisor alone: when it
ends, the supervisor is gone and the role kills its whole process group. The *events* pipe
carries one JSON object a line from the role: ready, heartbeats, counters, errors.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import threading
from typing import Any

__all__ = ["EVENTS_VARIABLE", "LIFELINE_VARIABLE", "Events", "Lifeline", "die_with_parent"]

LIFELINE_VARIABLE = "ASTRAFLOW_LIFELINE"
EVENTS_VARIABLE = "ASTRAFLOW_EVENTS"

_PR_SET_PDEATHSIG = 1


class Events:
    """
    Where a role writes what the supervisor should know.

    The variable holds a path (``/proc/PID/fd/N``) rather than a number, so that a process
    further down, such as a rank whose launcher closes inherited files, can open it too. Without
    a supervisor the events are dropped.
    """

    def __init__(self) -> None:
        path = os.environ.get(EVENTS_VARIABLE, "")
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_WRONLY) if path else -1

    @property
    def connected(self) -> bool:
        """True when a supervisor listens."""
        return self._fd >= 0

    def send(self, event: str, **fields: Any) -> None:
        """Write one event. One process at a time writes to a pipe, so lines never mix."""
        if self._fd < 0:
            return
        line = memoryview(json.dumps({"event": event, **fields}).encode() + b"\n")
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except BrokenPipeError:
                self._fd = -1  # the supervisor is gone; the lifeline ends this process


class Lifeline:
    """Ends this process, and its group, when the supervisor is gone."""

    def __init__(self) -> None:
        path = os.environ.get(LIFELINE_VARIABLE, "")
        self._fd = os.open(path, os.O_RDONLY) if path else -1

    def watch(self, *, whole_group: bool = True) -> None:
        """Start the watching thread; without a supervisor there is nothing to watch."""
        if self._fd < 0:
            return
        arguments = (self._fd, whole_group)
        threading.Thread(target=_watch, args=arguments, name="lifeline", daemon=True).start()


def die_with_parent(parent_pid: int | None = None) -> None:
    """
    Ask the kernel for SIGKILL when the parent ends: the second net under the lifeline.

    Args:
        parent_pid: The parent as the caller knew it before it started this process; if that one
            has ended already, this process ends at once.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent_pid is not None and os.getppid() != parent_pid:
        os._exit(1)


def _watch(fd: int, whole_group: bool) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    while True:
        poll.poll()
        if not os.read(fd, 1):
            break
    if whole_group and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
