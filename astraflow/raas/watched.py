"""Engine and reward whose waits have names, so that a stall can tell which of them is stuck."""

from __future__ import annotations

from collections.abc import Sequence

from astraflow.grading import GradeRequest, GradeResult, Reward
from astraflow.interfaces import Sampler
from astraflow.records import Sample, SampleRequest
from astraflow.wire.waits import Waits

__all__ = ["WatchedReward", "WatchedSampler"]


class WatchedSampler:
    """
    An engine.

    Args:
        engine: What samples.
        waits: Where waiting for it is noted.
        within_s: When its callers give up (s).
    """

    def __init__(self, engine: Sampler, waits: Waits, *, within_s: float) -> None:
        self._engine = engine
        self._waits = waits
        self._within_s = within_s

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one answer."""
        with self._waits.waiting("engine: answers", deadline_s=self._within_s):
            return await self._engine.sample(request)


class WatchedReward:
    """
    A reward.

    Args:
        reward: What grades.
        waits: Where waiting for it is noted.
        within_s: When the run gives up on it (s).
    """

    def __init__(self, reward: Reward, waits: Waits, *, within_s: float) -> None:
        self._reward = reward
        self._waits = waits
        self._within_s = within_s

    async def grade(self, requests: Sequence[GradeRequest]) -> list[GradeResult]:
        """Grade all requests."""
        with self._waits.waiting("reward: grades", deadline_s=self._within_s):
            return await self._reward.grade(requests)

    async def close(self) -> None:
        """Stop every process."""
        await self._reward.close()
