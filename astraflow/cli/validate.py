"""`astraflow validate`: every problem of one or many recipes, with places and cures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.errors import RecipeError

if TYPE_CHECKING:
    from astraflow.planning import Plan
    from astraflow.supervisor.preflight import Findings

__all__ = ["validate"]


def validate(
    recipes: Annotated[list[str], typer.Argument(help="Stems of shipped recipes, or paths.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value: `section.field=value`; may be repeated."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    hardware: Annotated[
        str | None,
        typer.Option(help="Plan memory and speed on these GPUs, such as `8xH100-80GB`."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Print every value with the line that wrote it, or what its default is for.",
        ),
    ] = False,
) -> None:
    """Check recipes without running them; exit code 2 for an error, 4 if one does not fit."""
    from astraflow.cli.console import print_json

    found = [_inspect(name, set_ or ()) for name in recipes]
    broken = any(findings.errors for findings in found)
    plans = [None if broken else _plan(findings, hardware) for findings in found]
    if json:
        rows = [_as_dict(*pair) for pair in zip(found, plans, strict=True)]
        print_json({"recipes": rows})
    else:
        _show_findings(found, explain=explain)
    if broken:
        raise typer.Exit(RecipeError.exit_code)
    if hardware is not None:
        if not json:
            _show_plans(found, plans)
        _require_fit(found, plans)


def _inspect(name: str, overrides: Sequence[str]) -> Findings:
    """Gather what is to be said of a recipe, and of one that is none as well."""
    from astraflow.supervisor.preflight import Findings, inspect_recipe

    try:
        return inspect_recipe(name, overrides)
    except RecipeError as error:
        return Findings(name=name, resolved=None, errors=(error,), warnings=())


def _plan(findings: Findings, hardware: str | None) -> Plan | None:
    from astraflow.supervisor.preflight import plan_here

    if hardware is None or findings.resolved is None:
        return None
    return plan_here(findings.resolved.recipe, hardware)


def _show_findings(found: Sequence[Findings], *, explain: bool) -> None:
    from astraflow.cli.console import data_console, print_error, print_warning
    from astraflow.recipe.files import summary
    from astraflow.recipe.origins import explain_values

    for findings in found:
        for warning in findings.warnings:
            print_warning(warning)
        # Plain: square brackets are lists or parts of names here, not colors.
        if findings.errors:
            print_error(summary(findings.name, findings.errors))
        elif explain and findings.resolved is not None:
            data_console.print(explain_values(findings.resolved), markup=False, end="")
        else:
            data_console.print(f"{findings.name}: ok{_batch_line(findings)}", markup=False)


def _show_plans(found: Sequence[Findings], plans: Sequence[Plan | None]) -> None:
    from rich.table import Table

    from astraflow.cli.console import data_console

    columns = ("recipe", "trainer rank", "engine", "full answers", "host memory", "/dev/shm")
    table = Table(*columns, "sampled", "trained", "waits", "fits", box=None)
    for findings, plan in zip(found, plans, strict=True):
        cells = _plan_cells(plan) if plan else ["the model's shape is not known here"]
        table.add_row(findings.name, *cells)
    data_console.print(table)
    for findings, plan in zip(found, plans, strict=True):
        for line in plan.advice() if plan else ():
            data_console.print(f"{findings.name}: {line}", markup=False)


def _plan_cells(plan: Plan) -> list[str]:
    memory, host, speed = plan.memory, plan.host, plan.throughput
    on_gpus = plan.recipe.trainer.gpus > 0, plan.recipe.rollout.gpus > 0
    return [
        f"{memory.trainer_bytes / 1e9:.1f} GB" if on_gpus[0] else "CPU",
        f"{memory.engine_bytes / 1e9:.1f} GB" if on_gpus[1] else "CPU",
        str(memory.full_requests) if on_gpus[1] else "",
        f"{host.memory_bytes / 1e9:.1f} GB",
        f"{host.shm_bytes / 1e9:.2f} GB",
        f"{speed.sampled_tokens_per_s:,.0f} tokens/s" if speed else "",
        f"{speed.trained_tokens_per_s:,.0f} tokens/s" if speed else "",
        f"{speed.waits} {speed.wait_frac:.0%}" if speed else "",
        "no" if plan.problems else "yes",
    ]


def _require_fit(found: Sequence[Findings], plans: Sequence[Plan | None]) -> None:
    from astraflow.errors import HardwareError

    unfit = [
        f"{findings.name}: {problem}"
        for findings, plan in zip(found, plans, strict=True)
        for problem in (plan.problems if plan else ())
    ]
    if unfit:
        raise HardwareError(
            "\n".join(unfit), hint="the plan is an estimate: see docs/results/plan.md"
        )


def _as_dict(findings: Findings, plan: Plan | None) -> dict[str, object]:
    def rows(errors: tuple[RecipeError, ...]) -> list[dict[str, str]]:
        return [{"what": e.what, "where": e.where, "hint": e.hint} for e in errors]

    return {
        "name": findings.name,
        "ok": not findings.errors,
        "errors": rows(findings.errors),
        "warnings": rows(findings.warnings),
        "recipe": (findings.resolved.recipe.model_dump(mode="json") if findings.resolved else None),
        "plan": plan.to_dict() if plan else None,
    }


def _batch_line(findings: Findings) -> str:
    """Say the batch in all its units, which are easily mixed up."""
    if findings.resolved is None:
        return ""
    recipe = findings.resolved.recipe
    batch, group = recipe.trainer.batch_size, recipe.rollout.samples_per_prompt
    updates = recipe.algorithm.updates_per_step
    return (
        f" ({batch} sequences a batch = {batch // group} prompts x {group} samples; "
        f"{updates} optimizer steps of {batch // updates} sequences; "
        f"lr {recipe.trainer.optimizer.lr:g})"
    )
