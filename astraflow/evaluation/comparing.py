"""Two evaluations over the same problems: the difference of avg@k with its paired interval."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from astraflow.errors import RecipeError
from astraflow.evaluation.answers import evaluated_versions, read_version
from astraflow.evaluation.results import PLAN, read_problems
from astraflow.grading.statistics import Problem, compare

__all__ = ["Saved", "compare_saved", "find_saved"]

_RUN_ANSWERS = "rollouts.sqlite"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The answers of one evaluation."""

    label: str
    """How a person names it."""

    problems: dict[str, list[Problem]]
    """By dataset."""

    sha256: dict[str, str]
    """Hash of each dataset; empty for an evaluation inside a run."""


def find_saved(target: str) -> Saved | None:
    """
    Find a finished evaluation: its folder, or ``RUN[@version]`` for one inside a run.

    Returns None when ``target`` is neither, and so perhaps a model.

    Raises:
        RecipeError: the run has no evaluation of that version.
    """
    folder = Path(target)
    if (folder / PLAN).is_file():
        plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        return Saved(label=target, problems=read_problems(folder), sha256=plan.get("sha256", {}))
    path, _, version = target.partition("@")
    answers = Path(path) / _RUN_ANSWERS
    if not answers.is_file():
        return None
    known = evaluated_versions(answers)
    wanted = int(version) if version.isdigit() else (known[-1] if known and not version else -1)
    if wanted not in known:
        raise RecipeError(
            f"`{target}` names no evaluation",
            hint=f"evaluated versions of {path}: {', '.join(map(str, known)) or 'none'}",
        )
    return Saved(label=f"{path}@{wanted}", problems=read_version(answers, wanted), sha256={})


def compare_saved(before: Saved, after: Saved, *, seed: int) -> dict[str, Any]:
    """
    Compare over the datasets and problems that both have.

    Returns:
        By dataset: the difference (after minus before, 0 to 1) with its interval, and how many
        problems it rests on.

    Raises:
        RecipeError: they share no problem, or a dataset is another revision.
    """
    found: dict[str, Any] = {}
    for name in after.problems:
        hashes = {saved.sha256[name] for saved in (before, after) if name in saved.sha256}
        ids = {p.id for p in before.problems.get(name, ())} & {p.id for p in after.problems[name]}
        if not ids:
            continue
        if len(hashes) > 1 and len(before.problems[name]) == len(after.problems[name]):
            raise RecipeError(
                f"`{before.label}` and `{after.label}` evaluate different copies of `{name}`",
                hint="evaluate one of them again, with the other's `--root`",
            )
        pair = [[p for p in saved.problems[name] if p.id in ids] for saved in (before, after)]
        found[name] = {**asdict(compare(*pair, seed=seed)), "problems": len(ids)}
    if not found:
        raise RecipeError(
            f"`{before.label}` and `{after.label}` share no problem",
            hint=f"datasets: {', '.join(before.problems)} and {', '.join(after.problems)}",
        )
    return found
