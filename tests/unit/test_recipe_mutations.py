"""Every shipped recipe, broken in many ways: each is refused at its line, and none crashes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow.plugins import recipe_type
from astraflow.recipe.files import list_recipes, load_recipe
from astraflow.recipe.origins import explain_values
from astraflow.supervisor.preflight import inspect_recipe

_LINE = re.compile(r"( *)(\w+):(?: (.*?))?(?: +# .*)?$")


def _mutants(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield ``(line, what was done, text)``: keys misspelled, values of a wrong type or size."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        found = _LINE.match(line)
        assert found is not None, line
        indent, key, value = found.groups()

        def mutant(changed: str, number: int = number) -> str:
            return "\n".join([*lines[:number], changed, *lines[number + 1 :]]) + "\n"

        typo = key[:-1] + "qz"
        yield (
            number + 1,
            f"{key} misspelled",
            mutant(f"{indent}{typo}:{' ' + value if value else ''}"),
        )
        if value is None:
            continue  # a section: what is below it would no longer be YAML
        for wrong in _wrong(json.loads(value)):
            if (key, wrong) == ("id", "null"):
                continue  # numbers the rows
            yield number + 1, f"{key} = {wrong}", mutant(f"{indent}{key}: {wrong}")


def _wrong(value: object) -> Iterator[str]:
    """Yield values that no field of the same kind takes."""
    yield '{"a": {"b": 1}}' if not isinstance(value, dict) else "[[1]]"
    if isinstance(value, bool):
        yield "yes"  # text in YAML 1.2
    elif isinstance(value, (int, float)):
        yield "-987654"
        yield f'"{value}"'
    elif isinstance(value, str):
        yield "7"
        yield "null"


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_every_mutant_is_refused_at_its_line(path: Path, tmp_path: Path) -> None:
    explained = explain_values(load_recipe(str(path), recipe_type=recipe_type()))
    file = tmp_path / "mutant.yaml"
    file.write_text(explained, encoding="utf-8")
    assert inspect_recipe(str(file)).errors == ()
    # With the defaults written down too, every key there is can be broken.
    text = re.sub(r"^( *)# (?=\w+:)", r"\1", explained, flags=re.MULTILINE)
    mutants = list(_mutants(text))
    assert len(mutants) >= 60
    # All of the quickstart; of the others, which share its schema, a third each in turns.
    offset = len(path.stem) % 3
    chosen = mutants if path.stem == "quickstart" else mutants[offset::3]
    for line, done, mutated in chosen:
        file.write_text(mutated, encoding="utf-8")
        errors = inspect_recipe(str(file)).errors
        places = [error.where for error in errors]
        assert any(f"mutant.yaml:{line}:" in place for place in places), (done, places)
