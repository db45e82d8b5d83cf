"""Generations on disk to scores; an answer that failed counts as wrong and is shown."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from astraflow.data import PromptSet
from astraflow.evaluation.plan import EvaluationPlan
from astraflow.grading.boxes import AnswerPlace
from astraflow.grading.datasets import (
    Answered,
    GradedAnswer,
    as_problem,
    score_dataset,
    vote_of,
)
from astraflow.grading.statistics import Problem
from astraflow.records import FinishReason, Outcome

__all__ = ["GENERATIONS", "PLAN", "read_problems", "read_rows", "summarize"]

GENERATIONS = "generations.jsonl"
PLAN = "plan.json"
_LIBRARIES = ("astraflow-rl", "torch", "transformers", "math-verify", "sympy")


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """
    Yield what was generated, one row a problem.

    A last line that a kill cut short is left out; of a problem that failed and was tried again
    the newest row counts.
    """
    path = folder / GENERATIONS
    if not path.is_file():
        return
    content = path.read_text(encoding="utf-8")
    whole, _, cut = content.rpartition("\n")
    if cut:
        path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    rows = [json.loads(line) for line in whole.splitlines()]
    yield from {(row["dataset"], row["id"]): row for row in rows}.values()


def read_problems(folder: Path) -> dict[str, list[Problem]]:
    """Return the problems of an evaluation by dataset, in a fixed order."""
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    problems: dict[str, list[Problem]] = {}
    for row in read_rows(folder):
        answered = _answered(row, _place(plan["answer"]))
        problem = as_problem(answered, samples=plan["samples"])
        problems.setdefault(row["dataset"], []).append(problem)
    return {name: sorted(rows, key=lambda p: p.id) for name, rows in problems.items()}


def summarize(
    plan: EvaluationPlan,
    sets: Sequence[PromptSet],
    folder: Path,
    *,
    unverified: Mapping[str, int],
    wall_s: float,
) -> dict[str, Any]:
    """
    Return the results of a finished evaluation as plain values.

    Args:
        plan: What was evaluated.
        sets: Its datasets.
        folder: Where its generations are.
        unverified: Golds that do not verify against themselves, by dataset (count).
        wall_s: Time of this call; an evaluation that was continued took longer (s).
    """
    rows = list(read_rows(folder))
    datasets = {}
    for loaded in sets:
        place = _place(plan.answer)
        own = [_answered(row, place) for row in rows if row["dataset"] == loaded.name]
        own.sort(key=lambda row: row.id)
        datasets[loaded.name] = {
            **score_dataset(own, samples=plan.samples, seed=plan.seed),
            "unverified_golds": unverified.get(loaded.name, 0),
        }
    return {
        "label": plan.label,
        "version": plan.version,
        "samples": plan.samples,
        "temperature": plan.temperature,
        "max_new_tokens": plan.max_new_tokens,
        "seed": plan.seed,
        "wall_s": round(wall_s, 1),
        "datasets": datasets,
        "sha256": {loaded.name: loaded.sha256 for loaded in sets},
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _LIBRARIES},
        },
    }


def _answered(row: Mapping[str, Any], place: AnswerPlace) -> Answered:
    return Answered(
        id=row["id"],
        answers=tuple(_graded(sample, place) for sample in row["samples"]),
        failed=row["failed"] or "",
    )


def _graded(sample: Mapping[str, Any], place: AnswerPlace) -> GradedAnswer:
    finish = FinishReason(sample["finish"])
    return GradedAnswer(
        outcome=Outcome(sample["outcome"]),
        finish=finish,
        tokens=sample["tokens"],
        vote=vote_of(sample["text"], finish=finish, place=place),
    )


def _place(answer: str) -> AnswerPlace:
    return "any" if answer == "any" else "boxed"
