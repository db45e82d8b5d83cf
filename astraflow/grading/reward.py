"""Reward: what grades answers in a run, and how to offer one of your own."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from astraflow.errors import PluginError
from astraflow.grading.boxes import AnswerPlace
from astraflow.records import Outcome

__all__ = ["FunctionReward", "GoldCheck", "GradeRequest", "GradeResult", "Reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeRequest:
    """One completion to grade."""

    gold: str
    """The right answer."""

    completion: str
    """What the policy wrote, never the prompt."""

    truncated: bool = False
    """True when the completion was cut at the token limit."""

    answer: AnswerPlace | None = None
    """Where an answer may stand; None as the reward was built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldCheck:
    """One gold to verify against itself."""

    gold: str
    """The right answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeResult:
    """What grading said."""

    outcome: Outcome
    """Class of the answer."""

    reward: float
    """What it pays."""

    graded_s: float = 0.0
    """Time that grading took, waiting excluded (s)."""


class Reward(Protocol):
    """
    Grades answers; offered under the entry point group ``astraflow.rewards``.

    An entry point names a :class:`astraflow.plugins.Plugin` whose ``build`` takes ``workers``
    (count), ``timeout_s`` (s) and ``answer``, and returns a Reward.
    """

    async def grade(self, requests: Sequence[GradeRequest]) -> list[GradeResult]:
        """Grade all requests; results come in the same order."""
        ...

    async def close(self) -> None:
        """Stop every process; calling twice is harmless."""
        ...


class FunctionReward:
    """
    Make a reward of a plain function.

    Args:
        function: Takes gold and completion, returns what to pay (a finite number). It runs in
            a thread, so it need not be quick, but nothing stops one that never returns.
    """

    def __init__(self, function: Callable[[str, str], float]) -> None:
        self._function = function

    async def grade(self, requests: Sequence[GradeRequest]) -> list[GradeResult]:
        """
        Call the function for each request; what is above 0 counts as right.

        Raises:
            PluginError: the function returned something that is not a finite number.
        """
        return await asyncio.to_thread(lambda: [self._pay(request) for request in requests])

    async def close(self) -> None:
        """Do nothing; a function has no processes."""

    def _pay(self, request: GradeRequest) -> GradeResult:
        started_s = time.perf_counter()
        reward = self._function(request.gold, request.completion)
        if not isinstance(reward, (int, float)) or not math.isfinite(reward):
            name = getattr(self._function, "__qualname__", repr(self._function))
            raise PluginError(
                f"the reward function `{name}` returned {reward!r}",
                hint="return a finite float for every answer, 0.0 for a wrong one",
            )
        return GradeResult(
            outcome=Outcome.RIGHT if reward > 0 else Outcome.WRONG,
            reward=float(reward),
            graded_s=time.perf_counter() - started_s,
        )
