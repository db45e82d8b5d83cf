"""`astraflow validate`: every problem of one or many recipes, with places and cures."""

from __future__ import annotations

from typing import Annotated

import typer

from astraflow.errors import RecipeError

__all__ = ["validate"]


def validate(
    recipes: Annotated[list[str], typer.Argument(help="Stems of shipped recipes, or paths.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value: `section.field=value`; may be repeated."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check recipes without running them; exit code 2 when one has an error."""
    from astraflow.cli.console import data_console, print_error, print_json, print_warning
    from astraflow.recipe.files import summary
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
            else:
                data_console.print(f"{findings.name}: ok{_batch_line(findings)}")
    if any(findings.errors for findings in found):
        raise typer.Exit(RecipeError.exit_code)


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
