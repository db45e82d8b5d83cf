"""What the packages offer, what they load, and how large their pieces are."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow import plugins
from astraflow.errors import PluginError
from astraflow.recipe.base import RecipeModel

_ROOT = Path(__file__).parents[2]
_SOURCES = [*(_ROOT / "astraflow").rglob("*.py"), *(_ROOT / "backends").rglob("*.py")]
_PACKAGES = [path for path in _SOURCES if path.name == "__init__.py"]
_HEAVY = ("torch", "transformers", "sglang", "datasets", "sympy", "math_verify", "flash_attn")
# dataflow/flow.py holds one idea, the path from prompt to batch; recipe/schema.py is the one page
# with every field of a recipe.
_LONGEST_LINES = {"flow.py": 500, "schema.py": 430}
_VAGUE = re.compile(r"utils?|manager|helpers?|common|misc|legacy|v[0-9]+|new")


def _name(path: Path) -> str:
    root = _ROOT / "backends" if path.is_relative_to(_ROOT / "backends") else _ROOT
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _loaded(code: str) -> list[str]:
    """Run code in a fresh interpreter and return the heavy modules that it has loaded."""
    script = f"{code}\nimport sys\nprint('', *(m for m in {_HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


# --- what is loaded


@pytest.mark.parametrize(
    "module",
    ["astraflow", "astraflow.testing", "astraflow.interfaces",
     "astraflow.wire", "astraflow.dataflow", "astraflow.raas", "astraflow.metrics"],
)  # fmt: skip
def test_package_without_tensors_loads_nothing_heavy(module: str) -> None:
    assert _loaded(f"import {module}") == []


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["validate", "quickstart"]])
def test_help_and_validation_need_no_heavy_library(arguments: list[str]) -> None:
    code = (
        f"import sys; sys.argv = ['astraflow', *{arguments!r}]\n"
        "from astraflow.cli import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code"
    )
    assert _loaded(code) == []


def test_naming_every_adapter_in_the_schema_loads_none_of_their_libraries() -> None:
    assert _loaded("from astraflow.plugins import recipe_type; recipe_type()") == []


# --- what is offered


@pytest.mark.parametrize("path", _PACKAGES, ids=_name)
def test_package_offers_what_it_lists(path: Path) -> None:
    package = importlib.import_module(_name(path))
    offered = package.__all__
    assert len(set(offered)) == len(offered)
    assert all(hasattr(package, name) for name in offered)


_LISTED = [path for path in _SOURCES if "cli" not in path.parts]  # there, names are commands


@pytest.mark.parametrize("path", _LISTED, ids=_name)
def test_module_lists_its_public_names(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }
    listed = next(
        (
            {ast.literal_eval(item) for item in node.value.elts}
            for node in tree.body
            if isinstance(node, ast.Assign)
            and getattr(node.targets[0], "id", "") == "__all__"
            and isinstance(node.value, ast.List)
        ),
        set(),
    )
    # What is defined without an underscore and not listed is neither public nor private.
    assert defined - listed == set()


@pytest.mark.parametrize("path", _SOURCES, ids=_name)
def test_module_is_named_for_what_it_holds(path: Path) -> None:
    assert not [part for part in _name(path).split(".") if _VAGUE.fullmatch(part)]


@pytest.mark.parametrize("path", _SOURCES, ids=_name)
def test_module_has_one_idea_and_its_functions_few_lines(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= _LONGEST_LINES.get(path.name, 400)
    handlers = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler)]
    assert all(handler.type is not None for handler in handlers), "a bare except"


def _models() -> list[type[RecipeModel]]:
    models = [plugins.recipe_type()]
    for model in models:
        for field in model.model_fields.values():
            for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
                known = part in models
                if isinstance(part, type) and issubclass(part, RecipeModel) and not known:
                    models.append(part)
    return models


@pytest.mark.parametrize("model", _models(), ids=lambda model: model.__name__)
def test_every_setting_says_in_a_sentence_what_it_does(model: type[RecipeModel]) -> None:
    said = {name: field.description or "" for name, field in model.model_fields.items()}
    assert [name for name, text in said.items() if not text.rstrip().endswith(".")] == []


# --- plug-ins


def _offer(monkeypatch: pytest.MonkeyPatch, *values: tuple[str, str]) -> None:
    points = [
        importlib.metadata.EntryPoint(name, value, "astraflow.rewards") for name, value in values
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda *, group: points)
    plugins.installed.cache_clear()


@pytest.fixture
def _plugins_as_they_were(monkeypatch: pytest.MonkeyPatch) -> object:
    yield
    monkeypatch.undo()
    plugins.installed.cache_clear()


@pytest.mark.usefixtures("_plugins_as_they_were")
def test_two_plugins_of_one_name_are_refused_and_both_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _offer(monkeypatch, ("exact", "theirs.exact:plugin"), ("exact", "ours:plugin"))
    with pytest.raises(PluginError, match="two rewards are called `exact`") as raised:
        plugins.installed("rewards")
    assert "`ours:plugin` and `theirs.exact:plugin`" in raised.value.what
    assert raised.value.exit_code == 3


@pytest.mark.usefixtures("_plugins_as_they_were")
def test_one_plugin_seen_twice_is_one_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    # an editable installation beside a wheel lists the same entry point twice
    _offer(monkeypatch, ("exact", "ours:plugin"), ("exact", "ours:plugin"))
    assert list(plugins.installed("rewards")) == ["exact"]


@pytest.mark.usefixtures("_plugins_as_they_were")
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("astraflow.absent:plugin", "does not import"),
        ("astraflow.grading:absent", "does not import"),
        ("astraflow.grading:__doc__", "is a str, not a Plugin"),
    ],
)
def test_broken_plugin_is_refused_with_its_entry_point(
    monkeypatch: pytest.MonkeyPatch, value: str, why: str
) -> None:
    _offer(monkeypatch, ("exact", value))
    with pytest.raises(PluginError, match=why) as raised:
        plugins.load_plugin("rewards", "exact")
    assert value in raised.value.what


@pytest.mark.usefixtures("_plugins_as_they_were")
def test_plugin_that_nobody_offers_lists_the_installed_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _offer(monkeypatch, ("b", "ours:b"), ("a", "ours:a"))
    with pytest.raises(PluginError) as raised:
        plugins.load_plugin("rewards", "c")
    assert raised.value.hint == "installed: a, b"


def test_missing_library_of_an_adapter_is_named_with_its_extra() -> None:
    def build() -> None:
        raise ModuleNotFoundError("no module", name="nowhere")

    plugin = plugins.Plugin(name="x", settings=RecipeModel, build=build, extra="train")
    with pytest.raises(PluginError, match="`x` needs the module `nowhere`") as raised:
        plugins.build_plugin(plugin)
    assert raised.value.hint == "`pip install 'astraflow-rl[train]'`"
