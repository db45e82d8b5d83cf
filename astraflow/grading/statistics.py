"""avg@k, pass@k, maj@k over problems, with intervals; an answer that never came is wrong."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Interval", "Problem", "Score", "compare", "pass_at_k", "score"]

_RESAMPLES = 2000
_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What became of one problem's samples."""

    id: str
    """Name of the problem."""

    right: tuple[bool, ...]
    """One entry a sample; a sample that failed is False."""

    answers: tuple[str, ...] = ()
    """The answers as text, empty where there was none; what maj@k votes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An estimate with its 95 % bootstrap interval over problems."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The numbers of one dataset."""

    problems: int
    """Problems (count)."""

    samples: int
    """k: samples a problem (count)."""

    avg_at_k: Interval
    """Mean share of right samples: the accuracy of one sample."""

    pass_at_k: Interval
    """Chance that at least one of k samples is right."""

    maj_at_k: Interval
    """Share of problems whose most frequent answer is right."""


def score(problems: Sequence[Problem], *, seed: int = 0) -> Score:
    """
    Score a dataset.

    Args:
        problems: All with the same number of samples.
        seed: Of the bootstrap.

    Raises:
        ValueError: there are no problems, or their numbers of samples differ.
    """
    counts = {len(problem.right) for problem in problems}
    if len(counts) != 1:
        raise ValueError(f"problems must have one number of samples, not {sorted(counts)}")
    k = counts.pop()
    right = [sum(problem.right) for problem in problems]
    return Score(
        problems=len(problems),
        samples=k,
        avg_at_k=_interval([c / k for c in right], seed),
        pass_at_k=_interval([pass_at_k(k, c, k) for c in right], seed),
        maj_at_k=_interval([_majority(problem) for problem in problems], seed),
    )


def pass_at_k(samples: int, right: int, k: int) -> float:
    """
    Estimate the chance that at least one of ``k`` samples is right, without bias.

    Source:
        Chen et al., "Evaluating Large Language Models Trained on Code", arXiv:2107.03374, eq. 1:
        ``1 - C(n - c, k) / C(n, k)``.
    """
    if not 0 <= right <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {right} right in {samples} samples makes no sense")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def compare(before: Sequence[Problem], after: Sequence[Problem], *, seed: int = 0) -> Interval:
    """
    Return the difference of avg@k, after minus before, paired over the same problems.

    Raises:
        ValueError: the problems are not the same.
    """
    first = {problem.id: problem for problem in before}
    if set(first) != {problem.id for problem in after}:
        raise ValueError("the two evaluations are not over the same problems")
    differences = [
        sum(problem.right) / len(problem.right)
        - sum(first[problem.id].right) / len(first[problem.id].right)
        for problem in after
    ]
    return _interval(differences, seed)


def _majority(problem: Problem) -> float:
    """Return 1 if the most frequent answer is right; ties are shared evenly."""
    votes = Counter(answer for answer in problem.answers if answer)
    if not votes:
        return float(sum(problem.right) * 2 > len(problem.right))
    most = max(votes.values())
    winners = [answer for answer, count in votes.items() if count == most]
    verdict = dict(zip(problem.answers, problem.right, strict=True))
    return sum(verdict[answer] for answer in winners) / len(winners)


def _interval(values: Sequence[float], seed: int) -> Interval:
    data: NDArray[Any] = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(0, len(data), (_RESAMPLES, len(data)))
    means = data[draws].mean(axis=1)
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(value=float(data.mean()), low=float(low), high=float(high))
