"""`astraflow bundle RECIPE --out DIR`: all that a run reads, for a machine without network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bundle"]


def bundle(
    recipe: Annotated[str, typer.Argument(help="Stem of a shipped recipe, or a path.")],
    out: Annotated[Path, typer.Option(help="Folder to make; it must be absent or empty.")],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="Override one value: `section.field=value`; may be repeated."),
    ] = None,
) -> None:
    """Collect model, tokenizer and datasets, with hashes, for a cluster without network."""
    import shlex

    from astraflow.bundling import make_bundle
    from astraflow.cli.console import data_console, print_warning, say
    from astraflow.supervisor.preflight import require_recipe

    findings = require_recipe(recipe, set_ or ())
    assert findings.resolved is not None
    for warning in findings.warnings:
        print_warning(warning)
    manifest = make_bundle(findings.resolved, out, announce=say)
    say(f"{len(manifest.files)} files, {manifest.size_bytes / 1e9:.2f} GB; it can be moved whole")
    path = shlex.quote(str(out / "recipe.yaml"))
    for line in (
        f"astraflow doctor {path} --offline",
        f"astraflow run {path} --name {manifest.name}",
    ):
        data_console.print(line, markup=False, soft_wrap=True)
