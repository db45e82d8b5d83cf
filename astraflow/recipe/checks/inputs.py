"""Rules on what goes in: names of plug-ins and datasets, columns, folders, prompts."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from astraflow.recipe.checks.case import Case, ignored
from astraflow.recipe.nearest import nearest
from astraflow.recipe.paths import expand_path, is_file, is_folder
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")
_LONGEST_LINE_BYTES = 1_000_000


def _names(case: Case) -> Iterator[Problem]:
    recipe, known = case.recipe, case.known
    pairs = (
        ("rollout.backend", recipe.rollout.backend, known.inference_backends),
        ("trainer.backend", recipe.trainer.backend, known.trainer_backends),
        ("workflow.name", recipe.workflow.name, known.workflows),
        ("workflow.reward", recipe.workflow.reward, known.rewards),
    )
    for path, name, names in pairs:
        if name not in names:
            yield Problem(
                what=f"`{path}` is `{name}`, and nothing of that name is installed",
                paths=(path,),
                hint=nearest(name, names),
            )


def _datasets(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    named = [("data.train", recipe.data.train)]
    named += [(f"evaluation.datasets.{i}", n) for i, n in enumerate(recipe.evaluation.datasets)]
    for path, name in named:
        if name in case.known.datasets or _is_data_file(name):
            continue
        is_path = name.endswith(_ENDINGS)
        yield Problem(
            what=f"`{path}` is `{name}`, which is "
            + ("no file on this machine" if is_path else "neither a known dataset nor a file"),
            paths=(path,),
            hint=nearest(name, case.known.datasets),
        )


def _evaluation_sets(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    seen: dict[str, str] = {}
    for index, name in enumerate(recipe.evaluation.datasets):
        path = f"evaluation.datasets.{index}"
        if name in seen:
            yield Problem(
                what=f"`evaluation.datasets` names `{name}` twice",
                paths=(seen[name], path),
                hint="take one of them out",
            )
        seen.setdefault(name, path)
        if _same(name, recipe.data.train):
            yield Problem(
                what=f"`{name}` is trained on and evaluated with, so its score says little",
                paths=(path, "data.train"),
                hint="evaluate with a set that is held out; `astraflow data list` shows them",
                severity="warning",
            )
    if recipe.data.train in case.known.held_out and recipe.data.train not in seen:
        yield Problem(
            what=f"`{recipe.data.train}` is a set for evaluation, and this run trains on it",
            paths=("data.train",),
            hint="`astraflow data list` shows the training sets",
            severity="warning",
        )


def _root(case: Case) -> Iterator[Problem]:
    root = case.recipe.data.root
    if root is None or is_folder(expand_path(root)):
        return
    there = is_file(expand_path(root))
    yield Problem(
        what=f"`data.root` is `{root}`, which is {'a file' if there else 'no folder here'}",
        paths=("data.root",),
        hint="name the folder that holds the datasets' files, or `null`",
    )


def _columns(case: Case) -> Iterator[Problem]:
    data = case.recipe.data
    columns = {key: getattr(data.columns, key) for key in ("problem", "answer", "id")}
    if data.train in case.known.datasets:
        for key in columns:
            if case.written(f"data.columns.{key}"):
                why = f"the columns of `{data.train}` are known"
                yield ignored(f"data.columns.{key}", "data.train", why)
        return
    for key, other in (("answer", "problem"), ("id", "problem"), ("id", "answer")):
        if columns[key] == columns[other]:
            yield Problem(
                what=f"`{columns[key]}` cannot be both the {other} and the {key}",
                paths=(f"data.columns.{key}", f"data.columns.{other}"),
                hint=f"name the column with the {key}",
            )
    yield from _columns_of_file(case)


def _columns_of_file(case: Case) -> Iterator[Problem]:
    """Hold the names against the first row, where that row is there and readable."""
    data = case.recipe.data
    path = expand_path(data.train)
    if not _is_data_file(data.train):
        return
    if not path.stat().st_size:
        yield Problem(what=f"`{data.train}` is empty", paths=("data.train",), hint="write rows")
        return
    row = _first_row(path)
    if row is None:
        return
    for key in ("problem", "answer"):
        name = getattr(data.columns, key)
        if name not in row:
            yield Problem(
                what=f"the first row of `{data.train}` has no column `{name}` for the {key}",
                paths=(f"data.columns.{key}", "data.train"),
                hint=nearest(name, row),
            )


def _stop(case: Case) -> Iterator[Problem]:
    workflow = case.recipe.workflow
    for index, text in enumerate(workflow.stop):
        if not text or text in workflow.stop[:index]:
            yield Problem(
                what="`workflow.stop` holds an empty text"
                if not text
                else f"`workflow.stop` names {json.dumps(text)} twice",
                paths=(f"workflow.stop.{index}",),
                hint="take it out",
            )


def _chat(case: Case) -> Iterator[Problem]:
    workflow = case.recipe.workflow
    if case.recipe.model.thinking and not workflow.chat:
        why = "only a chat template can ask for a thinking block"
        yield ignored("model.thinking", "workflow.chat", why)
    template = case.facts is not None and case.facts.has_chat_template
    if template and not workflow.chat and not workflow.examples:
        yield Problem(
            what=f"`{case.recipe.model.path}` was trained to chat and is asked in plain text, "
            "without an example",
            paths=("workflow.chat", "workflow.examples", "model.path"),
            hint="delete `workflow.chat`, or put solved problems into `workflow.examples`",
            severity="warning",
        )
    if workflow.chat and case.recipe.data.train in case.known.plain:
        yield Problem(
            what=f"the problems of `{case.recipe.data.train}` are lines to go on with, and a chat "
            "template makes messages of them",
            paths=("data.train", "workflow.chat"),
            hint="set `workflow.chat` to false, or train on `additions`",
            severity="warning",
        )


def _asking(case: Case) -> Iterator[Problem]:
    workflow = case.recipe.workflow
    asked = f"{workflow.instruction}{workflow.examples}"
    if workflow.answer == "boxed" and r"\boxed" not in asked:
        yield Problem(
            what=r"only an answer in \boxed{} is paid, and no prompt asks for one",
            paths=("workflow.answer", "workflow.instruction"),
            hint=r"ask for it in `workflow.instruction`, or set `workflow.answer` to `any`",
            severity="warning",
        )


def _rows(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    prompts = recipe.trainer.batch_size // recipe.rollout.samples_per_prompt
    there = case.known.rows.get(recipe.data.train)
    rows = min((n for n in (recipe.data.max_rows, there) if n is not None), default=None)
    if rows is not None and rows < prompts:
        yield Problem(
            what=f"a batch takes {prompts} prompts and {rows} rows are used, so each batch holds "
            "some prompts more than once",
            paths=("data.max_rows", "trainer.batch_size", "data.train"),
            hint=f"use at least {prompts} rows, or a smaller `trainer.batch_size`",
            severity="warning",
        )


RULES = (_names, _datasets, _evaluation_sets, _root, _columns, _stop, _chat, _asking, _rows)


def _is_data_file(name: str) -> bool:
    return name.endswith(_ENDINGS) and is_file(expand_path(name))


def _same(name: str, other: str) -> bool:
    if name == other:
        return True
    if not (_is_data_file(name) and _is_data_file(other)):
        return False
    return os.path.samefile(expand_path(name), expand_path(other))


def _first_row(path: Path) -> list[str] | None:
    """Return the first row's columns; None where only the loader can tell."""
    if path.suffix == ".parquet":
        return None
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            row = json.loads(file.readline(_LONGEST_LINE_BYTES))
    except (OSError, EOFError, zlib.error, ValueError):
        return None  # `astraflow data check` says what is wrong with which row
    return list(row) if isinstance(row, dict) else None
