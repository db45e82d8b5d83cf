"""
Buffer: finished groups that wait for a batch.

    arrive ──▶ [ buffered ] ──take()──▶ batch
                    │
                    └──drop_stale(version)──▶ dropped: stale

A group's deadline is the last version that may still train on it: its oldest token's version
plus ``max_staleness``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from astraflow.records import SampleGroup

__all__ = ["Buffer", "BufferedGroup"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedGroup:
    """A group and what its place in the queue depends on."""

    row_id: int
    """Key in the store."""

    position: int
    """Place of its prompt in the endless order."""

    min_version: int
    """Version of its oldest token."""

    arrived: int
    """Order of arrival (count)."""

    group: SampleGroup
    """The samples."""


class Buffer:
    """
    Groups in memory; the store has them too.

    Args:
        max_staleness: Versions that a group's oldest token may lie behind (versions).
        order: ``earliest_deadline`` takes what expires soonest, ``fifo`` what came first.
    """

    def __init__(self, *, max_staleness: int, order: Literal["earliest_deadline", "fifo"]) -> None:
        self._max_staleness = max_staleness
        self._groups: list[BufferedGroup] = []
        self._key: Callable[[BufferedGroup], tuple[int, int]] = (
            (lambda g: (g.min_version, g.position))
            if order == "earliest_deadline"
            else (lambda g: (g.arrived, g.position))
        )

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: BufferedGroup) -> None:
        """Let a group wait."""
        self._groups.append(group)

    def drop_stale(self, *, version: int) -> list[BufferedGroup]:
        """Take out the groups that no batch at ``version`` may hold."""
        oldest = version - self._max_staleness
        stale = [group for group in self._groups if group.min_version < oldest]
        self._groups = [group for group in self._groups if group.min_version >= oldest]
        return stale

    def take(self, count: int) -> list[BufferedGroup]:
        """Take the first ``count`` groups of the order; the rest stays, none is lost."""
        self._groups.sort(key=self._key)
        taken, self._groups = self._groups[:count], self._groups[count:]
        return taken

    def ordered(self, groups: list[BufferedGroup]) -> list[BufferedGroup]:
        """Return groups in the order in which a batch has them."""
        return sorted(groups, key=self._key)

    def groups(self) -> list[BufferedGroup]:
        """Return what waits, for a checkpoint."""
        return list(self._groups)
