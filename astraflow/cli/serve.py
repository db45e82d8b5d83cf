"""`astraflow serve ROLE`: one role of a run, as the supervisor starts it."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.errors import NotReadyError, WireError

if TYPE_CHECKING:
    from astraflow.raas.joining import LiveRunFacts

__all__ = ["serve_app"]

log = logging.getLogger(__name__)

serve_app = typer.Typer(
    help="Start one role of a run by hand, to debug it alone.", no_args_is_help=True
)

RunFolder = Annotated[Path, typer.Option(help="Run folder with recipe.json.", exists=True)]
Dataflow = Annotated[str, typer.Option(help="Address of the dataflow service.")]
Host = Annotated[str, typer.Option(help="Interface to listen on.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")]
ResumeFrom = Annotated[Path | None, typer.Option(help="Checkpoint folder to continue from.")]


@serve_app.command()
def dataflow(
    run_folder: RunFolder,
    host: Host = "127.0.0.1",
    port: Port = 0,
    resume_from: ResumeFrom = None,
    recover: Annotated[
        bool,
        typer.Option(help="Continue from rollouts.sqlite, beside a trainer that goes on."),
    ] = False,
) -> None:
    """Serve prompts under leases, take groups, hand out batches."""
    from astraflow.dataflow.process import run_dataflow
    from astraflow.wire.role import Role, leave, run_role

    async def body(role: Role) -> None:
        await run_dataflow(
            role,
            run_folder=run_folder,
            host=host,
            port=port,
            resume_from=resume_from,
            recover=recover,
        )

    leave(run_role("dataflow", body))


@serve_app.command()
def raas(
    run_folder: Annotated[
        Path | None, typer.Option(help="Run folder with recipe.json.", exists=True)
    ] = None,
    dataflow: Annotated[str | None, typer.Option(help="Address of the dataflow service.")] = None,
    join: Annotated[
        str | None,
        typer.Option(
            help="Instead of both: a live run, by folder or name, or by the address of its "
            "dataflow service from another host, with ASTRAFLOW_TOKEN set. This instance fetches "
            "its weights, takes prompts, and hands back what it holds on SIGTERM."
        ),
    ] = None,
    runs: Annotated[
        Path, typer.Option(help="Where run folders are made.", envvar="ASTRAFLOW_RUNS")
    ] = Path("runs"),
    instance: Annotated[int, typer.Option(help="Number of this instance, from 0.")] = 0,
    gpus: Annotated[str, typer.Option(help="Devices, such as `0,1`; empty for the CPU.")] = "",
    host: Host = "127.0.0.1",
    port: Port = 0,
) -> None:
    """Sample and grade what the dataflow service leases out."""
    from astraflow.raas.joining import PATIENCE_S, guest_name
    from astraflow.raas.service import run_raas
    from astraflow.wire.auth import run_id_of
    from astraflow.wire.role import Role, leave, run_role

    devices = tuple(int(gpu) for gpu in gpus.split(",") if gpu)
    serve = partial(run_raas, gpus=devices, host=host, port=port)
    if join is not None:
        run = _live_run(join, runs)
        name = guest_name()

        async def visit(role: Role) -> None:
            try:
                await serve(
                    role,
                    run_folder=run.folder,
                    dataflow=run.dataflow,
                    name=name,
                    run_id=run.run_id,
                    patience_s=PATIENCE_S,
                )
            except WireError:
                if not run.ended():
                    raise
                log.info("run %s has ended, and this instance with it", run.run_id)

        leave(run_role(name, visit))
    if run_folder is None or dataflow is None:
        raise typer.BadParameter("give `--join RUN`, or `--run-folder` and `--dataflow`")
    name = f"raas-{instance}"
    folder, address = run_folder, dataflow

    async def body(role: Role) -> None:
        await serve(role, run_folder=folder, dataflow=address, name=name, run_id=run_id_of(folder))

    leave(run_role(name, body))


def _live_run(run: str, runs: Path) -> LiveRunFacts:
    """Find a live run by its folder, its name, or the address of its dataflow service."""
    from astraflow.raas.joining import LiveRunFacts, learn
    from astraflow.supervisor.runs import find_run

    if run.startswith(("http://", "https://")):
        return learn(run.rstrip("/"), runs)
    found = find_run(run, runs)
    address = found.said["roles"].get("dataflow", {}).get("address", "")
    if found.pid is None or not address:
        raise NotReadyError(
            f"run {found.name} cannot be joined: "
            + ("it has ended" if found.pid is None else "its dataflow service is not up yet"),
            hint="`astraflow ps` lists live runs",
        )
    return LiveRunFacts(
        folder=found.folder,
        run_id=found.name,
        dataflow=str(address),
        ended=lambda: found.pid is None,
    )


@serve_app.command()
def trainer(run_folder: RunFolder, dataflow: Dataflow, resume_from: ResumeFrom = None) -> None:
    """Train on batches and publish versions."""
    from astraflow.trainer.service import run_trainer
    from astraflow.wire.role import Role, leave, run_role

    async def body(role: Role) -> None:
        await run_trainer(role, run_folder=run_folder, dataflow=dataflow, resume_from=resume_from)

    leave(run_role("trainer", body))
