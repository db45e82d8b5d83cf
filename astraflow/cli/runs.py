"""`astraflow ps`, `status`, `logs`, `stop`: runs of this machine from another terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from astraflow.supervisor.runs import LiveRun

__all__ = ["logs", "ps", "status", "stop"]

Runs = Annotated[Path, typer.Option(help="Where run folders are made.", envvar="ASTRAFLOW_RUNS")]
Run = Annotated[str, typer.Argument(help="Run folder, `NAME/N`, or NAME for its newest.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_FOLLOW_S = 0.3


def ps(json: Json = False) -> None:
    """List every live run of this machine."""
    from rich.table import Table

    from astraflow.cli.console import data_console, print_json, say
    from astraflow.supervisor.runs import live_runs

    runs = live_runs()
    if json:
        print_json({"runs": [{"folder": str(run.folder), **run.said} for run in runs]})
        return
    if not runs:
        say("no run is live on this machine")
        return
    table = Table("run", "pid", "step", "reward", "folder", box=None)
    for run in runs:
        step = f"{run.said['step']} of {run.said['total_steps']}"
        reward = run.said["reward_mean"]
        shown = "" if reward is None else f"{reward:.3f}"
        table.add_row(run.name, str(run.pid), step, shown, str(run.folder))
    data_console.print(table)


def status(run: Run, runs: Runs = Path("runs"), json: Json = False) -> None:
    """Say where a run stands: roles, waits, groups, restarts."""
    from astraflow.cli.console import print_json
    from astraflow.supervisor.runs import find_run

    found = find_run(run, runs)
    if json:
        print_json({"folder": str(found.folder), "live": found.pid is not None, **found.said})
        return
    _print_status(found)


def _print_status(run: LiveRun) -> None:
    from rich.table import Table

    from astraflow.cli.console import data_console

    said = run.said
    alive = f"live, process {run.pid}" if run.pid is not None else "ended"
    age_s = time.time() - said["written_at"]
    data_console.print(
        f"{run.name}: {alive}; step {said['step']} of {said['total_steps']}, saved "
        f"{said['checkpoint_step']}; nothing moved for {said['still_s']:.0f} s (as of "
        f"{age_s:.0f} s ago)"
    )
    table = Table("role", "state", "pid", "restarts", "silent", "memory", "waits for", box=None)
    for name, role in said["roles"].items():
        table.add_row(
            name,
            role["status"],
            str(role["pid"]),
            str(max(role["restarts"], 0)),
            f"{role['silent_s']:.0f} s",
            f"{role['memory_bytes'] / 2**30:.2f} GiB",
            _waits(role["waits"]),
        )
    data_console.print(table)
    flow = said["dataflow"]
    if flow:
        data_console.print(
            f"groups: {flow['produced']} produced, {flow['consumed']} consumed, "
            f"{flow['buffered']} buffered, {flow['in_flight']} in flight, dropped "
            f"{flow['dropped'] or 'none'}",
            markup=False,
        )


def _waits(waits: list[dict[str, Any]]) -> str:
    return "; ".join(f"{wait['name']} since {wait['since_s']:.0f} s" for wait in waits[:2])


def logs(
    run: Run,
    role: Annotated[
        str | None, typer.Argument(help="`dataflow`, `raas-0`, `trainer` ...; all by default.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run ends.")
    ] = False,
    lines: Annotated[int, typer.Option("-n", help="Last lines of each log (count).", min=1)] = 20,
    runs: Runs = Path("runs"),
) -> None:
    """Print the end of a run's logs, each line with its role."""
    from astraflow.cli.console import data_console
    from astraflow.errors import RecipeError
    from astraflow.supervisor.runs import find_run

    found = find_run(run, runs)
    paths = sorted((found.folder / "logs").glob(f"{role or '*'}.log"))
    if not paths:
        there = ", ".join(sorted(p.stem for p in (found.folder / "logs").glob("*.log")))
        raise RecipeError(
            f"run {found.name} has no log of `{role}`", hint=f"there are: {there or 'none yet'}"
        )
    width = max(len(path.stem) for path in paths)
    read = dict.fromkeys(paths, 0)

    def show(path: Path, text: str) -> None:
        for line in text.splitlines():
            data_console.print(f"{path.stem:{width}} | {line}", markup=False, highlight=False)

    for path in paths:
        content = path.read_bytes()
        read[path] = len(content)
        show(path, "\n".join(content.decode(errors="replace").splitlines()[-lines:]))
    while follow:
        alive = found.pid is not None
        for path in paths:
            with path.open("rb") as file:
                file.seek(read[path])
                content = file.read()
            whole = content[: content.rfind(b"\n") + 1]
            read[path] += len(whole)
            show(path, whole.decode(errors="replace"))
        if not alive:
            return
        time.sleep(_FOLLOW_S)


def stop(
    run: Run,
    kill: Annotated[
        bool, typer.Option("--kill", help="End it now; the step in progress is lost.")
    ] = False,
    within_s: Annotated[float, typer.Option(help="Longest wait (s).", min=0.1)] = 600.0,
    runs: Runs = Path("runs"),
) -> None:
    """Have a run finish its step, save and end, as Ctrl-C does; return when it is gone."""
    from astraflow.cli.console import say
    from astraflow.supervisor.runs import find_run, stop_run

    found = find_run(run, runs)
    if stop_run(found, within_s=within_s, kill=kill):
        say(f"run {found.name} has ended; `astraflow run ... --resume` continues it")
    else:
        say(f"run {found.name} had ended already")
