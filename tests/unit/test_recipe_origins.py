"""`validate --explain`: where each value comes from, as a recipe that reads the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app, register
from astraflow.plugins import recipe_type
from astraflow.recipe.files import list_recipes, load_recipe
from astraflow.recipe.origins import explain_values


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_an_explained_recipe_reads_as_the_same_recipe(path: Path, tmp_path: Path) -> None:
    resolved = load_recipe(str(path), recipe_type=recipe_type())
    written = tmp_path / "again.yaml"
    written.write_text(explain_values(resolved), encoding="utf-8")
    assert load_recipe(str(written), recipe_type=recipe_type()).recipe == resolved.recipe


def test_each_value_names_its_line_its_option_or_what_its_default_is_for() -> None:
    resolved = load_recipe(
        "qwen3-1.7b-m2po-2gpus-delta", ["trainer.steps=3"], recipe_type=recipe_type()
    )
    lines = {line.split(":")[0].strip(" #"): line for line in explain_values(resolved).splitlines()}
    assert lines["steps"].endswith("# --set trainer.steps=3")
    assert "2gpus-delta.yaml:" in lines["full_sync_interval"]
    assert "2gpus-full.yaml:" in lines["master_dtype"]
    assert "# default: Delta: encoded versions that a sender keeps" in lines["keep_deltas"]


def test_the_command_prints_it() -> None:
    register()
    done = CliRunner().invoke(app, ["validate", "quickstart", "--explain"])
    assert done.exit_code == 0
    assert 'path: "builtin:tiny"' in done.output
