"""Load a dataset: built in, from a local folder, or through the `datasets` library."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.data.additions import additions
from astraflow.data.registry import DatasetEntry, dataset_names, find_entry
from astraflow.errors import DataError
from astraflow.recipe.schema import ColumnsSection
from astraflow.records import Prompt

__all__ = [
    "ROOT_VARIABLE",
    "PromptSet",
    "Rows",
    "answer_text",
    "check_columns",
    "find_file",
    "load_prompts",
    "open_rows",
]

ROOT_VARIABLE = "ASTRAFLOW_DATA"
_ENDINGS = (".jsonl", ".jsonl.gz", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """A loaded dataset."""

    name: str
    """As the recipe names it."""

    prompts: tuple[Prompt, ...]
    """Rows that can be used, in the file's order."""

    source: str
    """Path, hub id or ``built in``."""

    sha256: str
    """Hash over ids, problems and answers: tells one revision from another."""

    dropped: Mapping[str, int]
    """Rows left out, by cause (count)."""


def load_prompts(
    name: str,
    *,
    root: Path | None = None,
    columns: ColumnsSection | None = None,
    max_rows: int | None = None,
    offline: bool = False,
    local: bool = True,
) -> PromptSet:
    """
    Load a dataset by name or path.

    Args:
        name: A known name, or the path of a .jsonl, .jsonl.gz or .parquet file.
        root: Folder looked in first; None takes the folder that ASTRAFLOW_DATA names.
        columns: Column names of a file of one's own.
        max_rows: Use only the first rows (count).
        offline: Never ask the hub.
        local: Look into the folder at all; False always asks the hub.

    Raises:
        DataError: the set is absent, empty, of a wrong size, or a row cannot be used.
    """
    entry = find_entry(name)
    if entry is not None and entry.hub_id is None:
        prompts = additions(name, held_out=name.endswith("_test"), plain=name.startswith("sums"))
        return _finish(name, prompts, "built in", {}, None, max_rows)
    found = open_rows(name, root=root, columns=columns, offline=offline, local=local)
    kept, dropped = _prompts(found, name)
    return _finish(name, kept, found.source, dropped, entry.rows if entry else None, max_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of a dataset as they are, before any is checked."""

    rows: Iterable[Mapping[str, Any]]
    """In the file's order."""

    columns: ColumnsSection
    """Which columns hold what."""

    source: str
    """Path or hub id, with the revision."""


def open_rows(
    name: str,
    *,
    root: Path | None = None,
    columns: ColumnsSection | None = None,
    offline: bool = False,
    local: bool = True,
) -> Rows:
    """
    Find a dataset's rows: a local file first, then the hub.

    Raises:
        DataError: the set is absent.
    """
    entry = find_entry(name)
    path = find_file(name, root=root) if local else None
    if path is not None:
        chosen = columns if columns is not None and entry is None else ColumnsSection()
        return Rows(rows=_read(path), columns=chosen, source=str(path))
    if entry is None or entry.hub_id is None:
        raise DataError(
            f"`{name}` is neither a known dataset nor a file that exists",
            hint=f"known: {', '.join(dataset_names())}; or the path of a "
            f"{', '.join(_ENDINGS)} file",
        )
    chosen = ColumnsSection(problem=entry.problem, answer=entry.answer, id=None)
    source = f"{entry.hub_id}@{entry.revision}"
    return Rows(rows=_from_hub(entry, offline=offline), columns=chosen, source=source)


def find_file(name: str, *, root: Path | None) -> Path | None:
    """Return the local file of a dataset; None when there is none."""
    typed = Path(name).expanduser()
    if name.endswith(_ENDINGS):
        return typed if typed.is_file() else None
    folder = root or (Path(os.environ[ROOT_VARIABLE]) if os.environ.get(ROOT_VARIABLE) else None)
    if folder is None:
        return None
    entry = find_entry(name)
    for stem in (name, *(entry.stems if entry else ())):
        for ending in _ENDINGS:
            path = folder.expanduser() / f"{stem}{ending}"
            if path.is_file():
                return path
    return None


def _read(path: Path) -> Iterator[Mapping[str, Any]]:
    if path.name.endswith(".parquet"):
        import pyarrow.parquet

        yield from pyarrow.parquet.read_table(path).to_pylist()
        return
    opening = gzip.open if path.name.endswith(".gz") else open
    with opening(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(
                    f"line {number} is not JSON: {error.msg}", where=f"{path}:{number}"
                ) from error
            if not isinstance(row, dict):
                raise DataError("a line must hold one JSON object", where=f"{path}:{number}")
            yield row


def _from_hub(entry: DatasetEntry, *, offline: bool) -> Iterable[Mapping[str, Any]]:
    cure = (
        f"`astraflow data fetch {entry.name}` on a machine with network, or put "
        f"{entry.name}.jsonl into `data.root` (or the folder that {ROOT_VARIABLE} names)"
    )
    if offline or os.environ.get("HF_HUB_OFFLINE") == "1":
        os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    try:
        from datasets import load_dataset
    except ModuleNotFoundError as error:
        raise DataError(
            f"`{entry.name}` is not on this machine, and the `datasets` library is not installed",
            hint=f"`pip install 'astraflow-rl[train]'`, or {cure}",
        ) from error
    try:
        loaded = load_dataset(
            entry.hub_id, entry.config, split=entry.split, revision=entry.revision
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"`{entry.name}` is not on this machine and `{entry.hub_id}` cannot be had: {reason}",
            hint=cure,
        ) from error
    rows: Iterable[Mapping[str, Any]] = loaded
    return rows


def _prompts(found: Rows, name: str) -> tuple[list[Prompt], dict[str, int]]:
    """Check rows one by one: count what cannot be used, refuse what cannot be read."""
    columns, source = found.columns, found.source
    prompts: list[Prompt] = []
    dropped: dict[str, int] = {}
    problems: set[str] = set()
    for number, row in enumerate(found.rows, start=1):
        check_columns(row, columns, where=f"row {number} of `{source}`")
        problem = str(row[columns.problem] or "").strip()
        answer = answer_text(row[columns.answer], name)
        if not answer:
            raise DataError(
                f"row {number} of `{source}` has the answer {row[columns.answer]!r}, which no "
                "completion can match",
                hint="delete the row or give it an answer",
            )
        cause = "empty_problem" if not problem else "duplicate" if problem in problems else ""
        if cause:
            dropped[cause] = dropped.get(cause, 0) + 1
            continue
        problems.add(problem)
        key = row.get(columns.id) if columns.id else None
        prompts.append(
            Prompt(
                id=str(key) if key is not None else f"{Path(name).stem}-{number}",
                problem=problem,
                answer=answer,
                dataset=name,
            )
        )
    return prompts, dropped


def check_columns(row: Mapping[str, Any], columns: ColumnsSection, *, where: str) -> None:
    """
    Check that a row has the columns that are asked for.

    Raises:
        DataError: one is missing.
    """
    for column in (columns.problem, columns.answer):
        if column not in row:
            raise DataError(
                f"{where} has no column `{column}`",
                hint=f"its columns: {', '.join(row)}; map them with `data.columns`",
            )


def answer_text(value: object, name: str) -> str:
    """Turn a gold as datasets have it into text; empty when there is none."""
    if isinstance(value, list | tuple) and (len(value) == 1 or _has_lists(name)):
        return ", ".join(answer_text(item, name) for item in value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    text = str(value).strip()
    if name.startswith("gsm8k") and "####" in text:
        text = text.rsplit("####", 1)[1].strip().replace(",", "")
    return text


def _has_lists(name: str) -> bool:
    """Say whether a known set gives all values that are asked for as a list."""
    entry = find_entry(name)
    return entry is not None and entry.answer == "final_answer"


def _finish(
    name: str,
    prompts: Iterable[Prompt],
    source: str,
    dropped: Mapping[str, int],
    rows: int | None,
    max_rows: int | None,
) -> PromptSet:
    kept = tuple(prompts)
    if not kept:
        raise DataError(f"`{source}` holds no usable row", hint="see `astraflow data check`")
    if rows is not None and len(kept) != rows:
        raise DataError(
            f"`{name}` has {rows} problems, and `{source}` has {len(kept)}",
            hint="use another copy, or give the file under a name of your own",
        )
    kept = kept[:max_rows]
    digest = hashlib.sha256()
    for prompt in kept:
        digest.update(json.dumps([prompt.id, prompt.problem, prompt.answer]).encode())
    return PromptSet(
        name=name, prompts=kept, source=source, sha256=digest.hexdigest(), dropped=dict(dropped)
    )
