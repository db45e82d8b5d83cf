"""Evaluated answers in SQLite, alike for a run and for an evaluation outside of one."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from astraflow.dataflow.store import EVALUATIONS_SCHEMA
from astraflow.errors import RecipeError
from astraflow.evaluation.results import read_rows
from astraflow.grading.statistics import Problem

__all__ = ["ANSWERS", "evaluated_versions", "read_version", "solve_rates", "write_answers"]

ANSWERS = "results.sqlite"


def write_answers(folder: Path, *, version: int) -> Path:
    """Write an evaluation's answers as rows of ``evaluations``; the file is replaced whole."""
    scratch = folder / f"{ANSWERS}.tmp"
    scratch.unlink(missing_ok=True)
    with closing(sqlite3.connect(scratch)) as db, db:
        db.executescript(EVALUATIONS_SCHEMA)
        db.executemany(
            "INSERT INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    version,
                    row["dataset"],
                    row["id"],
                    index,
                    sample["reward"],
                    sample["outcome"],
                    sample["finish"],
                    sample["tokens"],
                    sample["text"],
                )
                for row in read_rows(folder)
                for index, sample in enumerate(row["samples"])
            ],
        )
    return scratch.replace(folder / ANSWERS)


def evaluated_versions(path: Path) -> list[int]:
    """List the versions that have evaluated answers, ascending."""
    return [row[0] for row in _query(path, "SELECT DISTINCT version FROM evaluations ORDER BY 1")]


def solve_rates(path: Path) -> dict[str, dict[str, dict[int, float]]]:
    """Return the share of right answers by dataset, problem and version, 0 to 1."""
    rates: dict[str, dict[str, dict[int, float]]] = {}
    for dataset, prompt, version, rate in _query(
        path,
        "SELECT dataset, prompt_id, version, solve_rate FROM solve_rates ORDER BY 1, 2, 3",
    ):
        rates.setdefault(dataset, {}).setdefault(prompt, {})[version] = rate
    return rates


def read_version(path: Path, version: int) -> dict[str, list[Problem]]:
    """
    Return one version's problems by dataset, in a fixed order.

    A sample that never came is False where another of its dataset has one more.
    """
    problems: dict[str, dict[str, list[bool]]] = {}
    for dataset, prompt, outcome in _query(
        path,
        "SELECT dataset, prompt_id, outcome FROM evaluations WHERE version = ?"
        " ORDER BY dataset, prompt_id, sample",
        version,
    ):
        problems.setdefault(dataset, {}).setdefault(prompt, []).append(outcome == "right")
    return {dataset: _evened(rows) for dataset, rows in problems.items()}


def _evened(rows: dict[str, list[bool]]) -> list[Problem]:
    samples = max(map(len, rows.values()))
    return [
        Problem(id=prompt, right=(*right, *([False] * (samples - len(right)))))
        for prompt, right in rows.items()
    ]


def _query(path: Path, query: str, *values: object) -> list[Any]:
    if not path.is_file():
        raise RecipeError(f"`{path}` does not exist", hint="name a run or an evaluation folder")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        try:
            return db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise RecipeError(f"`{path}` holds no evaluated answers: {error}") from error
