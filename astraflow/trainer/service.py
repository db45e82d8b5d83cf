"""The launcher: starts the ranks with torch.distributed.run, forwards a stop, reports the end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from astraflow.errors import RoleError
from astraflow.plugins import recipe_type
from astraflow.recipe.files import read_resolved
from astraflow.wire.events import EVENTS_VARIABLE, LIFELINE_VARIABLE
from astraflow.wire.role import Role

__all__ = ["STOP_FILE", "run_trainer"]

log = logging.getLogger(__name__)

STOP_FILE = "stop-requested"


async def run_trainer(
    role: Role, *, run_folder: Path, dataflow: str, resume_from: Path | None
) -> None:
    """
    Run the ranks to their end.

    A stop is asked for with a file that rank 0 looks for between steps: a signal would make
    torch.distributed.run kill the ranks before they could save.

    Raises:
        RoleError: a rank ended with an error; the rank itself has reported it.
    """
    recipe = read_resolved(run_folder / "recipe.json", recipe_type=recipe_type()).recipe
    stop_file = run_folder / STOP_FILE
    stop_file.unlink(missing_ok=True)
    ranks = recipe.trainer.gpus or recipe.trainer.cpu_ranks
    arguments = ["--run-folder", str(run_folder), "--dataflow", dataflow]
    if resume_from is not None:
        arguments += ["--resume-from", str(resume_from)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "--max-restarts=0",
        "-m",
        "astraflow.trainer.ranks",
        *arguments,
        env={**os.environ, **_inherited()},
        stdin=asyncio.subprocess.DEVNULL,
    )
    ended = asyncio.create_task(process.wait())
    stop = asyncio.create_task(role.stop.wait())
    await asyncio.wait([ended, stop], return_when=asyncio.FIRST_COMPLETED)
    if not ended.done():
        log.info("asked to stop: the ranks will save after the step they are in")
        stop_file.touch()
        await ended
    stop.cancel()
    if process.returncode:
        raise RoleError(
            f"the ranks ended with {_described(process.returncode)}",
            exit_code=12,
            hint=f"see {run_folder / 'logs' / 'trainer.log'}",
        )


def _inherited() -> dict[str, str]:
    """
    Give the ranks the paths of this process's two pipes.

    torch.distributed.run closes inherited files and starts each rank in a session of its own, out
    of reach of a group signal; by path each rank can open both pipes, and so ends with the
    supervisor.
    """
    paths = {}
    for variable in (EVENTS_VARIABLE, LIFELINE_VARIABLE):
        path = os.environ.get(variable, "")
        if path:
            paths[variable] = path.replace("/proc/self/", f"/proc/{os.getpid()}/")
    return paths


def _described(returncode: int) -> str:
    if returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"
