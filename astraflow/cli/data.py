"""`astraflow data`: known datasets, their local files, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["data_app"]

data_app = typer.Typer(help="List, fetch and check datasets.", no_args_is_help=True)

Root = Annotated[
    Path | None, typer.Option(help="Folder with local datasets.", envvar="ASTRAFLOW_DATA")
]
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
                "license": entry.license,
                "local": "built in" if entry.hub_id is None else str(path) if path else None,
            }
        )
    if json:
        print_json(rows)
        return
    table = Table("name", "about", "hub id", "licence", "on this machine", box=None)
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
    import json

    from astraflow.cli.console import say
    from astraflow.data import load_prompts

    root.mkdir(parents=True, exist_ok=True)
    for name in names:
        loaded = load_prompts(name)
        path = root / f"{name}.jsonl"
        scratch = path.with_suffix(".tmp")
        with scratch.open("w", encoding="utf-8") as file:
            for prompt in loaded.prompts:
                row = {"id": prompt.id, "problem": prompt.problem, "answer": prompt.answer}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        scratch.rename(path)
        say(f"{name}: {len(loaded.prompts)} rows to {path}, sha256 {loaded.sha256[:16]}")


@data_app.command()
def check(
    names: Annotated[list[str], typer.Argument(help="Known datasets, or paths of files.")],
    root: Root = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Evaluation set to look for overlap with; may be repeated."),
    ] = None,
    golds: Annotated[bool, typer.Option(help="Also check that every gold can be read.")] = True,
    json: Json = False,
) -> None:
    """Count rows, duplicates, unreadable golds, prompt lengths and overlap with evaluation sets."""
    from rich.table import Table

    from astraflow.cli.console import data_console, print_json

    reports = [_report(name, root, against or [], golds=golds) for name in names]
    if json:
        print_json(reports)
        return
    for report in reports:
        table = Table("check", "found", box=None, title=report["name"], title_justify="left")
        for key, value in report.items():
            if key != "name":
                table.add_row(key, str(value))
        data_console.print(table)


def _report(name: str, root: Path | None, against: list[str], *, golds: bool) -> dict[str, Any]:
    from astraflow.data import load_prompts
    from astraflow.data.overlap import shared_problems, word_histogram
    from astraflow.grading import check_gold

    loaded = load_prompts(name, root=root)
    report: dict[str, Any] = {
        "name": name,
        "source": loaded.source,
        "sha256": loaded.sha256,
        "rows": len(loaded.prompts),
        "dropped": dict(loaded.dropped),
        "prompt_words": word_histogram(loaded.prompts),
    }
    if golds:
        unreadable = [p.id for p in loaded.prompts if not check_gold(p.answer)]
        report["unreadable_golds"] = len(unreadable)
        report["unreadable_gold_ids"] = unreadable[:20]
    for other in against:
        found = shared_problems(loaded.prompts, load_prompts(other, root=root).prompts)
        report[f"overlap_with_{other}"] = len(found)
    return report
