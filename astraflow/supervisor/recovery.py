"""Restarts: which end of a role is worth another try, how often, and after what pause."""

from __future__ import annotations

import time
from collections.abc import Callable

from astraflow.recipe.supervision import RecoverySection

__all__ = ["Restarts"]

_LONGEST_PAUSE_S = 60.0
# A recipe, a plug-in or a machine that does not fit is not cured by trying again.
_FINAL_CODES = frozenset({2, 3, 4})


class Restarts:
    """
    Counts restarts by role.

    Args:
        section: The recipe's bounds.
        clock: Monotonic time (s).
    """

    def __init__(
        self, section: RecoverySection, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._section = section
        self._clock = clock
        self._limits = {
            "raas": section.raas_restarts,
            "dataflow": section.dataflow_restarts,
            "trainer": section.trainer_restarts,
        }
        self._times: dict[str, list[float]] = {}

    def count(self, name: str) -> int:
        """Return a role's restarts within the window (count)."""
        since = self._clock() - self._section.window_s
        return sum(at > since for at in self._times.get(name, ()))

    def allow(self, name: str, kind: str, *, code: int | None, was_ready: bool) -> float | None:
        """
        Decide on a role that ended or hung; a restart that is allowed counts.

        Args:
            name: The role.
            kind: ``dataflow``, ``raas`` or ``trainer``.
            code: Its exit code, negative for a signal; None when it hangs.
            was_ready: Whether it had come up.

        Returns:
            The pause before the restart (s); None when the run should end.
        """
        by_itself = code is not None and code >= 0
        if by_itself and (code in _FINAL_CODES or not was_ready):
            return None
        done = self.count(name)
        if done >= self._limits[kind]:
            return None
        self._times.setdefault(name, []).append(self._clock())
        return min(self._section.backoff_s * 2.0**done, _LONGEST_PAUSE_S)

    def why_not(self, name: str, kind: str) -> str:
        """Say what was tried before the run ended; empty when nothing was."""
        done = self.count(name)
        if not done:
            return ""
        return (
            f"it was restarted {done} times within {self._section.window_s:g} s, as "
            f"`recovery.{kind}_restarts` allows"
        )
