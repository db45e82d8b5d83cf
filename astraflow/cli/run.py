"""`astraflow run RECIPE`: the whole run, from recipe to result."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from astraflow.errors import AstraFlowError
    from astraflow.planning import Plan
    from astraflow.recipe.files import ResolvedRecipe
    from astraflow.supervisor import RunPlan

__all__ = ["run"]


def run(
    recipe: Annotated[str, typer.Argument(help="Stem of a shipped recipe, or a path.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value: `section.field=value`; may be repeated."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run folder; the recipe's stem by default.")
    ] = None,
    runs: Annotated[
        Path, typer.Option(help="Where run folders are made.", envvar="ASTRAFLOW_RUNS")
    ] = Path("runs"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the newest run of this name.")
    ] = False,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="Two steps in miniature on the CPU: a tiny random model of the same architecture.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")
    ] = False,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Plan for these GPUs, such as `8xH100-80GB`, instead of those seen here."
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print one JSON object.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Plain lines instead of the live view.")
    ] = False,
) -> None:
    """Train a recipe: start its three roles, watch them, end with a result."""
    from astraflow.cli.console import print_warning
    from astraflow.supervisor.preflight import (
        plan_here,
        require_fit,
        require_gpus,
        require_plugins,
        require_recipe,
    )

    findings = require_recipe(recipe, set_ or ())
    assert findings.resolved is not None
    resolved = findings.resolved
    if smoke:
        from astraflow.cli.smoke import miniature

        resolved = miniature(resolved)
    for warning in findings.warnings if not smoke else ():
        print_warning(warning)
    run_name = name or (f"{resolved.name}-smoke" if smoke else resolved.name)
    if dry_run:
        # The miniature has another model than the recipe names.
        needs = None if smoke else plan_here(resolved.recipe, hardware)
        _show_plan(resolved, runs / run_name / "N", needs, as_json=json)
        return
    require_plugins(resolved.recipe)
    require_gpus(resolved.recipe)
    if not smoke:
        require_fit(resolved.recipe, hardware)
    raise typer.Exit(
        _supervise(resolved, runs=runs, name=run_name, resume=resume, plain=plain, smoke=smoke)
    )


def _supervise(
    resolved: ResolvedRecipe, *, runs: Path, name: str, resume: bool, plain: bool, smoke: bool
) -> int:
    import asyncio

    from astraflow.cli.live import plain_view, rich_view, show_summary
    from astraflow.errors import RecipeError
    from astraflow.supervisor import RunState, Supervisor, plan_run
    from astraflow.supervisor.folders import with_local_model, write_recipe, write_token
    from astraflow.supervisor.recovery import Restarts
    from astraflow.trainer.checkpoints import find_checkpoint
    from astraflow.wire.auth import new_token

    folder, checkpoint = _prepare_folder(runs, name, resume=resume)
    if smoke:
        from astraflow.cli.smoke import materialize

        resolved = materialize(resolved, folder)
    write_recipe(folder, with_local_model(resolved))
    token = new_token()
    token_path = write_token(folder, token)
    plan = plan_run(resolved.recipe, folder, resume_from=checkpoint)
    state = RunState(name=f"{name}/{folder.name}", total_steps=resolved.recipe.trainer.steps)

    def replan() -> RunPlan:
        """Plan from the newest checkpoint; from the start when there is none."""
        try:
            last = find_checkpoint(folder / "checkpoints").folder
        except RecipeError:
            last = None
            for leftover in folder.glob("rollouts.sqlite*"):
                leftover.unlink()
        return plan_run(resolved.recipe, folder, resume_from=last)

    async def body() -> tuple[int, AstraFlowError | None]:
        view = plain_view if plain or not _is_terminal() else rich_view
        async with view(state) as announce:
            supervisor = Supervisor(
                plan,
                limits=resolved.recipe.limits,
                folder=folder,
                token=token,
                state=state,
                announce=announce,
                restarts=Restarts(resolved.recipe.recovery),
                replan=replan,
            )
            return await supervisor.run()

    try:
        exit_code, error = asyncio.run(body())
    finally:
        token_path.unlink(missing_ok=True)
    show_summary(folder, error)
    return exit_code


def _prepare_folder(runs: Path, name: str, *, resume: bool) -> tuple[Path, Path | None]:
    """Make a new run folder, or find the one to continue and its checkpoint."""
    from astraflow.cli.console import say
    from astraflow.errors import RecipeError
    from astraflow.supervisor.folders import latest_run, make_run_folder
    from astraflow.trainer.checkpoints import find_checkpoint

    if not resume:
        return make_run_folder(runs, name), None
    folder = latest_run(runs, name)
    try:
        checkpoint = find_checkpoint(folder / "checkpoints")
    except RecipeError as error:
        say(f"{error.what}: the run starts again at step 0")
        for leftover in folder.glob("rollouts.sqlite*"):
            leftover.unlink()
        return folder, None
    say(f"resuming {folder} at step {checkpoint.step}")
    return folder, checkpoint.folder


def _show_plan(
    resolved: ResolvedRecipe, folder: Path, needs: Plan | None, *, as_json: bool
) -> None:
    from rich.table import Table

    from astraflow.cli.console import data_console, print_json
    from astraflow.supervisor import plan_run

    plan = plan_run(resolved.recipe, folder)
    recipe = resolved.recipe.model_dump(mode="json")
    if as_json:
        needed = needs.to_dict() if needs else None
        print_json({"name": resolved.name, "recipe": recipe, **plan.to_dict(), "plan": needed})
        return
    table = Table("role", "GPUs", "command", box=None)
    for role in plan.roles():
        gpus = ",".join(map(str, role.gpus)) or "CPU"
        table.add_row(role.name, gpus, " ".join(role.command))
    data_console.print(table)
    data_console.print(f"ports: {plan.ports}")
    for line in needs.lines() if needs else ():
        data_console.print(line, markup=False)
    for problem in needs.problems if needs else ():
        data_console.print(f"does not fit: {problem}", markup=False)
    _print_values(recipe)


def _print_values(values: dict[str, Any], prefix: str = "") -> None:
    from astraflow.cli.console import data_console

    for key, value in values.items():
        if isinstance(value, dict):
            _print_values(value, f"{prefix}{key}.")
        else:
            data_console.print(f"{prefix}{key} = {value}", markup=False)


def _is_terminal() -> bool:
    from astraflow.cli.console import talk_console

    return talk_console.is_terminal
