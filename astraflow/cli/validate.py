"""`astraflow validate`: every problem of one or many recipes, with places and cures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from astraflow.errors import RecipeError

if TYPE_CHECKING:
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
        typer.Option(help="Plan the memory on these GPUs, such as `8xH100-80GB`."),
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
    from astraflow.cli.console import data_console, print_error, print_json, print_warning
    from astraflow.recipe.files import summary
    from astraflow.recipe.origins import explain_values
    from astraflow.supervisor.preflight import Findings, inspect_recipe

    found: list[Findings] = []
    for name in recipes:
        try:
            found.append(inspect_recipe(name, set_ or ()))
        except RecipeError as error:
            found.append(Findings(name=name, resolved=None, errors=(error,), warnings=()))
    if json:
        print_json({"recipes": [_as_dict(findings) for findings in found]})
    else:
        for findings in found:
            for warning in findings.warnings:
                print_warning(warning)
            if findings.errors:
                print_error(summary(findings.name, findings.errors))
            elif explain and findings.resolved is not None:
                # Plain: square brackets are lists here, not colors.
                data_console.print(explain_values(findings.resolved), markup=False, end="")
            else:
                data_console.print(f"{findings.name}: ok{_batch_line(findings)}")
    if any(findings.errors for findings in found):
        raise typer.Exit(RecipeError.exit_code)
    if hardware is not None:
        _plan(found, hardware)


def _plan(found: Sequence[Findings], hardware: str) -> None:
    """Print each recipe's memory on some GPUs; end with 4 if one does not fit."""
    from rich.table import Table

    from astraflow.cli.console import data_console
    from astraflow.errors import HardwareError
    from astraflow.planning import plan_memory, read_hardware
    from astraflow.recipe.models import find_facts

    count, gpu = read_hardware(hardware)
    table = Table("recipe", "trainer rank", "engine", "cache", "full answers", "fits", box=None)
    unfit = []
    for findings in found:
        assert findings.resolved is not None  # or it had an error
        recipe = findings.resolved.recipe
        facts = find_facts(recipe.model.path)
        if facts is None:
            table.add_row(findings.name, "", "", "", "", "the model's shape is not known here")
            continue
        plan = plan_memory(recipe, facts, gpu, gpus=count)
        unfit += [f"{findings.name}: {problem}" for problem in plan.problems]
        table.add_row(
            findings.name,
            f"{plan.trainer_bytes / 1e9:.1f} GB",
            f"{plan.engine_bytes / 1e9:.1f} GB",
            f"{plan.cache_tokens:,} tokens",
            str(plan.full_requests),
            "no" if plan.problems else "yes",
        )
    data_console.print(table)
    if unfit:
        raise HardwareError(
            "\n".join(unfit), hint="the plan is an estimate: see docs/results/plan.md"
        )


def _as_dict(findings: object) -> dict[str, object]:
    from astraflow.supervisor.preflight import Findings

    assert isinstance(findings, Findings)

    def rows(errors: tuple[RecipeError, ...]) -> list[dict[str, str]]:
        return [{"what": e.what, "where": e.where, "hint": e.hint} for e in errors]

    return {
        "name": findings.name,
        "ok": not findings.errors,
        "errors": rows(findings.errors),
        "warnings": rows(findings.warnings),
        "recipe": (findings.resolved.recipe.model_dump(mode="json") if findings.resolved else None),
    }


def _batch_line(findings: object) -> str:
    """Say the batch in all its units, which are easily mixed up."""
    from astraflow.supervisor.preflight import Findings

    assert isinstance(findings, Findings)
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
