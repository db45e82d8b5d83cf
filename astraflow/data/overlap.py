"""Which problems of a training set an evaluation set holds as well, by runs of eight words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from astraflow.records import Prompt

__all__ = ["shared_problems"]

_WORD = re.compile(r"[A-Za-z0-9]+")
_RUN_WORDS = 8
_COVERED_FRAC = 0.6
_OWN_COVERED_FRAC = 0.5


def shared_problems(train: Sequence[Prompt], evaluation: Sequence[Prompt]) -> list[str]:
    """
    Return ids of training problems that are, or nearly are, an evaluated one.

    Runs of eight words (of all words, in a shorter problem) that both have must cover at least
    60 % of the evaluated problem and half of the training problem: a short evaluated problem that
    is one clause of a longer text is not that text.
    """
    owners: dict[tuple[str, ...], set[int]] = {}
    totals = []
    for index, prompt in enumerate(evaluation):
        runs = _runs(prompt.problem)
        totals.append(len(runs))
        for run in runs:
            owners.setdefault(run, set()).add(index)
    found = []
    for prompt in train:
        hits: Counter[int] = Counter()
        own = _runs(prompt.problem)
        for run in own:
            hits.update(owners.get(run, ()))
        if any(
            count >= _COVERED_FRAC * totals[index] and count >= _OWN_COVERED_FRAC * len(own)
            for index, count in hits.items()
        ):
            found.append(prompt.id)
    return found


def _runs(text: str) -> set[tuple[str, ...]]:
    words = [word.lower() for word in _WORD.findall(text)]
    if len(words) < _RUN_WORDS:
        return {tuple(words)} if words else set()
    return {tuple(words[at : at + _RUN_WORDS]) for at in range(len(words) - _RUN_WORDS + 1)}
