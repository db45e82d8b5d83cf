"""Write docs/recipes.md and docs/cli.md from the schema and the commands; `--check` compares."""

from __future__ import annotations

import sys
import typing
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from astraflow.cli.main import app, register
from astraflow.plugins import recipe_type
from astraflow.recipe.files import list_recipes, load_recipe

_DOCS = Path(__file__).parent
_NOTE = "<!-- Written by docs/generate.py; `make docs` writes it again. -->\n\n"


def main() -> int:
    """Write both pages, or say which is stale."""
    pages = {"recipes.md": _recipes_page(), "cli.md": _cli_page()}
    stale = []
    for name, text in pages.items():
        path = _DOCS / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and stale:
        sys.stderr.write(f"stale: {', '.join(stale)}; run `make docs`\n")
        return 1
    return 0


def _recipes_page() -> str:
    lines = [
        "# Recipes\n",
        _NOTE,
        "A recipe is a YAML 1.2 file. Keys that are not listed here are errors, and so is a key\n"
        "given twice. `extends: NAME_OR_PATH` takes another recipe's values first, and\n"
        "`--set section.field=value` replaces one at the command line. `null` turns off what may\n"
        "be turned off.\n\n",
        "## Shipped recipes\n\n",
        "| recipe | model | GPUs (rollout + trainer) | context | new tokens | transfer |\n",
        "|---|---|---|---|---|---|\n",
    ]
    schema = recipe_type()
    for path in list_recipes():
        resolved = load_recipe(str(path), recipe_type=schema)
        recipe = resolved.recipe
        gpus = f"{recipe.rollout.gpus} + {recipe.trainer.gpus}" if recipe.trainer.gpus else "CPU"
        lines.append(
            f"| {resolved.name} | {recipe.model.path} | {gpus} | {recipe.model.context_length} | "
            f"{recipe.rollout.max_new_tokens} | {recipe.weights.mode} |\n"
        )
    lines += _section("", schema)
    return "".join(lines)


def _section(path: str, model: type[BaseModel]) -> list[str]:
    title = f"`{path}`" if path else "Top level"
    about = " ".join((model.__doc__ or "").split())
    lines = [f"\n## {title}\n\n{about}\n\n", "| field | type | default | what it does |\n"]
    lines.append("|---|---|---|---|\n")
    below: list[tuple[str, type[BaseModel]]] = []
    for name, field in model.model_fields.items():
        dotted = f"{path}.{name}" if path else name
        section = _model_in(field.annotation)
        if section is not None:
            below.append((dotted, section))
            continue
        text = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {_type(field)} | {_default(field)} | {text} |\n")
    if below:
        names = ", ".join(f"`{dotted}`" for dotted, _ in below)
        lines.append(f"\nSections: {names}\n")
    for dotted, section in below:
        lines += _section(dotted, section)
    return lines


def _type(field: Any) -> str:
    annotation = field.annotation
    choices = [c for c in typing.get_args(annotation) if isinstance(c, str)]
    if typing.get_origin(annotation) is typing.Literal:
        text = ", ".join(f"`{choice}`" for choice in choices)
    else:
        text = str(annotation).replace("typing.", "")
        text = annotation.__name__ if isinstance(annotation, type) else _plain(text)
    bounds = [_bound(item) for item in field.metadata]
    return ", ".join([text, *filter(None, bounds)]).replace("|", "or")


def _plain(text: str) -> str:
    if text.startswith("Annotated[") or "Annotated[" in text:
        return "number" if "float" in text else "whole number"
    return text


def _bound(item: Any) -> str:
    for name, word in (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below")):
        value = getattr(item, name, None)
        if value is not None:
            return f"{word} {value}"
    return ""


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "required"
    return "`null`" if field.default is None else f"`{field.default}`".replace("|", "\\|")


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _cli_page() -> str:
    register()
    command: Any = typer.main.get_command(app)
    lines = ["# Command line\n\n", _NOTE, "Results go to stdout, everything else to stderr.\n"]
    for name, below in sorted(command.commands.items()):
        lines += _command(f"astraflow {name}", below)
    return "".join(lines)


def _command(name: str, command: Any) -> list[str]:
    about = " ".join((command.help or "").split())
    lines = [f"\n## `{name}`\n\n{about}\n"]
    if getattr(command, "commands", None):
        for below_name, below in sorted(command.commands.items()):
            lines += _command(f"{name} {below_name}", below)
        return lines
    parameters = [p for p in command.params if p.name != "help"]
    if parameters:
        lines.append("\n| argument | default | what it does |\n|---|---|---|\n")
    for parameter in parameters:
        shown = parameter.name.upper() if not parameter.opts[0].startswith("-") else ""
        shown = shown or ", ".join(parameter.opts)
        default = "required" if parameter.required else f"`{parameter.default}`"
        text = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
        lines.append(f"| `{shown}` | {default} | {text} |\n")
    return lines


if __name__ == "__main__":
    sys.exit(main())
