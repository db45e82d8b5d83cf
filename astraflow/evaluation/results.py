"""Generations on disk to scores; an answer that failed counts as wrong and is shown."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from astraflow.data import PromptSet
from astraflow.evaluation.plan import EvaluationPlan
from astraflow.grading.boxes import AnswerPlace, find_answer
from astraflow.grading.statistics import Problem, score
from astraflow.records import FinishReason, Outcome

__all__ = ["GENERATIONS", "read_problems", "read_rows", "summarize"]

GENERATIONS = "generations.jsonl"


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield what was generated; a last line that a kill cut short is left out."""
    path = folder / GENERATIONS
    if not path.is_file():
        return
    content = path.read_text(encoding="utf-8")
    whole, _, cut = content.rpartition("\n")
    if cut:
        path.write_text(whole + "\n" if whole else "", encoding="utf-8")
    for line in whole.splitlines():
        yield json.loads(line)


def read_problems(folder: Path) -> dict[str, list[Problem]]:
    """Return the problems of an evaluation by dataset, in a fixed order."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    problems: dict[str, list[Problem]] = {}
    for row in read_rows(folder):
        problems.setdefault(row["dataset"], []).append(
            _problem(row, samples=plan["samples"], answer=plan["answer"])
        )
    return {name: sorted(rows, key=lambda p: p.id) for name, rows in problems.items()}


def summarize(plan: EvaluationPlan, sets: Sequence[PromptSet], folder: Path) -> dict[str, Any]:
    """Return the results of a finished evaluation as plain values."""
    rows = list(read_rows(folder))
    problems = read_problems(folder)
    datasets = {
        loaded.name: _dataset(
            problems[loaded.name], [r for r in rows if r["dataset"] == loaded.name], seed=plan.seed
        )
        for loaded in sets
    }
    return {
        "label": plan.label,
        "samples": plan.samples,
        "temperature": plan.temperature,
        "seed": plan.seed,
        "datasets": datasets,
        "sha256": {loaded.name: loaded.sha256 for loaded in sets},
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("astraflow-rl", "torch", "transformers", "math-verify")
        },
    }


def _dataset(
    problems: Sequence[Problem], rows: Sequence[dict[str, Any]], *, seed: int
) -> dict[str, Any]:
    found = score(problems, seed=seed)
    samples = [sample for row in rows for sample in row["samples"]]
    answers = max(len(problems) * found.samples, 1)
    truncated = sum(sample["finish"] == FinishReason.LENGTH for sample in samples)
    silent = sum(sample["outcome"] == Outcome.NO_ANSWER for sample in samples)
    return {
        **asdict(found),
        "truncated_frac": truncated / answers,
        "no_answer_frac": silent / answers,
        "failed": answers - len(samples),
        "answer_tokens_mean": sum(s["tokens"] for s in samples) / max(len(samples), 1),
    }


def _problem(row: dict[str, Any], *, samples: int, answer: str) -> Problem:
    right = [sample["outcome"] == Outcome.RIGHT for sample in row["samples"]]
    texts = [_answer_of(sample["text"], answer) for sample in row["samples"]]
    missing = samples - len(right)
    return Problem(
        id=row["id"],
        right=(*right, *([False] * missing)),
        answers=(*texts, *([""] * missing)),
    )


def _answer_of(text: str, answer: str) -> str:
    place: AnswerPlace = "any" if answer == "any" else "boxed"
    return (find_answer(text, place=place, truncated=False) or "").strip()
