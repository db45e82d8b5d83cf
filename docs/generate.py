"""Write docs/recipes.md and docs/cli.md from the schema and the commands; `--check` compares."""

from __future__ import annotations

import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from astraflow.cli.main import app, register
from astraflow.plugins import recipe_type
from astraflow.recipe.files import list_recipes, load_recipe

_DOCS = Path(__file__).parent
_NOTE = "<!-- Written by docs/generate.py; `make docs` writes it again. -->\n\n"
_WORDS = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    dict: "mapping",
}
_BOUNDS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))
# Docstrings end with the unit in brackets; other brackets are prose.
_UNIT = re.compile(r"\s*\((count|s|tokens|sequences|versions|nats squared)\)")


def main() -> int:
    """Write both pages, or say which is stale."""
    check = "--check" in sys.argv
    pages = {"recipes.md": _recipes_page(), "cli.md": _cli_page()}
    stale = [name for name, text in pages.items() if _read(_DOCS / name) != text]
    if not check:
        for name in stale:
            (_DOCS / name).write_text(pages[name], encoding="utf-8")
    elif stale:
        sys.stderr.write(f"stale: {', '.join(stale)}; run `make docs`\n")
    return int(check and bool(stale))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


# --- recipes


def _recipes_page() -> str:
    return "".join(
        [
            "# Recipes\n\n",
            _NOTE,
            "A recipe is a YAML 1.2 file. A key that is not listed here is an error, and so is a\n"
            "key given twice. `extends: NAME_OR_PATH` takes another recipe's values first, and\n"
            "`--set section.field=value` replaces one at the command line. `null` turns off what\n"
            "may be turned off. Sections that are left out stand at their defaults.\n\n",
            "[Shipped recipes](#shipped-recipes) name values; the rest of this page explains\n"
            "them. What was run where: [recipes/README.md](../recipes/README.md).\n\n",
            *_shipped(),
            *_section("", recipe_type()),
        ]
    )


def _shipped() -> Iterator[str]:
    yield "## Shipped recipes\n\n"
    yield "| recipe | model | GPUs (rollout + trainer) | context | new tokens | transfer |\n"
    yield "|---|---|---|---|---|---|\n"
    for path in list_recipes():
        resolved = load_recipe(str(path), recipe_type=recipe_type())
        recipe = resolved.recipe
        gpus = f"{recipe.rollout.gpus} + {recipe.trainer.gpus}" if recipe.trainer.gpus else "CPU"
        yield (
            f"| {resolved.name} | {recipe.model.path} | {gpus} | {recipe.model.context_length} | "
            f"{recipe.rollout.max_new_tokens} | {recipe.weights.mode} |\n"
        )


def _section(path: str, model: type[BaseModel]) -> Iterator[str]:
    title = f"`{path}`" if path else "Top level"
    yield f"\n## {title}\n\n{_one_line(model.__doc__)}\n\n"
    sections: dict[str, type[BaseModel]] = {}
    rows = []
    for name, field in model.model_fields.items():
        below = _model_in(field.annotation)
        if below is not None:
            sections[f"{path}.{name}" if path else name] = below
        else:
            rows.append(_field_row(name, field))
    if rows:
        yield "| field | type | default | unit | what it does |\n|---|---|---|---|---|\n"
        yield from rows
    if sections:
        yield f"\nSections: {', '.join(f'`{dotted}`' for dotted in sections)}\n"
    for dotted, below in sections.items():
        yield from _section(dotted, below)


def _field_row(name: str, field: FieldInfo) -> str:
    text, unit = _split_unit(_one_line(field.description))
    kind = ", ".join([_type(field.annotation), *_bounds(field.metadata)])
    cells = (f"`{name}`", kind, _default(field), unit, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _split_unit(text: str) -> tuple[str, str]:
    """Take the unit out of a description that ends with it."""
    found = list(_UNIT.finditer(text))
    if not found:
        return text, ""
    last = found[-1]
    rest = text[last.end() :]
    return (text[: last.start()] + rest if rest in ("", ".") else text), last.group(1)


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin is typing.Annotated:
        bounds = [bound for item in arguments[1:] for bound in _bounds(_flat(item))]
        return " ".join([_type(arguments[0]), ", ".join(bounds)]).strip()
    if origin is types.UnionType or origin is typing.Union:
        return " or ".join(_type(part) for part in arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"list of {_type(arguments[0])}"
    if origin is tuple:
        return f"list of {len(arguments)}: {_type(arguments[0])}"
    return (
        "`null`"
        if annotation is types.NoneType
        else _WORDS[typing.get_origin(annotation) or annotation]
    )


def _flat(item: Any) -> list[Any]:
    return item.metadata if isinstance(item, FieldInfo) else [item]


def _bounds(metadata: list[Any]) -> list[str]:
    return [
        f"{word} {getattr(item, name):.10g}"
        for item in metadata
        for name, word in _BOUNDS
        if getattr(item, name, None) is not None
    ]


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined and field.default_factory is None:
        return "required"
    value = field.get_default(call_default_factory=True)
    return f"`{value if isinstance(value, str) and value else json.dumps(value)}`"


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


# --- commands


def _cli_page() -> str:
    register()
    command: Any = typer.main.get_command(app)
    lines = [
        "# Command line\n\n",
        _NOTE,
        "Results go to stdout, everything else to stderr. `-h` shows these texts. Exit codes:\n"
        "[operations.md](operations.md#exit-codes).\n",
    ]
    for name, below in sorted(command.commands.items()):
        lines += _command(f"astraflow {name}", below)
    return "".join(lines)


def _command(name: str, command: Any) -> Iterator[str]:
    yield f"\n## `{name}`\n\n{_one_line(command.help)}\n"
    for below_name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _command(f"{name} {below_name}", below)
    parameters = [parameter for parameter in command.params if parameter.name != "help"]
    if getattr(command, "commands", None) or not parameters:
        return
    yield "\n| argument | default | what it does |\n|---|---|---|\n"
    for parameter in parameters:
        cells = (_shown(parameter), _cli_default(parameter), _about(parameter))
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _shown(parameter: Any) -> str:
    if not parameter.opts[0].startswith("-"):
        return f"`{parameter.name.upper()}{'...' if parameter.nargs == -1 else ''}`"
    return ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))


def _cli_default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.default, bool):
        return "on" if parameter.default else "off"
    return "" if parameter.default in (None, "") else f"`{parameter.default}`"


def _about(parameter: Any) -> str:
    # Bounds sit on the parameter in newer typers, on its type in older ones.
    holder = parameter if hasattr(parameter, "min") else parameter.type
    low, high = getattr(holder, "min", None), getattr(holder, "max", None)
    bounds = [f"at least {low:g}"] if low is not None else []
    bounds += [f"at most {high:g}"] if high is not None else []
    sentences = [_one_line(getattr(parameter, "help", ""))]
    sentences += [f"{', '.join(bounds).capitalize()}."] if bounds else []
    sentences += [f"Also read from {parameter.envvar}."] if parameter.envvar else []
    return " ".join(sentences)


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


if __name__ == "__main__":
    sys.exit(main())
