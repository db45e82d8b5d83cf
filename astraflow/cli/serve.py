"""`astraflow serve ROLE`: one role of a run, as the supervisor starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["serve_app"]

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
) -> None:
    """Serve prompts under leases, take groups, hand out batches."""
    from astraflow.dataflow.service import run_dataflow
    from astraflow.wire.role import Role, leave, run_role

    async def body(role: Role) -> None:
        await run_dataflow(
            role, run_folder=run_folder, host=host, port=port, resume_from=resume_from
        )

    leave(run_role("dataflow", body))


@serve_app.command()
def raas(
    run_folder: RunFolder,
    dataflow: Dataflow,
    instance: Annotated[int, typer.Option(help="Number of this instance, from 0.")] = 0,
    gpus: Annotated[str, typer.Option(help="Devices, such as `0,1`; empty for the CPU.")] = "",
    host: Host = "127.0.0.1",
    port: Port = 0,
) -> None:
    """Sample and grade what the dataflow service leases out."""
    from astraflow.raas.service import run_raas
    from astraflow.wire.role import Role, leave, run_role

    devices = tuple(int(gpu) for gpu in gpus.split(",") if gpu)

    async def body(role: Role) -> None:
        await run_raas(
            role,
            run_folder=run_folder,
            dataflow=dataflow,
            instance=instance,
            gpus=devices,
            host=host,
            port=port,
        )

    leave(run_role(f"raas-{instance}", body))


@serve_app.command()
def trainer(run_folder: RunFolder, dataflow: Dataflow, resume_from: ResumeFrom = None) -> None:
    """Train on batches and publish versions."""
    from astraflow.trainer.service import run_trainer
    from astraflow.wire.role import Role, leave, run_role

    async def body(role: Role) -> None:
        await run_trainer(role, run_folder=run_folder, dataflow=dataflow, resume_from=resume_from)

    leave(run_role("trainer", body))
