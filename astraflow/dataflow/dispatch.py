"""Dispatch: who holds which lease until when; a lost lease goes back into the order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from astraflow.wire.messages import Lease

__all__ = ["Dispatch", "Granted"]

_UNNAMED_S = 15.0


@dataclass(slots=True)
class Granted:
    """A lease, its holder, and when it is lost without a sign of life."""

    lease: Lease
    instance: str
    expires_at: float
    named_at: float


class Dispatch:
    """
    The leases in force.

    Args:
        timeout_s: Time without a beat after which an instance's leases are lost (s).
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._granted: dict[str, Granted] = {}

    def grant(self, lease: Lease, instance: str, *, now: float) -> None:
        """Give a lease to an instance."""
        self._granted[lease.lease_id] = Granted(lease, instance, now + self._timeout_s, now)

    def finish(self, lease_id: str) -> Granted | None:
        """End a lease because it was answered; None when nobody holds it any more."""
        return self._granted.pop(lease_id, None)

    def renew(self, instance: str, lease_ids: Collection[str], *, now: float) -> list[str]:
        """Renew the leases that an instance names; return those that it does not hold."""
        lost = []
        for lease_id in lease_ids:
            granted = self._granted.get(lease_id)
            if granted is None or granted.instance != instance:
                lost.append(lease_id)
            else:
                granted.expires_at = now + self._timeout_s
                granted.named_at = now
        return lost

    def forgotten(self, instance: str, *, now: float) -> list[Granted]:
        """
        Take back what an instance that beats has not named for a while.

        It never learned of the lease, as the answer was lost on its way, or it was restarted. A
        beat may have been on its way when a lease was granted, so some seconds mean nothing.
        """
        return self._take(lambda g: g.instance == instance and now - g.named_at > _UNNAMED_S)

    def forget(self, instance: str) -> list[Granted]:
        """Take back everything that an instance holds: it is dead."""
        return self._take(lambda g: g.instance == instance)

    def release(self, instance: str, lease_ids: Collection[str]) -> list[Granted]:
        """Take back the leases that an instance returns unanswered."""
        held = [self._granted.get(lease_id) for lease_id in lease_ids]
        returned = [g for g in held if g is not None and g.instance == instance]
        for granted in returned:
            del self._granted[granted.lease.lease_id]
        return returned

    def expire(self, *, now: float) -> list[Granted]:
        """Take back every lease whose holder gave no sign of life in time."""
        return self._take(lambda g: g.expires_at <= now)

    def count(self, purpose: str) -> int:
        """Count the leases of one purpose (groups)."""
        return sum(g.lease.purpose == purpose for g in self._granted.values())

    def positions(self) -> list[int]:
        """Return the positions that are being sampled for training."""
        return [g.lease.position for g in self._granted.values() if g.lease.purpose == "train"]

    def _take(self, condition: Callable[[Granted], bool]) -> list[Granted]:
        taken = [granted for granted in self._granted.values() if condition(granted)]
        for granted in taken:
            del self._granted[granted.lease.lease_id]
        return taken
