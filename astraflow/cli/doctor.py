"""`astraflow doctor [RECIPE]`: is this machine fit, and if not, what cures it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["doctor"]

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def doctor(
    recipe: Annotated[
        str | None, typer.Argument(help="Also examine what this recipe needs.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Override one value of the recipe.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Everything must be on this machine already.")
    ] = False,
    runs: Annotated[
        Path, typer.Option(help="Where run folders are made.", envvar="ASTRAFLOW_RUNS")
    ] = Path("runs"),
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Execute what a run needs, from Python to GPUs; exit code 4 when a check fails."""
    from dataclasses import asdict

    from rich.table import Table
    from rich.text import Text

    from astraflow.cli.console import data_console, print_json
    from astraflow.doctor import Subject, examine
    from astraflow.errors import HardwareError
    from astraflow.supervisor.preflight import require_recipe

    if offline:
        # Before any library that reads it is imported.
        os.environ["HF_HUB_OFFLINE"] = "1"
    resolved = require_recipe(recipe, set_ or ()).resolved if recipe else None
    findings = list(examine(Subject(recipe=resolved, offline=offline, runs=runs)))
    if json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        table = Table("check", "verdict", "found", "cure", box=None)
        for finding in findings:
            verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
            table.add_row(Text(finding.name), verdict, Text(finding.found), Text(finding.cure))
        data_console.print(table)
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(HardwareError.exit_code)
