"""How many groups an instance asks for: enough to keep the engine full, little that only waits."""

from __future__ import annotations

from astraflow.interfaces import EngineLoad

__all__ = ["groups_wanted"]

# Part of an engine's capacity that may wait in front of it, so that a freed place is filled at
# once. More would only grow stale.
_WAITING_FRAC = 0.25


def groups_wanted(load: EngineLoad, *, in_flight: int, group_size: int, limit: int | None) -> int:
    """
    Return how many groups to lease now.

    Args:
        load: The engine's own numbers.
        in_flight: Samples leased and not handed back (count).
        group_size: Samples of one group (count).
        limit: Most samples in flight; None lets the engine's capacity decide (count).
    """
    slack = load.waiting_target or int(load.capacity * _WAITING_FRAC)
    slack = max(group_size, slack)
    if limit is None and load.waiting > slack:
        return 0
    most = load.capacity + slack if limit is None else limit
    # At least one whole group, however small the engine.
    return max(0, max(most, group_size) - in_flight) // group_size
