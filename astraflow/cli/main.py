"""The `astraflow` command: registers the commands and turns errors into exit codes."""

from __future__ import annotations

import sys

import typer

from astraflow import __version__
from astraflow.cli.console import data_console, print_error
from astraflow.errors import AstraFlowError

__all__ = ["app", "main", "register"]

app = typer.Typer(
    name="astraflow",
    help="Train a language model to reason, with reinforcement learning on verifiable rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(*, value: bool) -> None:
    if value:
        data_console.print(f"astraflow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        default=False,
        help="Print the version and exit.",
        is_eager=True,
        callback=lambda value: _show_version(value=value),
    ),
) -> None:
    """Train a language model to reason, with reinforcement learning on verifiable rewards."""


def register() -> None:
    """Attach every command to the application; a second call changes nothing."""
    if app.registered_commands:
        return
    from astraflow.cli.bench import bench_app
    from astraflow.cli.bundle import bundle
    from astraflow.cli.data import data_app
    from astraflow.cli.doctor import doctor
    from astraflow.cli.eval import evaluate
    from astraflow.cli.export import export
    from astraflow.cli.grade import grade
    from astraflow.cli.recipes import recipes
    from astraflow.cli.run import run
    from astraflow.cli.runs import logs, ps, status, stop
    from astraflow.cli.serve import serve_app
    from astraflow.cli.validate import validate

    app.command()(run)
    app.command()(validate)
    for command in (ps, status, logs, stop):
        app.command()(command)
    app.command(name="eval")(evaluate)
    app.command()(grade)
    app.command()(doctor)
    app.command()(recipes)
    app.command()(export)
    app.command()(bundle)
    app.add_typer(bench_app, name="bench")
    app.add_typer(data_app, name="data")
    app.add_typer(serve_app, name="serve")


def main() -> None:
    """Run the command line; the error's class decides the exit code."""
    register()
    try:
        app()
    except AstraFlowError as error:
        print_error(error)
        sys.exit(error.exit_code)
