"""`astraflow doctor`: is this machine fit, and if not, what cures it."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["doctor"]

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Examine this machine, from Python to GPUs; exit code 4 when a check fails."""
    from dataclasses import asdict

    from rich.table import Table
    from rich.text import Text

    from astraflow.cli.console import data_console, print_json
    from astraflow.errors import HardwareError
    from astraflow.supervisor.doctor import examine

    findings = examine()
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
