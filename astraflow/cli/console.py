"""The only place that prints: data to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from astraflow.errors import AstraFlowError, RecipeError

__all__ = [
    "data_console",
    "print_error",
    "print_json",
    "print_json_line",
    "print_warning",
    "say",
    "talk_console",
]

# In a pipe nobody can widen the window: a table must not cut its columns to 80 characters.
_PIPE_WIDTH = 200

data_console = Console(highlight=False, soft_wrap=True)
"""For results: what a script may read."""

talk_console = Console(stderr=True, highlight=False, soft_wrap=True)
"""For everything that is said to a person."""

for _console in (data_console, talk_console):
    if not _console.is_terminal:
        _console.width = _PIPE_WIDTH


def print_json(value: Any) -> None:
    """Write one JSON document to stdout, indented."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def print_json_line(value: Any) -> None:
    """Write one JSON object on one line to stdout."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")


def say(line: str) -> None:
    """Say one plain line to a person."""
    talk_console.print(Text(line))


def print_warning(error: AstraFlowError) -> None:
    """Write a warning with its place and its hint."""
    _print("warning", "yellow", error)


def print_error(error: AstraFlowError) -> None:
    """Write an error, and every problem it gathers, with places and hints."""
    problems = error.problems if isinstance(error, RecipeError) else ()
    for problem in problems:
        _print("error", "red", problem)
    if problems:
        talk_console.print(Text(error.what))
    else:
        _print("error", "red", error)


def _print(label: str, style: str, error: AstraFlowError) -> None:
    line = Text(f"{label}: ", style=f"bold {style}")
    line.append(error.what, style="default")
    talk_console.print(line)
    if error.where:
        talk_console.print(Text(f"       {error.where}", style="dim"))
    if error.hint:
        hint = Text("hint:  ", style="cyan")
        hint.append(error.hint.replace("\n", "\n       "), style="default")
        talk_console.print(hint)
