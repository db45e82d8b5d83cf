"""`astraflow eval MODEL|RUN`: score any checkpoint on datasets, resumable, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from astraflow.grading.statistics import Interval, Problem

__all__ = ["evaluate"]


def evaluate(
    model: Annotated[
        str, typer.Argument(help="HF folder, hub id, `builtin:tiny`, or a run folder[@step].")
    ],
    datasets: Annotated[str, typer.Option(help="Known datasets or files, joined by commas.")],
    samples: Annotated[int, typer.Option(help="Answers per problem (count).", min=1)] = 1,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0.0, max=2.0)] = 0.6,
    max_new_tokens: Annotated[int, typer.Option(help="Longest answer (tokens).", min=1)] = 4000,
    max_rows: Annotated[
        int | None, typer.Option(help="Only the first rows of each dataset (count).", min=1)
    ] = None,
    backend: Annotated[str, typer.Option(help="Inference adapter.")] = "transformers",
    gpus: Annotated[int, typer.Option(help="GPUs; 0 uses the CPU (count).", min=0)] = 0,
    dtype: Annotated[str, typer.Option(help="`float32` or `bfloat16`.")] = "bfloat16",
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
        Path | None, typer.Option(help="Results folder of another evaluation to compare with.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples and of the bootstrap.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Sample, grade and score: avg@k, pass@k and maj@k with 95 % intervals over problems."""
    from astraflow.cli.console import print_json, say
    from astraflow.evaluation import EvaluationPlan, run_evaluation

    folder = out or Path("evals") / Path(model.rstrip("/")).name.replace("@", "-step-")
    checkpoint = _checkpoint(model, folder)
    plan = EvaluationPlan(
        model=checkpoint,
        label=model,
        datasets=tuple(name for name in datasets.split(",") if name),
        samples=samples,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        max_rows=max_rows,
        backend=backend,
        gpus=gpus,
        dtype=dtype,
        thinking=thinking,
        answer=answer,
        instruction=instruction,
        root=root,
        seed=seed,
    )
    results = run_evaluation(plan, folder, progress=_progress)
    if compare is not None:
        results["compared"] = _compared(compare, folder, seed)
    if json:
        print_json(results)
    else:
        _print_tables(results)
    say(f"generations and results: {folder}")


def _checkpoint(model: str, folder: Path) -> str:
    """Return a folder or hub id that an adapter loads; a run's checkpoint is exported first."""
    from astraflow.cli.export import export_checkpoint
    from astraflow.recipe.models import local_path

    path, _, step = model.partition("@")
    run = Path(path)
    if not (run / "recipe.json").is_file():
        return local_path(model)
    exported = folder / (f"model-step-{int(step):06d}" if step else "model-newest")
    if not exported.exists():
        folder.mkdir(parents=True, exist_ok=True)
        export_checkpoint(run, step=int(step) if step else None, out=exported)
    return str(exported)


def _progress(dataset: str, total: int) -> Any:
    from rich.progress import Progress

    from astraflow.cli.console import talk_console

    progress = Progress(console=talk_console, transient=True)
    progress.add_task(dataset, total=total)
    return progress


def _compared(other: Path, folder: Path, seed: int) -> dict[str, dict[str, float]]:
    from astraflow.evaluation import read_problems
    from astraflow.grading.statistics import compare

    before, after = read_problems(other), read_problems(folder)
    shared: dict[str, tuple[list[Problem], list[Problem]]] = {
        name: (before[name], after[name]) for name in after if name in before
    }
    return {name: _interval(compare(a, b, seed=seed)) for name, (a, b) in shared.items()}


def _interval(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _print_tables(results: dict[str, Any]) -> None:
    from rich.table import Table

    from astraflow.cli.console import data_console

    k = results["samples"]
    table = Table(
        "dataset", "problems", f"avg@{k}", f"pass@{k}", f"maj@{k}", "truncated", "no answer",
        "failed", "tokens", box=None, title=results["label"], title_justify="left",
    )  # fmt: skip
    for name, row in results["datasets"].items():
        table.add_row(
            name,
            str(row["problems"]),
            *(_shown(row[key]) for key in ("avg_at_k", "pass_at_k", "maj_at_k")),
            f"{row['truncated_frac'] * 100:.1f} %",
            f"{row['no_answer_frac'] * 100:.1f} %",
            str(row["failed"]),
            f"{row['answer_tokens_mean']:.0f}",
        )
    data_console.print(table)
    for name, difference in results.get("compared", {}).items():
        data_console.print(f"{name}: this minus the other, paired: {_shown(difference)}")


def _shown(interval: dict[str, float]) -> str:
    value, low, high = (interval[key] * 100 for key in ("value", "low", "high"))
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"
