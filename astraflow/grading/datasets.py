"""One dataset's graded answers to its numbers; a run and `astraflow eval` both use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from astraflow.grading.boxes import AnswerPlace, find_answer
from astraflow.grading.math_answers import ballot
from astraflow.grading.statistics import Problem, score
from astraflow.records import FinishReason, Outcome

__all__ = ["Answered", "GradedAnswer", "as_problem", "score_dataset", "vote_of"]

_REASONS_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedAnswer:
    """One sample, as far as scores need it."""

    outcome: Outcome
    finish: FinishReason
    tokens: int
    """Length of the answer (tokens)."""
    vote: str
    """What maj@k counts, see :func:`vote_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came back for one problem."""

    id: str
    """Name of the problem."""

    answers: tuple[GradedAnswer, ...] = ()
    """Fewer than were asked for, or none, when sampling failed."""

    failed: str = ""
    """Why answers are missing; empty when none is."""


def score_dataset(rows: Sequence[Answered], *, samples: int, seed: int) -> dict[str, Any]:
    """
    Score a dataset as plain values; an answer that never came is wrong.

    Args:
        rows: One a problem, unanswered ones included.
        samples: Answers asked for, a problem (count).
        seed: Of the bootstrap.

    Returns:
        ``problems``, ``samples``, ``avg_at_k``, ``pass_at_k``, ``maj_at_k`` (each with its 95 %
        interval), ``truncated_frac``, ``no_answer_frac`` (of all answers asked for), ``failed``
        (answers that never came), ``failures`` (the most frequent reasons), ``outcomes``, and
        ``answer_tokens_mean``.
    """
    problems = [as_problem(row, samples=samples) for row in rows]
    answers = [answer for row in rows for answer in row.answers]
    asked = max(len(rows) * samples, 1)
    outcomes = Counter(answer.outcome for answer in answers)
    reasons = Counter(row.failed for row in rows if row.failed)
    return {
        **asdict(score(problems, seed=seed)),
        "truncated_frac": sum(a.finish is FinishReason.LENGTH for a in answers) / asked,
        "no_answer_frac": outcomes[Outcome.NO_ANSWER] / asked,
        "failed": len(rows) * samples - len(answers),
        "failures": dict(reasons.most_common(_REASONS_SHOWN)),
        "outcomes": {outcome.value: count for outcome, count in outcomes.items()},
        "answer_tokens_mean": sum(a.tokens for a in answers) / max(len(answers), 1),
    }


def as_problem(row: Answered, *, samples: int) -> Problem:
    """Return a problem with every sample that was asked for; a missing one is wrong."""
    missing = samples - len(row.answers)
    return Problem(
        id=row.id,
        right=(*(a.outcome is Outcome.RIGHT for a in row.answers), *([False] * missing)),
        answers=(*(answer.vote for answer in row.answers), *([""] * missing)),
    )


def vote_of(text: str, *, finish: FinishReason, place: AnswerPlace) -> str:
    """Return the answer in a text in the form that maj@k counts; empty without one."""
    truncated = finish is FinishReason.LENGTH
    return ballot(find_answer(text, place=place, truncated=truncated) or "")
