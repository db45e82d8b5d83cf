"""Named waits: whoever waits says for what and since when, so that a stall can be explained."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Waits"]


class Waits:
    """The waits of one process; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, tuple[str, float, float]] = {}
        self._next = 0
        self._total_s: dict[str, float] = {}

    @contextmanager
    def waiting(self, name: str, *, deadline_s: float) -> Iterator[None]:
        """
        Record a wait while the block runs.

        Args:
            name: Who is waited for and for what, such as ``dataflow: batch 12``; the part
                before the colon is what :meth:`total_s` adds up.
            deadline_s: When the caller gives up (s); the caller enforces it.
        """
        started = time.monotonic()
        with self._lock:
            self._next += 1
            key = self._next
            self._open[key] = (name, started, deadline_s)
        try:
            yield
        finally:
            with self._lock:
                del self._open[key]
                whom = name.partition(":")[0]
                spent = time.monotonic() - started
                self._total_s[whom] = self._total_s.get(whom, 0.0) + spent

    def total_s(self, whom: str) -> float:
        """Return the time spent waiting for ``whom``, the running wait included (s)."""
        now = time.monotonic()
        with self._lock:
            running = (
                now - started
                for name, started, _ in self._open.values()
                if name.partition(":")[0] == whom
            )
            return self._total_s.get(whom, 0.0) + sum(running)

    def current(self) -> list[dict[str, float | str]]:
        """List open waits, the oldest first: name, seconds so far, deadline, and how many alike."""
        now = time.monotonic()
        with self._lock:
            waits = sorted(self._open.values(), key=lambda wait: wait[1])
        alike = Counter(name for name, _, _ in waits)
        oldest = {name: (started, deadline) for name, started, deadline in reversed(waits)}
        return [
            {
                "name": name,
                "since_s": round(now - started, 3),
                "deadline_s": deadline_s,
                "count": alike[name],
            }
            for name, (started, deadline_s) in sorted(oldest.items(), key=lambda item: item[1])
        ]
