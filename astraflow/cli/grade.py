"""`astraflow grade FILE`: grade gold and completion pairs as a run would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from astraflow.grading import GradeRequest

__all__ = ["grade"]


def grade(
    file: Annotated[Path, typer.Argument(help="JSON lines with `gold` and `completion`.")],
    answer: Annotated[
        str, typer.Option(help="`boxed` pays only an answer in a box, `any` takes more forms.")
    ] = "boxed",
    timeout_s: Annotated[float, typer.Option(help="Hard limit for one answer (s).")] = 3.0,
    workers: Annotated[int, typer.Option(help="Processes that grade formulas (count).")] = 2,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object a row, in order.")
    ] = False,
) -> None:
    """Grade completions; a row may have `id`, `answer`, and `finish_reason` or `truncated`."""
    from rich.table import Table
    from rich.text import Text

    from astraflow.cli.console import data_console, print_json_line
    from astraflow.errors import RecipeError
    from astraflow.grading import GradingPool

    if answer not in ("boxed", "any"):
        raise RecipeError(f"`--answer` is `{answer}`", hint="`boxed` or `any`")
    # Read first: a broken line must not surface after an hour of grading.
    rows = list(_rows(file))
    pool = GradingPool(workers=workers, timeout_s=timeout_s, answer=answer)  # type: ignore[arg-type]
    table = Table("row", "outcome", "reward", "gold", "end of the completion", box=None)
    try:
        results = pool.grade_many(_request(row, answer) for row in rows)
        for number, (row, result) in enumerate(zip(rows, results, strict=True), start=1):
            name = row.get("id", number)
            if json:
                known = {"id": row["id"]} if "id" in row else {}
                print_json_line({**known, "outcome": result.outcome.value, "reward": result.reward})
                continue
            tail = Text(str(row["completion"])[-60:].replace("\n", " "))
            gold = Text(str(row["gold"])[:40])
            table.add_row(str(name), result.outcome.value, f"{result.reward:g}", gold, tail)
    finally:
        pool.shut_down()
    if not json:
        data_console.print(table)


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    import json

    from astraflow.errors import RecipeError

    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"`{file}` cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise RecipeError(f"the line is not JSON: {error.msg}", where=where) from error
        if not isinstance(row, dict) or "gold" not in row or "completion" not in row:
            raise RecipeError(
                "the line has no `gold` and `completion`",
                where=where,
                hint='{"gold": "7", "completion": "so \\\\boxed{7}"}',
            )
        yield row


def _request(row: dict[str, Any], answer: str) -> GradeRequest:
    from astraflow.grading import GradeRequest
    from astraflow.grading.math_answers import gold_text

    completion = row["completion"]
    return GradeRequest(
        gold=gold_text(row["gold"]),
        completion=completion if isinstance(completion, str) else "",
        truncated=row.get("finish_reason") == "length" or bool(row.get("truncated")),
        answer=row.get("answer", answer),
    )
