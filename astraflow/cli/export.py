"""`astraflow export RUN`: a checkpoint as a folder that transformers loads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["export"]


def export(
    run: Annotated[Path, typer.Argument(help="Run folder, such as runs/quickstart/latest.")],
    out: Annotated[Path, typer.Option(help="Folder to write; must not exist yet.")],
    step: Annotated[
        int | None, typer.Option(help="Step; the newest checkpoint by default.")
    ] = None,
) -> None:
    """Write a checkpoint's weights with config and tokenizer in Hugging Face format."""
    from astraflow.cli.console import data_console, say

    folder, at = export_checkpoint(run, step=step, out=out)
    say(f"step {at} of {run}")
    data_console.print(str(folder))


def export_checkpoint(run: Path, *, step: int | None, out: Path) -> tuple[Path, int]:
    """
    Export one checkpoint of a run.

    Raises:
        RecipeError: no such run or checkpoint, or ``out`` exists.
    """
    from astraflow.errors import RecipeError
    from astraflow.plugins import load_plugin, recipe_type
    from astraflow.recipe.files import read_resolved
    from astraflow.trainer.checkpoints import find_checkpoint

    if out.exists():
        raise RecipeError(f"`{out}` exists already", hint="give a folder that does not exist")
    recipe = read_resolved(run / "recipe.json", recipe_type=recipe_type()).recipe
    checkpoint = find_checkpoint(run / "checkpoints", step=step)
    plugin = load_plugin("trainer_backends", recipe.trainer.backend)
    if plugin.export is None:
        raise RecipeError(f"the `{plugin.name}` adapter cannot export its checkpoints")
    plugin.export(
        checkpoint.folder / "trainer",
        out,
        model_path=recipe.model.path,
        dtype=recipe.model.dtype,
    )
    return out, checkpoint.step
