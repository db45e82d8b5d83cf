"""`astraflow recipes`: the shipped recipes at a glance."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["recipes"]


def recipes(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the shipped recipes: model, GPUs, context, weight transfer."""
    from rich.table import Table

    from astraflow.cli.console import data_console, print_json
    from astraflow.plugins import recipe_type
    from astraflow.recipe.files import list_recipes, load_recipe

    rows = []
    for path in list_recipes():
        resolved = load_recipe(str(path), recipe_type=recipe_type())
        recipe = resolved.recipe
        rows.append(
            {
                "name": resolved.name,
                "model": recipe.model.path,
                "rollout_gpus": recipe.rollout.gpus,
                "trainer_gpus": recipe.trainer.gpus,
                "context_length": recipe.model.context_length,
                "max_new_tokens": recipe.rollout.max_new_tokens,
                "transfer": recipe.weights.mode,
                "description": recipe.description,
                "path": str(path),
            }
        )
    if json:
        print_json(rows)
        return
    table = Table(box=None)
    for column in ("recipe", "model", "GPUs", "context", "new tokens", "transfer"):
        table.add_column(column, no_wrap=column == "recipe", overflow="fold")
    for row in rows:
        gpus = f"{row['rollout_gpus']} + {row['trainer_gpus']}" if row["trainer_gpus"] else "CPU"
        table.add_row(
            str(row["name"]),
            str(row["model"]),
            gpus,
            str(row["context_length"]),
            str(row["max_new_tokens"]),
            str(row["transfer"]),
        )
    data_console.print(table)
