"""`astraflow bench ...`: measurements that anybody can repeat."""

from __future__ import annotations

from typing import Annotated, Any

import typer

__all__ = ["bench_app"]

bench_app = typer.Typer(
    help="Measure this machine: weight transfer, and more.", no_args_is_help=True
)


@bench_app.command()
def weights(
    model: Annotated[
        str | None, typer.Option(help="Shapes of this model: a hub id or a folder.")
    ] = None,
    params: Annotated[
        int, typer.Option(help="Weights when no model is named (count).", min=1000)
    ] = 200_000_000,
    changed: Annotated[
        float, typer.Option(help="Share of weights that a version changes.", min=1e-6, max=1.0)
    ] = 0.01,
    rounds: Annotated[int, typer.Option(help="Versions of each kind (count).", min=1)] = 5,
    device: Annotated[
        str, typer.Option(help="`cpu`, `cuda`, or `auto`: a GPU if there is one.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Of the weights and their changes.")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
) -> None:
    """Time a version from diff to proved: delta, full, and the plain way in the same run."""
    import torch

    from astraflow.bench.weights import measure_weights
    from astraflow.cli.console import print_json
    from astraflow.errors import RecipeError

    if device not in ("auto", "cpu", "cuda"):
        raise RecipeError(f"`--device` is `{device}`", hint="`auto`, `cpu` or `cuda`")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    figures = measure_weights(
        model=model, params=params, changed=changed, rounds=rounds, device=device, seed=seed
    )
    if json:
        print_json(figures)
    else:
        _print_weights(figures)


def _print_weights(figures: dict[str, Any]) -> None:
    from rich.table import Table

    from astraflow.cli.console import data_console

    data_console.print(
        f"{figures['params']:,} bfloat16 weights in {figures['tensors']} tensors on "
        f"{figures['device']}, {figures['changed_frac']:.2%} changed a version"
    )
    stages = Table("way", "publish", "encode", "fetch", "apply+prove", "total", "sent", box=None)
    for way in ("delta", "full"):
        rows = sorted(figures[f"{way}_rounds"], key=lambda row: row["total_s"])
        row = rows[len(rows) // 2]
        times = [row[f"{stage}_s"] for stage in ("publish", "encode", "fetch", "apply", "total")]
        stages.add_row(way, *(f"{t * 1000:.1f} ms" for t in times), f"{row['wire_bytes']:,} B")
    rows = sorted(figures["plain_rounds"], key=lambda row: row["total_s"])
    row = rows[len(rows) // 2]
    stages.add_row(
        "plain",
        f"{row['compare_s'] * 1000:.1f} ms",
        "",
        f"{row['send_s'] * 1000:.1f} ms",
        f"{(row['rewrite_s'] + row['reload_s']) * 1000:.1f} ms",
        f"{row['total_s'] * 1000:.1f} ms",
        f"{row['wire_bytes']:,.0f} B",
    )
    data_console.print(stages)
    sizes = Table("encoding", "bytes a changed weight", box=None)
    for name, size in figures["bytes_per_changed"].items():
        sizes.add_row(name, f"{size:.2f}")
    data_console.print(sizes)
    data_console.print(
        f"delta is {figures['faster_than_full']:.1f} times as fast as full and "
        f"{figures['faster_than_plain']:.1f} times as fast as the plain way; hashing all weights "
        f"takes {figures['hash_s'] * 1000:.1f} ms"
    )
