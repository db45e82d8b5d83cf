"""Evaluation of one pinned version: problems out under leases, answers in, a score at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from astraflow.grading.boxes import AnswerPlace
from astraflow.grading.datasets import Answered, GradedAnswer, score_dataset, vote_of
from astraflow.records import Prompt, SampleGroup

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

    datasets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By dataset, all that `astraflow eval` says of one: avg@k, pass@k and maj@k with intervals,
    truncated answers and such without one, mean length, what failed and why."""


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
        place: AnswerPlace = "boxed",
        seed: int = 0,
    ) -> None:
        self._place = place
        self._seed = seed
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
        self._answered: dict[tuple[str, int], Answered] = {}
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
        prompt = self._problems[name][index]
        self._answered[item] = Answered(id=prompt.id, answers=self._answers(group))
        self._close_if_complete(now)
        return name, prompt

    def give_up(self, lease_id: str, *, now: float, why: str = "") -> None:
        """Count a problem as wrong that could not be sampled."""
        item = self._out.pop(lease_id, None)
        if item is not None:
            name, index = item
            self._answered[item] = Answered(id=self._problems[name][index].id, failed=why)
        self._close_if_complete(now)

    def close(self, *, now: float) -> Score:
        """End it; whatever is missing counts as wrong."""
        datasets = {
            name: score_dataset(self._rows(name), samples=self.samples, seed=self._seed)
            for name in self._problems
        }
        by_dataset = {name: found["avg_at_k"]["value"] for name, found in datasets.items()}
        self._queue.clear()
        self._out.clear()
        self.score = Score(
            version=self.version,
            accuracy=sum(by_dataset.values()) / len(by_dataset),
            by_dataset=by_dataset,
            samples=self.samples,
            missing=sum(found["failed"] for found in datasets.values()),
            wall_s=now - self._started_at,
            datasets=datasets,
        )
        return self.score

    def _close_if_complete(self, now: float) -> None:
        if not self._queue and not self._out and self.score is None:
            self.close(now=now)

    def _rows(self, name: str) -> list[Answered]:
        """Return a dataset's problems in their order, unanswered ones included."""
        return [
            self._answered.get((name, index), Answered(id=prompt.id, failed="not answered in time"))
            for index, prompt in enumerate(self._problems[name])
        ]

    def _answers(self, group: SampleGroup) -> tuple[GradedAnswer, ...]:
        return tuple(
            GradedAnswer(
                outcome=sample.outcome,
                finish=sample.finish,
                tokens=len(sample.token_ids),
                vote=vote_of(sample.text, finish=sample.finish, place=self._place),
            )
            for sample in group.samples
        )
