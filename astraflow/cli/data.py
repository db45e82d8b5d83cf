"""`astraflow data`: known datasets, their local files, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from astraflow.data.inspection import Inspection

__all__ = ["data_app"]

data_app = typer.Typer(help="List, fetch and check datasets.", no_args_is_help=True)

Root = Annotated[
    Path | None, typer.Option(help="Folder with local datasets.", envvar="ASTRAFLOW_DATA")
]
_SHOWN = 10

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@data_app.command(name="list")
def list_(root: Root = None, json: Json = False) -> None:
    """List the known datasets: where they come from, and whether they are on this machine."""
    from rich.table import Table

    from astraflow.cli.console import data_console, print_json
    from astraflow.data import dataset_names, find_entry
    from astraflow.data.load import find_file

    rows = []
    for name in dataset_names():
        entry = find_entry(name)
        assert entry is not None
        path = find_file(name, root=root)
        rows.append(
            {
                "name": name,
                "about": entry.about,
                "hub_id": entry.hub_id,
                "revision": entry.revision,
                "rows": entry.rows,
                "training": entry.training,
                "prompt_style": entry.prompt_style,
                "license": entry.license,
                "local": "built in" if entry.hub_id is None else str(path) if path else None,
            }
        )
    if json:
        print_json(rows)
        return
    table = Table("name", "about", "hub id", "license", "on this machine", box=None)
    for row in rows:
        cells = (row["name"], row["about"], row["hub_id"], row["license"], row["local"])
        table.add_row(*(str(cell) if cell else "-" for cell in cells))
    data_console.print(table)


@data_app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(help="Known datasets.")],
    root: Annotated[Path, typer.Option(help="Folder to fill.", envvar="ASTRAFLOW_DATA")],
) -> None:
    """Fetch datasets into a local folder, for a cluster without network."""
    from astraflow.cli.console import say
    from astraflow.data import load_prompts
    from astraflow.data.fetching import write_prompts

    root.mkdir(parents=True, exist_ok=True)
    for name in names:
        loaded = load_prompts(name, local=False)
        path = write_prompts(loaded, root)
        say(f"{name}: {len(loaded.prompts)} rows to {path}, sha256 {loaded.sha256[:16]}")


@data_app.command()
def check(
    names: Annotated[list[str], typer.Argument(help="Known datasets, or paths of files.")],
    root: Root = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Evaluation set to look for overlap with; may be repeated. Training sets are "
            "also compared with the evaluation sets that are checked with them."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub id of a tokenizer: prompts are then counted in its tokens, "
            "template and instruction included, and in characters otherwise."
        ),
    ] = None,
    golds: Annotated[
        bool, typer.Option(help="Also check that every gold verifies against itself.")
    ] = True,
    json: Json = False,
) -> None:
    """Count rows, duplicates, golds that do not parse, prompt lengths, overlap in 8-word runs."""
    from astraflow.cli.console import print_json
    from astraflow.data.inspection import inspect_dataset

    length = _length_of(tokenizer)
    found = {name: inspect_dataset(name, root=root) for name in (*names, *(against or ()))}
    reports = []
    for name in dict.fromkeys(names):
        report = _report(found[name], golds=golds, length=length)
        others = [other for other in found if _compares(name, other, against or [])]
        report["overlap"] = {other: _overlap(found[name], found[other]) for other in others}
        reports.append(report)
    if json:
        print_json(reports)
        return
    for report in reports:
        _print(report)


def _length_of(tokenizer: str | None) -> tuple[str, Callable[[str], int]]:
    """Return the unit of lengths and what measures them."""
    if tokenizer is None:
        return "characters", len
    from astraflow.data.chat import PromptRenderer, load_tokenizer
    from astraflow.recipe.schema import WorkflowSection

    renderer = PromptRenderer(load_tokenizer(tokenizer), model=tokenizer)
    instruction = WorkflowSection().instruction
    return "tokens", lambda text: len(
        renderer.render(text, instruction=instruction, thinking=False)
    )


def _compares(name: str, other: str, against: list[str]) -> bool:
    from astraflow.data import find_entry

    entry, beside = find_entry(name), find_entry(other)
    if name == other or (beside is not None and beside.training):
        return False
    return other in against or (entry is not None and entry.training)


def _overlap(train: Inspection, evaluation: Inspection) -> dict[str, Any]:
    from astraflow.data.overlap import shared_problems

    shared = shared_problems(train.prompts, evaluation.prompts)
    return {"problems": len(shared), "ids": shared[:_SHOWN]}


def _report(
    found: Inspection, *, golds: bool, length: tuple[str, Callable[[str], int]]
) -> dict[str, Any]:
    from dataclasses import asdict

    from astraflow.data import find_entry
    from astraflow.data.inspection import measure_lengths
    from astraflow.grading import unverified_golds

    entry = find_entry(found.name)
    unit, measure = length
    report: dict[str, Any] = {
        "name": found.name,
        "source": found.source,
        "license": entry.license if entry else None,
        "rows": found.rows,
        "expected_rows": found.expected_rows,
        "usable": len(found.prompts),
        "empty_problems": _rows(found.empty_problems),
        "empty_answers": _rows(found.empty_answers),
        "duplicates": _rows(found.duplicates),
        "same_problem_other_answer": _rows(found.contradictions),
    }
    if golds:
        bad = unverified_golds({p.id: p.answer for p in found.prompts}, workers=2)
        texts = {p.id: p.answer for p in found.prompts}
        report["golds_that_do_not_verify"] = {
            "problems": len(bad),
            "golds": {key: texts[key] for key in list(bad)[:_SHOWN]},
        }
    if found.prompts:
        report["prompt_length"] = asdict(measure_lengths(found.prompts, unit=unit, length=measure))
    return report


def _rows(numbers: list[int]) -> dict[str, Any]:
    return {"problems": len(numbers), "rows": numbers[:_SHOWN]}


def _print(report: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from astraflow.cli.console import data_console

    table = Table("check", "found", box=None, title=report["name"], title_justify="left")
    for key, value in report.items():
        if key == "overlap":
            for other, shared in value.items():
                table.add_row(f"overlap with {other}", Text(_shown(shared)))
        elif key == "prompt_length":
            table.add_row(f"prompt length in {value['unit']}", Text(_shown_lengths(value)))
        elif key not in ("name", "expected_rows"):
            table.add_row(key.replace("_", " "), Text(_shown(value)))
    data_console.print(table)


def _shown(value: Any) -> str:
    if not isinstance(value, dict):
        return "-" if value is None else str(value)
    details = next((value[key] for key in ("rows", "ids", "golds") if value.get(key)), None)
    if isinstance(details, dict):
        details = [f"{key} {gold[:40]!r}" for key, gold in details.items()]
    rest = f" ({', '.join(map(str, details))})" if details else ""
    return f"{value['problems']}{rest}"


def _shown_lengths(lengths: dict[str, Any]) -> str:
    bars = ", ".join(f"{label}: {count}" for label, count in lengths["histogram"].items() if count)
    return f"median {lengths['median']}, longest {lengths['longest']}; {bars}"
