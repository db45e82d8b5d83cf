"""`astraflow bench grading`: how fast this machine grades, and what bombs cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from astraflow.grading.throughput import Throughput

__all__ = ["grading"]

_MIB = 1 << 20


def grading(
    integers: Annotated[int, typer.Option(help="Integer answers (count).", min=1)] = 100_000,
    golds: Annotated[
        int, typer.Option(help="Pairs of MATH500 golds; 0 leaves them out (count).", min=0)
    ] = 2000,
    bombs: Annotated[
        int, typer.Option(help="Answers that would hang computer algebra (count).", min=0)
    ] = 200,
    ordinary: Annotated[
        int, typer.Option(help="Ordinary answers among the bombs (count).", min=1)
    ] = 5000,
    workers: Annotated[int, typer.Option(help="Processes that grade formulas (count).", min=1)] = 2,
    root: Annotated[
        Path | None, typer.Option(help="Folder with math500.jsonl.", envvar="ASTRAFLOW_DATA")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure grading: integers, real golds in other spellings, formulas, bombs among answers."""
    from astraflow.cli.console import print_json, say
    from astraflow.data import load_prompts
    from astraflow.grading import throughput

    texts = [p.answer for p in load_prompts("math500", root=root).prompts] if golds else []
    say(f"{integers} integers")
    found = [throughput.measure_integers(answers=integers, workers=workers)]
    if golds:
        say(f"{golds} pairs of golds, twice")
        found += [
            throughput.measure_golds(texts, answers=golds, workers=workers, algebra=algebra)
            for algebra in (False, True)
        ]
    say(f"{bombs} bombs among {ordinary} ordinary answers")
    found.append(throughput.measure_bombs(bombs=bombs, ordinary=ordinary, workers=workers))
    if json:
        print_json({"workers": workers, "measured": [_row(item) for item in found]})
    else:
        _print(found)


def _row(item: Throughput) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(item), "answers_per_s": item.answers_per_s}


def _print(found: list[Throughput]) -> None:
    from rich.table import Table

    from astraflow.cli.console import data_console

    table = Table(
        "graded", "answers", "wrong verdicts", "wall", "answers/s", "timed out", "slowest",
        "memory", box=None,
    )  # fmt: skip
    for item in found:
        memory = (item.memory_start_bytes // _MIB, item.memory_end_bytes // _MIB)
        table.add_row(
            item.name,
            str(item.answers),
            str(item.wrong_verdicts),
            f"{item.wall_s:.1f} s",
            f"{item.answers_per_s:.0f}",
            str(item.timed_out),
            f"{item.slowest_s:.2f} s",
            f"{memory[0]} to {memory[1]} MiB",
        )
    data_console.print(table)
