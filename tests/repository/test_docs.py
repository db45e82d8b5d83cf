"""The pages say only what exists: commands, options, paths, names of tests, SQL, the example."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from astraflow.cli.main import app, register
from astraflow.dataflow.store import Store
from astraflow.grading import GradeRequest
from astraflow.records import Outcome

_ROOT = Path(__file__).parents[2]
_PAGES = [
    _ROOT / "README.md",
    _ROOT / "recipes" / "README.md",
    *sorted((_ROOT / "docs").rglob("*.md")),
]
_FOLDERS = ("astraflow", "backends", "recipes", "docs", "tests", ".ci")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)

pages = pytest.mark.parametrize("page", _PAGES, ids=lambda p: str(p.relative_to(_ROOT)))


def _fences(page: Path, language: str) -> list[str]:
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [content for kind, content in found if kind == language]


def _code(page: Path) -> Iterator[str]:
    """Yield each line of code blocks, and each piece of code inside a sentence."""
    text = page.read_text(encoding="utf-8")
    for _, content in _FENCE.findall(text):
        yield from content.splitlines()
    for span in re.findall(r"`([^`]+)`", _FENCE.sub("", text)):
        yield " ".join(span.split())


def _commands() -> Any:
    register()
    return typer.main.get_command(app)


def _what_is_wrong(words: list[str], command: Any) -> str:
    """Walk the words after `astraflow` down the tree of commands; empty when all exist."""
    while words and getattr(command, "commands", None):
        name, *words = words
        if not re.fullmatch(r"[a-z]+", name):
            return ""  # a placeholder, or an option of `astraflow` itself
        if name not in command.commands:
            return f"no command `{name}`"
        command = command.commands[name]
    known = {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    unknown = [w for w in words if re.fullmatch(r"--[a-z-]+", w) and w not in known]
    return f"no option {unknown} of `{command.name}`" if unknown else ""


@pages
def test_commands_and_options_on_a_page_exist(page: Path) -> None:
    root = _commands()
    wrong = [
        f"{line}: {why}"
        for line in _code(page)
        if (found := re.match(r"(?:\$ )?astraflow ([^#|&]+)", line))
        and (why := _what_is_wrong(found[1].split(), root))
    ]
    assert wrong == []


@pages
def test_make_targets_on_a_page_exist(page: Path) -> None:
    makefile = (_ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [found[1] for line in _code(page) if (found := re.match(r"make ([a-z]+)", line))]
    assert [t for t in targets if not re.search(rf"^{t}:", makefile, re.MULTILINE)] == []


@pages
def test_paths_on_a_page_exist(page: Path) -> None:
    start = "|".join(map(re.escape, _FOLDERS))
    named = [
        path
        for piece in _code(page)
        for path in re.findall(rf"(?<![\w./-])((?:{start})/[\w./-]*\w)", piece)
    ]
    assert [path for path in named if not (_ROOT / path).exists()] == []


@pages
def test_modules_on_a_page_exist(page: Path) -> None:
    groups = {f"astraflow.{kind}" for kind in ("workflows", "rewards")}
    groups |= {f"astraflow.{side}_backends" for side in ("inference", "trainer")}
    assert groups <= set(entry_points().groups)
    named = {
        name
        for piece in _code(page)
        for name in re.findall(r"(?<![\w./-])astraflow(?:\.\w+)+", piece)
        if name not in groups and "." + name.rsplit(".", 1)[1] not in (".yaml", ".md")
    }
    assert [name for name in sorted(named) if not _importable(name)] == []


@pages
def test_links_to_a_heading_find_it(page: Path) -> None:
    missing = []
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8")):
        text = (page.parent / target if target else page).read_text(encoding="utf-8")
        headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", text), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
        if anchor not in slugs:
            missing.append(f"{target}#{anchor}")
    assert missing == []


def test_tests_that_algorithms_names_exist() -> None:
    text = (_ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\btest_\w+\b(?!\.py)", text))
    files = (_ROOT / "tests" / "unit").glob("*.py")
    defined = {
        name
        for file in files
        for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text("utf-8"), re.MULTILINE)
    }
    assert len(named) > 30
    assert named - defined == set()


def test_sql_of_operations_runs_on_a_store(tmp_path: Path) -> None:
    (sql,) = _fences(_ROOT / "docs" / "operations.md", "sql")
    Store(tmp_path / "rollouts.sqlite").close()
    db = sqlite3.connect(tmp_path / "rollouts.sqlite")
    statements = [part for part in sql.split(";") if "SELECT" in part]
    assert len(statements) == 5
    for statement in statements:
        assert db.execute(statement).description
    db.close()


async def test_reward_of_backends_pays_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _fences(_ROOT / "docs" / "backends.md", "python")[0]
    assert source.startswith("# my_rewards.py")
    (tmp_path / "my_rewards.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)
    import my_rewards

    reward = my_rewards.plugin.build(workers=1, timeout_s=1.0, answer="boxed")
    requests = [GradeRequest(gold="7", completion=text) for text in ("it is 7 ", "it is 8")]
    results = await reward.grade(requests)
    assert [(r.outcome, r.reward) for r in results] == [(Outcome.RIGHT, 1.0), (Outcome.WRONG, 0.0)]
    await reward.close()


def _importable(name: str) -> bool:
    """Tell whether a dotted name is a module, or stands in one."""
    parent, _, last = name.rpartition(".")
    if find_spec(parent) is None:
        return False
    module = import_module(parent)
    return hasattr(module, last) or (hasattr(module, "__path__") and find_spec(name) is not None)
