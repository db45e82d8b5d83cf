"""The repository itself: recipes, generated pages, light imports, short modules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.plugins import recipe_type
from astraflow.recipe.files import list_recipes, load_recipe
from astraflow.supervisor.preflight import inspect_recipe

_ROOT = Path(__file__).parents[2]
_SOURCES = [*(_ROOT / "astraflow").rglob("*.py"), *(_ROOT / "backends").rglob("*.py")]
_HEAVY = ("torch", "transformers", "sglang", "datasets", "sympy", "math_verify")
_PAGES = [_ROOT / "README.md", *sorted((_ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_shipped_recipe_has_no_error(path: Path) -> None:
    assert [str(error) for error in inspect_recipe(str(path)).errors] == []


@pytest.mark.parametrize(
    "path", sorted(p for p in (_ROOT / "recipes/math").glob("*-delta.yaml") if "1gpu" not in p.stem)
)
def test_delta_recipe_is_its_full_sibling_but_for_transfer(path: Path) -> None:
    def values(file: Path) -> dict[str, object]:
        recipe = load_recipe(str(file), recipe_type=recipe_type()).recipe
        return {**recipe.model_dump(), "description": "", "weights": ""}

    assert values(path) == values(path.with_name(path.name.replace("-delta", "-full")))


@pytest.mark.parametrize(
    "module",
    [
        "astraflow.cli", "astraflow.supervisor", "astraflow.recipe", "astraflow.data",
        "astraflow.grading", "astraflow.supervisor.preflight", "astraflow_sglang",
        "astraflow_transformers", "astraflow_fsdp", "astraflow_megatron",
    ],
)  # fmt: skip
def test_importing_loads_nothing_heavy(module: str) -> None:
    code = f"import {module}, sys; print(*(m for m in {_HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("path", _SOURCES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_every_recipe_field_is_documented() -> None:
    schema = recipe_type().model_json_schema()
    models = [schema, *schema["$defs"].values()]
    missing = [
        (model["title"], name)
        for model in models
        for name, field in model.get("properties", {}).items()
        if "description" not in field and "$ref" not in field
    ]
    assert missing == []


def test_generated_pages_are_current() -> None:
    command = [sys.executable, str(_ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", _PAGES, ids=lambda p: p.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
