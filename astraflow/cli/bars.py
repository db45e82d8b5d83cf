"""Progress of an evaluation: a bar with the time left on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from astraflow.cli.console import say, talk_console

__all__ = ["show_progress", "time_left"]

_LINE_EVERY_S = 15.0
_KNOWN_FROM_FRAC = 0.1


@contextmanager
def show_progress(dataset: str, total: int, done: int) -> Iterator[_Bar | _Lines]:
    """Show how far one dataset is; ``done`` of its ``total`` problems are there already."""
    if not talk_console.is_terminal:
        yield _Lines(dataset, total=total, done=done)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=talk_console, transient=True) as progress:
        yield _Bar(progress, dataset, total=total, done=done)


def time_left(*, done: int, left: int, elapsed_s: float) -> str:
    """
    Say how long the rest takes at the rate so far.

    The first answers come out of the engine together, after the time of a whole answer, and say
    nothing about the rate.
    """
    if done < _KNOWN_FROM_FRAC * (done + left):
        return "time left not known yet"
    left_s = round(elapsed_s / done * left)
    return f"{left_s // 60} min {left_s % 60} s left" if left_s >= 60 else f"{left_s} s left"


class _Bar:
    def __init__(self, progress: Progress, dataset: str, *, total: int, done: int) -> None:
        self._progress = progress
        self._task = progress.add_task(dataset, total=total, completed=done)

    def advance(self) -> None:
        self._progress.advance(self._task)


class _Lines:
    def __init__(self, dataset: str, *, total: int, done: int) -> None:
        self._dataset, self._total, self._before = dataset, total, done
        self._done = done
        self._started_s = self._said_s = time.monotonic()

    def advance(self) -> None:
        self._done += 1
        now_s = time.monotonic()
        last = self._done == self._total
        if now_s - self._said_s < _LINE_EVERY_S and not last:
            return
        self._said_s = now_s
        rest = time_left(
            done=self._done - self._before,
            left=self._total - self._done,
            elapsed_s=now_s - self._started_s,
        )
        said = f"{now_s - self._started_s:.0f} s" if last else rest
        say(f"{self._dataset}: {self._done} of {self._total} problems, {said}")
