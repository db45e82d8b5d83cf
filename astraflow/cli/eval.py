"""`astraflow eval MODEL|RUN`: score any checkpoint on datasets, resumable, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from astraflow.evaluation import EvaluationPlan
    from astraflow.evaluation.comparing import Saved

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="HF folder, hub id, `builtin:tiny`, or a run folder[@step]; with `--compare` and "
            "without `--datasets` also an evaluation's folder."
        ),
    ],
    datasets: Annotated[
        str | None, typer.Option(help="Known datasets or files, joined by commas.")
    ] = None,
    samples: Annotated[int, typer.Option(help="Answers per problem (count).", min=1)] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0.0, max=2.0)] = 0.6,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer (tokens).", min=1)] = 4000,
    max_rows: Annotated[
        int | None, typer.Option(help="Only the first rows of each dataset (count).", min=1)
    ] = None,
    backend: Annotated[str, typer.Option(help="Inference adapter.")] = "transformers",
    settings: Annotated[
        str,
        typer.Option(help="The adapter's settings as JSON, as in its section of a recipe."),
    ] = "{}",
    gpus: Annotated[int, typer.Option(help="GPUs; 0 uses the CPU (count).", min=0)] = 0,
    dtype: Annotated[
        str | None,
        typer.Option(help="`float32` or `bfloat16`; by default the first on the CPU."),
    ] = None,
    reproducible: Annotated[
        bool,
        typer.Option(
            help="Decode each problem alone, so that an evaluation that was continued gives the "
            "very same table; slower."
        ),
    ] = False,
    thinking: Annotated[bool, typer.Option(help="Let the template open a thinking block.")] = False,
    answer: Annotated[str, typer.Option(help="`boxed` or `any`.")] = "boxed",
    instruction: Annotated[
        str | None, typer.Option(help="Put after each problem; the recipe default when not given.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder with local datasets.", envvar="ASTRAFLOW_DATA")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for generations and results; resumed if it exists.")
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="Earlier evaluation to compare with, paired: its folder, or RUN[@version]."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples and of the bootstrap.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """
    Sample, grade and score: avg@k, pass@k and maj@k with 95 % intervals over problems.

    `astraflow eval --compare A B` only compares two evaluations that are there already.
    """
    from astraflow.cli.console import say
    from astraflow.cli.settings import parse_settings
    from astraflow.errors import RecipeError
    from astraflow.evaluation import EvaluationPlan, find_saved

    before = None if compare is None else _saved(compare)
    if datasets is None:
        after = find_saved(model) if before is not None else None
        if before is None or after is None:
            raise RecipeError(
                f"nothing says on what `{model}` is to be evaluated",
                hint="`--datasets math500,aime24`, or an evaluation's folder with `--compare`",
            )
        _show({"compared": _compared(before, after, seed)}, json=json, markdown=markdown)
        return
    folder = out or Path("evals") / Path(model.rstrip("/")).name.replace("@", "-step-")
    checkpoint, version = _checkpoint(model, folder)
    plan = EvaluationPlan(
        model=checkpoint,
        version=version,
        label=model,
        datasets=tuple(name.strip() for name in datasets.split(",") if name.strip()),
        samples=samples,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        max_rows=max_rows,
        backend=backend,
        gpus=gpus,
        # rounded to bfloat16, answers depend on which others are in the batch
        dtype=dtype or ("bfloat16" if gpus else "float32"),
        reproducible=reproducible,
        thinking=thinking,
        answer=answer,
        instruction=instruction,
        root=root,
        seed=seed,
        settings=parse_settings(settings),
    )
    results = _run(plan, folder)
    if before is not None:
        results["compared"] = _compared(before, _saved(str(folder)), seed)
    _show(results, json=json, markdown=markdown)
    say(f"generations and results: {folder}")


def _run(plan: EvaluationPlan, folder: Path) -> dict[str, Any]:
    import logging

    from astraflow.cli.bars import show_progress
    from astraflow.evaluation import run_evaluation

    # golds that can pay nobody are a warning of the grader
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    return run_evaluation(plan, folder, progress=show_progress)


def _saved(target: str) -> Saved:
    from astraflow.errors import RecipeError
    from astraflow.evaluation import find_saved

    found = find_saved(target)
    if found is None:
        raise RecipeError(
            f"`{target}` is neither the folder of an evaluation nor a run with one",
            hint="evaluate it first: `astraflow eval MODEL --datasets ... --out FOLDER`",
        )
    return found


def _checkpoint(model: str, folder: Path) -> tuple[str, int]:
    """Return what an adapter loads and its step; a run's checkpoint is exported first."""
    from astraflow.cli.export import export_checkpoint
    from astraflow.recipe.models import local_path
    from astraflow.trainer.checkpoints import find_checkpoint

    path, _, step = model.partition("@")
    run = Path(path)
    if not (run / "recipe.json").is_file():
        return local_path(model), 0
    checkpoint = find_checkpoint(run / "checkpoints", step=_step(step, model))
    exported = folder / f"model-step-{checkpoint.step:06d}"
    if not exported.exists():
        folder.mkdir(parents=True, exist_ok=True)
        export_checkpoint(run, step=checkpoint.step, out=exported)
    return str(exported), checkpoint.step


def _step(text: str, model: str) -> int | None:
    from astraflow.errors import RecipeError

    if text and not text.isdigit():
        raise RecipeError(f"`{text}` of `{model}` is no step", hint="runs/quickstart/latest@190")
    return int(text) if text else None


def _compared(before: Saved, after: Saved, seed: int) -> dict[str, Any]:
    from astraflow.evaluation import compare_saved

    datasets = compare_saved(before, after, seed=seed)
    return {"before": before.label, "after": after.label, "datasets": datasets}


def _show(results: dict[str, Any], *, json: bool, markdown: bool) -> None:
    import sys

    from astraflow.cli.console import print_json
    from astraflow.evaluation import to_markdown

    if json:
        print_json(results)
    elif markdown:
        sys.stdout.write(to_markdown(results))
    else:
        _print_tables(results)


def _print_tables(results: dict[str, Any]) -> None:
    from rich.table import Table

    from astraflow.cli.console import data_console
    from astraflow.evaluation.markdown import COLUMNS, as_percent, cells

    if "datasets" in results:
        names = [column.format(k=results["samples"]) for column in COLUMNS]
        table = Table(*names, box=None, title=results["label"], title_justify="left")
        for name, row in results["datasets"].items():
            table.add_row(*cells(name, row))
        data_console.print(table)
        for name, row in results["datasets"].items():
            for reason, count in row["failures"].items():
                data_console.print(f"{name}: {count} failed: {reason}", markup=False)
    compared = results.get("compared")
    if compared:
        data_console.print(f"{compared['after']} minus {compared['before']}, paired:", markup=False)
        for name, row in compared["datasets"].items():
            data_console.print(f"  {name}, {row['problems']} problems: {as_percent(row)}")
