"""The live view of a run, its plain form for pipes, and the summary at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from astraflow.cli.console import data_console, print_error, say, talk_console
from astraflow.errors import AstraFlowError
from astraflow.supervisor.bottleneck import bottleneck
from astraflow.supervisor.state import RoleState, RunState

__all__ = ["plain_view", "render", "rich_view", "show_summary"]

_REFRESH_S = 0.5
_SPARKS = "▁▂▃▄▅▆▇█"
_LONG_WAIT_S = 60.0
_SPARK_WIDTH = 40


@contextlib.asynccontextmanager
async def plain_view(state: RunState) -> AsyncIterator[Callable[[str], None]]:
    """Print each announcement as a line with the time since the start."""

    def announce(line: str) -> None:
        say(f"[{time.monotonic() - state.started_at:7.1f} s] {line}")

    announce(f"run {state.name}")
    yield announce


@contextlib.asynccontextmanager
async def rich_view(state: RunState) -> AsyncIterator[Callable[[str], None]]:
    """Show the whole run in place, redrawn twice a second."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("steps, left:"),
        TimeRemainingColumn(),
        console=talk_console,
    )
    task = progress.add_task(state.name, total=state.total_steps)
    recent: list[str] = []

    def announce(line: str) -> None:
        recent.append(line)
        del recent[:-4]

    with Live(console=talk_console, refresh_per_second=4, transient=True) as live:

        async def redraw() -> None:
            while True:
                progress.update(task, completed=state.step)
                live.update(render(state, progress, recent))
                await asyncio.sleep(_REFRESH_S)

        drawing = asyncio.create_task(redraw())
        try:
            yield announce
        finally:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drawing


def render(state: RunState, progress: RenderableType, recent: list[str]) -> RenderableType:
    """Lay out one picture of the run."""
    return Group(progress, _roles(state), _learning(state), _flow(state), *map(Text, recent))


def show_summary(folder: Path, error: AstraFlowError | None) -> None:
    """Print the error, if any, the summary table, and the path to look in."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    table = Table("result", "value", box=None, title=f"run {folder}", title_justify="left")
    for name, value in _summary_rows(summary):
        table.add_row(name, value)
    data_console.print(table)
    if error is not None:
        print_error(error)
    say(f"run folder: {folder}" if error is None else f"logs: {folder / 'logs'}")


def _summary_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    weights = [w for w in summary["weights"].values() if w.get("swaps")]
    memory = summary["peak_memory_bytes"] / 2**30
    groups = summary["groups"]
    dropped = ", ".join(f"{n} {cause}" for cause, n in (groups["dropped"] or {}).items())
    rows = [
        (
            "accuracy before -> after",
            f"{_share(summary['accuracy_before'])} -> {_share(summary['accuracy_after'])}",
        ),
        *_scores(summary.get("evaluation_scores") or {}),
        ("steps", str(summary["steps"])),
        ("wall time", f"{summary['wall_s']:.1f} s ({summary['training_s']:.1f} s training)"),
        (
            "sampled",
            f"{_number(summary['sampled_tokens_per_s'])} tokens/s, "
            f"{_number(summary['samples_per_s'])} graded samples/s",
        ),
        ("trained", f"{_number(summary['trained_tokens_per_s'])} tokens/s"),
        ("trainer waited", _share(summary["trainer_wait_frac"])),
        ("rollout waited", _share(summary["rollout_wait_frac"])),
        (
            "groups",
            f"{groups['produced']} sampled, {groups['consumed']} trained on, "
            f"dropped: {dropped or 'none'}",
        ),
        ("peak memory", f"{memory:.2f} GiB, all roles"),
        ("bottleneck", summary.get("bottleneck", "unknown yet")),
        ("exit code", str(summary["exit_code"])),
    ]
    for transfer in weights[:1]:
        last = transfer["last"]
        rows.insert(
            7,
            (
                "weights",
                f"{transfer['swaps']} swaps, last {last['mode']} of {last['bytes'] / 1e6:.2f} MB, "
                f"sampling held {transfer['held_ms_median']:.1f} ms (median)",
            ),
        )
    return rows


def _roles(state: RunState) -> Table:
    table = Table("role", "state", "up", "version", "doing", box=None, pad_edge=False)
    for role in state.roles.values():
        # Answers are always waited for; that is news only when it lasts.
        waits = "; ".join(
            f"waits for {w['name']} ({w['since_s']:.0f} s)"
            for w in role.waits[:1]
            if not w["name"].startswith(("engine:", "reward:")) or w["since_s"] > _LONG_WAIT_S
        )
        version = role.numbers.get("version", role.numbers.get("step", ""))
        table.add_row(
            role.name,
            role.status,
            f"{role.uptime_s:.0f} s",
            str(version),
            waits or _doing(role),
        )
    return table


def _doing(role: RoleState) -> str:
    numbers = role.numbers
    if "sampled_tokens" in numbers and "samples" in numbers:
        return (
            f"{numbers['samples']} samples, {numbers.get('groups_in_flight', 0)} groups in flight"
        )
    if "trained_tokens" in numbers:
        return f"{numbers['trained_tokens']} tokens trained"
    if "produced" in numbers:
        return f"{numbers['produced']} groups in, {numbers['consumed']} out"
    return ""


def _scores(scores: dict[str, Any]) -> list[tuple[str, str]]:
    """Describe the newest evaluation, a row a dataset."""
    if not scores:
        return []
    version = max(scores, key=int)
    return [
        (f"{name} at v{version}", _score(found)) for name, found in (scores[version] or {}).items()
    ]


def _score(found: dict[str, Any]) -> str:
    average, k = found["avg_at_k"], found["samples"]
    text = f"avg@{k} {average['value']:.3f} (95 %: {average['low']:.3f} to {average['high']:.3f})"
    if k > 1:
        text += f", pass@{k} {found['pass_at_k']['value']:.3f}"
    return f"{text}, {found['truncated_frac']:.1%} truncated, {found['failed']} missing"


def _learning(state: RunState) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    rewards = [float(step.get("reward_mean", 0.0)) for step in state.steps]
    flow = state.dataflow
    seconds = state.training_s()
    trained = state.roles["trainer"].numbers if "trainer" in state.roles else {}
    table.add_row("reward", f"{_number(rewards[-1] if rewards else None, 3)}  {_spark(rewards)}")
    table.add_row("right, sampled", _share(flow.get("right_frac")))
    scores = ", ".join(
        f"v{version} {_share(score['accuracy'])}" for version, score in state.evaluations.items()
    )
    open_evaluation = flow.get("evaluation") or {}
    if open_evaluation:
        done, total = open_evaluation["finished"], open_evaluation["total"]
        scores += f"  (v{open_evaluation['version']}: {done} of {total})"
    table.add_row("evaluation", scores or "none yet")
    if seconds > 0:
        sampled = state.total("sampled_tokens") / seconds
        rate = float(trained.get("trained_tokens", 0)) / seconds
        table.add_row("tokens/s", f"{_number(sampled)} sampled, {_number(rate)} trained")
        table.add_row("bottleneck", bottleneck(state))
    return table


def _flow(state: RunState) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    flow = state.dataflow
    if flow:
        table.add_row(
            "buffer",
            f"{flow['buffered']} groups of {flow['groups_per_batch']} a batch, "
            f"{flow['in_flight']} in flight",
        )
        lags = "  ".join(f"{lag}: {count}" for lag, count in (flow.get("lags") or {}).items())
        table.add_row("staleness", f"{lags or 'none yet'}  (versions: samples)")
        dropped = ", ".join(f"{n} {cause}" for cause, n in (flow.get("dropped") or {}).items())
        table.add_row("dropped", dropped or "none")
    for role in state.instances():
        last = role.numbers.get("weights", {}).get("last")
        if last:
            table.add_row(
                "weights",
                f"{role.name}: v{last['version']} {last['mode']}, {last['bytes'] / 1e6:.2f} MB, "
                f"held {last['held_ms']:.1f} ms",
            )
    return table


def _spark(values: list[float]) -> str:
    """Draw the course of a value, the newest on the right."""
    if len(values) < 2:
        return ""
    width = max(1, len(values) // _SPARK_WIDTH + (len(values) % _SPARK_WIDTH > 0))
    means = [
        sum(values[at : at + width]) / len(values[at : at + width])
        for at in range(0, len(values), width)
    ]
    low, high = min(means), max(means)
    scale = (len(_SPARKS) - 1) / (high - low) if high > low else 0
    return "".join(_SPARKS[int((value - low) * scale)] for value in means)


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 100:.1f} %"


def _number(value: float | None, digits: int = 0) -> str:
    return "unknown" if value is None else f"{value:,.{digits}f}"
