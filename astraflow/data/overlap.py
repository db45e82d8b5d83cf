"""How a dataset's problems are long, and which of them an evaluation set holds as well."""

from __future__ import annotations

import re
from collections.abc import Sequence

from astraflow.records import Prompt

__all__ = ["shared_problems", "word_histogram"]

_WORD = re.compile(r"[A-Za-z0-9]+")
_RUN_WORDS = 8
# Two problems count as one when runs of eight words cover this much of the evaluation problem.
_COVERED_FRAC = 0.6
_BOUNDS = (16, 32, 64, 128, 256)


def shared_problems(train: Sequence[Prompt], evaluation: Sequence[Prompt]) -> list[str]:
    """Return ids of training problems that share most 8-word runs with an evaluated one."""
    owners: dict[tuple[str, ...], set[int]] = {}
    totals = []
    for index, prompt in enumerate(evaluation):
        runs = _runs(prompt.problem)
        totals.append(len(runs))
        for run in runs:
            owners.setdefault(run, set()).add(index)
    found = []
    for prompt in train:
        hits: dict[int, int] = {}
        for run in _runs(prompt.problem):
            for index in owners.get(run, ()):
                hits[index] = hits.get(index, 0) + 1
        if any(count >= _COVERED_FRAC * totals[index] for index, count in hits.items()):
            found.append(prompt.id)
    return found


def word_histogram(prompts: Sequence[Prompt]) -> dict[str, int]:
    """Count prompts by length (words)."""
    counts = [0] * (len(_BOUNDS) + 1)
    for prompt in prompts:
        words = len(_WORD.findall(prompt.problem))
        counts[sum(words >= bound for bound in _BOUNDS)] += 1
    labels = [
        f"<{_BOUNDS[0]}",
        *(f"{a}-{b - 1}" for a, b in zip(_BOUNDS, _BOUNDS[1:], strict=False)),
    ]
    return dict(zip([*labels, f">={_BOUNDS[-1]}"], counts, strict=True))


def _runs(text: str) -> set[tuple[str, ...]]:
    words = [word.lower() for word in _WORD.findall(text)]
    if len(words) < _RUN_WORDS:
        return {tuple(words)} if words else set()
    return {tuple(words[at : at + _RUN_WORDS]) for at in range(len(words) - _RUN_WORDS + 1)}
