"""Generations on disk to scores; an answer that failed counts as wrong and is shown."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from astraflow.data import PromptSet
from astraflow.evaluation.plan import EvaluationPlan
from astraflow.grading.boxes import AnswerPlace, find_answer
from astraflow.grading.math_answers import ballot
from astraflow.grading.statistics import Problem, score
from astraflow.records import FinishReason, Outcome

__all__ = ["GENERATIONS", "PLAN", "read_problems", "read_rows", "summarize"]

GENERATIONS = "generations.jsonl"
PLAN = "plan.json"
_LIBRARIES = ("astraflow-rl", "torch", "transformers", "math-verify", "sympy")
_REASONS_SHOWN = 3


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
        problems.setdefault(row["dataset"], []).append(
            _problem(row, samples=plan["samples"], answer=plan["answer"])
        )
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
    problems = read_problems(folder)
    datasets = {}
    for loaded in sets:
        own = [row for row in rows if row["dataset"] == loaded.name]
        datasets[loaded.name] = {
            **_dataset(problems[loaded.name], own, seed=plan.seed),
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


def _dataset(
    problems: Sequence[Problem], rows: Sequence[dict[str, Any]], *, seed: int
) -> dict[str, Any]:
    found = score(problems, seed=seed)
    samples = [sample for row in rows for sample in row["samples"]]
    answers = max(len(problems) * found.samples, 1)
    outcomes = Counter(sample["outcome"] for sample in samples)
    reasons = Counter(row["failed"] for row in rows if row["failed"])
    return {
        **asdict(found),
        "truncated_frac": sum(s["finish"] == FinishReason.LENGTH for s in samples) / answers,
        "no_answer_frac": outcomes[Outcome.NO_ANSWER] / answers,
        "failed": answers - len(samples),
        "failures": dict(reasons.most_common(_REASONS_SHOWN)),
        "outcomes": dict(outcomes),
        "answer_tokens_mean": sum(s["tokens"] for s in samples) / max(len(samples), 1),
    }


def _problem(row: dict[str, Any], *, samples: int, answer: str) -> Problem:
    right = [sample["outcome"] == Outcome.RIGHT for sample in row["samples"]]
    texts = [_answer_of(sample, answer) for sample in row["samples"]]
    missing = samples - len(right)
    return Problem(
        id=row["id"],
        right=(*right, *([False] * missing)),
        answers=(*texts, *([""] * missing)),
    )


def _answer_of(sample: dict[str, Any], answer: str) -> str:
    place: AnswerPlace = "any" if answer == "any" else "boxed"
    truncated = sample["finish"] == FinishReason.LENGTH
    return ballot(find_answer(sample["text"], place=place, truncated=truncated) or "")
