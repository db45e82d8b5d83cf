"""Descendants that left their process group, such as ranks in sessions of their own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

__all__ = ["become_subreaper", "descendants", "kill_orphans"]

_PR_SET_CHILD_SUBREAPER = 36
_SETTLE_S = 0.02
_ROUNDS = 100


def become_subreaper() -> None:
    """Have orphaned descendants handed to this process instead of to init."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """List the processes below ``pid``, children before grandchildren."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parents.setdefault(_parent(entry), []).append(int(entry.name))
    found: list[int] = []
    layer = parents.get(pid, [])
    while layer:
        found += layer
        layer = [child for parent in layer for child in parents.get(parent, [])]
    return found


def kill_orphans(spare: frozenset[int] = frozenset()) -> list[int]:
    """
    Kill and reap what descends from this process, but for children in ``spare`` and theirs.

    Only processes that descend from this one are signalled, by id, and only those are reaped:
    the end of a spared child is for its own waiter to collect.
    """
    killed: set[int] = set()
    for _ in range(_ROUNDS):
        roots = [pid for pid in _children(os.getpid()) if pid not in spare]
        roots = [pid for pid in roots if not _reaped(pid)]
        if not roots:
            break
        for pid in [*roots, *(below for root in roots for below in descendants(root))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(_SETTLE_S)
    return sorted(killed)


def _children(pid: int) -> list[int]:
    numbers = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(entry.name) for entry in numbers if _parent(entry) == pid]


def _reaped(pid: int) -> bool:
    """Collect a child that has ended; True if it is gone."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _parent(entry: Path) -> int:
    try:
        # The name in parentheses may hold blanks and parentheses itself.
        return int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return -1
