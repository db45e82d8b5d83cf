"""Ledger: which receiver holds which version, who lags, and why one was refused."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Entry", "Ledger"]


@dataclass(slots=True)
class Entry:
    """What a sender knows of one receiver."""

    version: int = -1
    """Newest version that the receiver confirmed; -1 before the first."""

    refused: str = ""
    """Why it refused the last version it did not take; empty after the next confirmation."""

    refusals: int = 0
    """Versions refused so far (count)."""

    sent_bytes: int = 0
    """Bytes sent to it so far, headers included."""

    heard_at: float = 0.0
    """Unix time of its last message (s)."""


class Ledger:
    """The receivers of one rank; safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}

    def hear(self, receiver: str) -> None:
        """Note a sign of life."""
        with self._lock:
            self._entries.setdefault(receiver, Entry()).heard_at = time.time()

    def sent(self, receiver: str, size: int) -> None:
        """Note bytes that went to a receiver."""
        with self._lock:
            self._entries.setdefault(receiver, Entry()).sent_bytes += size

    def confirm(self, receiver: str, version: int) -> None:
        """Note that a version serves at a receiver."""
        with self._lock:
            entry = self._entries.setdefault(receiver, Entry())
            entry.version, entry.refused = version, ""

    def refuse(self, receiver: str, version: int, why: str) -> None:
        """Note that a receiver could not take a version; the next one will be full."""
        with self._lock:
            entry = self._entries.setdefault(receiver, Entry())
            entry.refused = f"version {version}: {why}"
            entry.refusals += 1

    def must_be_full(self, receiver: str) -> bool:
        """Tell whether the receiver refused its last version."""
        with self._lock:
            return bool(self._entries.setdefault(receiver, Entry()).refused)

    def rows(self, *, newest: int) -> dict[str, dict[str, Any]]:
        """Return every entry, with how many versions it lags behind ``newest``."""
        with self._lock:
            return {
                name: {**asdict(entry), "lag": max(newest - entry.version, 0)}
                for name, entry in self._entries.items()
            }
