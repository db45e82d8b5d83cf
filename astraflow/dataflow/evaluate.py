"""Evaluation of one pinned version: problems out under leases, answers in, a score at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from astraflow.records import Outcome, Prompt, SampleGroup

__all__ = ["Evaluation", "Score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What an evaluation found; an answer that never came counts as wrong."""

    version: int
    """The version that answered."""

    accuracy: float
    """Mean over datasets of avg@k, 0 to 1."""

    by_dataset: Mapping[str, float]
    """avg@k of each dataset: the share of right answers over problems times samples."""

    samples: int
    """k (count)."""

    missing: int
    """Answers that never came (count)."""

    wall_s: float
    """From the start to the last answer (s)."""


class Evaluation:
    """
    The evaluation of ``version`` over named sets of problems.

    Only an instance that holds exactly ``version`` is given problems, and it does not install
    another while it has some; training goes on meanwhile within the staleness bound.
    """

    def __init__(
        self,
        version: int,
        datasets: Mapping[str, Sequence[Prompt]],
        *,
        samples: int,
        started_at: float,
    ) -> None:
        self.version = version
        self.samples = samples
        self._started_at = started_at
        self._problems = {name: tuple(prompts) for name, prompts in datasets.items()}
        self._queue = [
            (name, index)
            for name, prompts in self._problems.items()
            for index in range(len(prompts))
        ]
        self._queue.reverse()
        self._out: dict[str, tuple[str, int]] = {}
        self._rewards: dict[str, list[float]] = {name: [] for name in self._problems}
        self.score: Score | None = None

    @property
    def total(self) -> int:
        """Problems of all datasets (count)."""
        return sum(len(prompts) for prompts in self._problems.values())

    @property
    def finished(self) -> int:
        """Problems answered or given up (count)."""
        return self.total - len(self._queue) - len(self._out)

    @property
    def state(self) -> Literal["waiting", "running", "done"]:
        """Where it stands."""
        if self.score is not None:
            return "done"
        return "running" if self._out or self.finished else "waiting"

    @property
    def has_work(self) -> bool:
        """True while some problem has not been handed out."""
        return bool(self._queue)

    def is_late(self, within_s: float, *, now: float) -> bool:
        """Tell whether it should have ended by now."""
        return self.score is None and now - self._started_at > within_s

    def take(self, lease_id: str) -> tuple[str, int, Prompt]:
        """Hand out one problem: its dataset, its row and the prompt."""
        name, index = self._queue.pop()
        self._out[lease_id] = (name, index)
        return name, index, self._problems[name][index]

    def give_back(self, lease_id: str) -> None:
        """Put a problem back whose lease was lost."""
        item = self._out.pop(lease_id, None)
        if item is not None:
            self._queue.append(item)

    def finish(self, group: SampleGroup, *, now: float) -> tuple[str, Prompt] | None:
        """Take the answers to one problem; None if the problem is not out under that lease."""
        item = self._out.pop(group.lease_id, None)
        if item is None:
            return None
        name, index = item
        right = [sample.outcome is Outcome.RIGHT for sample in group.samples]
        self._rewards[name].extend(float(r) for r in right)
        self._close_if_complete(now)
        return name, self._problems[name][index]

    def give_up(self, lease_id: str, *, now: float) -> None:
        """Count a problem as wrong that could not be sampled."""
        self._out.pop(lease_id, None)
        self._close_if_complete(now)

    def close(self, *, now: float) -> Score:
        """End it; whatever is missing counts as wrong."""
        by_dataset = {
            name: sum(self._rewards[name]) / (len(prompts) * self.samples)
            for name, prompts in self._problems.items()
        }
        answers = sum(len(rewards) for rewards in self._rewards.values())
        self._queue.clear()
        self._out.clear()
        self.score = Score(
            version=self.version,
            accuracy=sum(by_dataset.values()) / len(by_dataset),
            by_dataset=by_dataset,
            samples=self.samples,
            missing=self.total * self.samples - answers,
            wall_s=now - self._started_at,
        )
        return self.score

    def _close_if_complete(self, now: float) -> None:
        if not self._queue and not self._out and self.score is None:
            self.close(now=now)
