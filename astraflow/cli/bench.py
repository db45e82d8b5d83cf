"""`astraflow bench ...`: measurements that anybody can repeat."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from astraflow.cli.bench_grading import grading

__all__ = ["bench_app"]

bench_app = typer.Typer(
    help="Measure this machine: weight transfer, and more.", no_args_is_help=True
)


bench_app.command()(grading)


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


@bench_app.command()
def trainer(
    model: Annotated[
        str, typer.Option(help="A folder with weights, or a known hub id (random weights).")
    ] = "Qwen/Qwen3-1.7B",
    tokens: Annotated[int, typer.Option(help="Tokens of the micro-batch.", min=64)] = 16384,
    longest: Annotated[int, typer.Option(help="Longest sequence in it (tokens).", min=8)] = 4096,
    steps: Annotated[int, typer.Option(help="Steps measured (count).", min=1)] = 10,
    checkpointing: Annotated[
        str, typer.Option(help="Layers computed again in the backward pass: `all`, `half`, `none`.")
    ] = "half",
    compile_layers: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile each decoder layer.")
    ] = True,
    attention: Annotated[str, typer.Option(help="As `trainer.fsdp.attention`.")] = "auto",
    reshard: Annotated[bool, typer.Option(help="As `trainer.fsdp.reshard_after_forward`.")] = True,
    master_dtype: Annotated[str, typer.Option(help="`float32` or `bfloat16`.")] = "float32",
    json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
) -> None:
    """Time whole optimizer steps of one rank: tokens/s, share of peak, peak memory."""
    import torch

    from astraflow.bench.trainer import measure_trainer
    from astraflow.cli.console import data_console, print_json
    from astraflow.errors import RecipeError

    chosen = {"all": True, "half": "half", "none": False}
    if checkpointing not in chosen:
        raise RecipeError(f"`--checkpointing` is `{checkpointing}`", hint="`all`, `half`, `none`")
    figures = measure_trainer(
        model=model,
        settings={
            "gradient_checkpointing": chosen[checkpointing],
            "compile": compile_layers,
            "attention": attention,
            "reshard_after_forward": reshard,
        },
        tokens=tokens,
        longest=longest,
        steps=steps,
        master_dtype=master_dtype,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    if json:
        print_json(figures)
        return
    share = f", {figures['peak_frac']:.1%} of peak" if figures["peak_frac"] else ""
    memory = figures["peak_memory_bytes"]
    held = f", {memory / 2**30:.1f} GiB at most" if memory else ""
    data_console.print(
        f"{model} on {figures['device']}: {figures['tokens_per_s']:,.0f} tokens/s, "
        f"{figures['step_s'] * 1000:.0f} ms a step of {tokens} tokens{share}{held}"
    )
    data_console.print(f"share of peak: {figures['formula']}")


@bench_app.command()
def swaps(
    model: Annotated[
        str, typer.Option(help="A folder with weights, or a known hub id (random weights).")
    ] = "Qwen/Qwen3-1.7B",
    backend: Annotated[str, typer.Option(help="Name of an inference adapter.")] = "sglang",
    concurrent: Annotated[int, typer.Option(help="Requests in flight (count).", min=1)] = 192,
    answer_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=1)] = 512,
    number: Annotated[int, typer.Option(help="Versions installed (count).", min=2)] = 50,
    every_s: Annotated[float, typer.Option(help="From one version to the next (s).")] = 1.0,
    changed: Annotated[float, typer.Option(help="Share of weights that change.")] = 0.01,
    mode: Annotated[str, typer.Option(help="`delta` or `full`.")] = "delta",
    settings: Annotated[
        str, typer.Option(help="The adapter's settings as JSON.")
    ] = '{"mem_fraction_static": 0.4, "max_running_requests": 256}',
    json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
) -> None:
    """Swap versions under load: how long sampling stands still, what is lost."""
    from astraflow.bench.swaps import run_swaps
    from astraflow.cli.console import data_console, print_json
    from astraflow.cli.settings import parse_settings

    figures = run_swaps(
        model=model,
        backend=backend,
        settings=parse_settings(settings),
        concurrent=concurrent,
        answer_tokens=answer_tokens,
        swaps=number,
        every_s=every_s,
        changed=changed,
        mode=mode,
    )
    if json:
        print_json(figures)
        return
    for name, value in figures.items():
        if not isinstance(value, list):
            data_console.print(
                f"{name:32} {value:.4g}" if isinstance(value, float) else f"{name:32} {value}"
            )


@bench_app.command()
def rollout(
    recipe: Annotated[str, typer.Argument(help="Says which engine, workflow and reward.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override one value of the recipe.")
    ] = None,
    concurrent: Annotated[int, typer.Option(help="Answers in flight (count).", min=1)] = 256,
    answers: Annotated[int, typer.Option(help="Answers of each turn (count).", min=1)] = 1024,
    json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
) -> None:
    """Time sampling through RaaS, grading included, against the bare engine."""
    from astraflow.bench.rollout import measure_rollout
    from astraflow.cli.console import data_console, print_json
    from astraflow.supervisor.preflight import require_recipe

    found = require_recipe(recipe, overrides or []).resolved
    assert found is not None  # or an error was raised
    figures = measure_rollout(found.recipe, concurrent=concurrent, answers=answers)
    if json:
        print_json(figures)
        return
    data_console.print(
        f"{figures['backend']}: {figures['raas_tokens_per_s']:,.0f} tokens/s through RaaS, "
        f"{figures['bare_tokens_per_s']:,.0f} from the bare engine ({figures['raas_frac']:.1%})"
    )


@bench_app.command()
def loop(
    recipe: Annotated[str, typer.Argument(help="Stem of a shipped recipe, or a path.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Override one value of the recipe.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of the run (count).", min=2)] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print every figure as JSON.")] = False,
) -> None:
    """Time a whole run: steps/s, who waits, the time of each stage, memory that grows."""
    from astraflow.bench.loop import measure_loop
    from astraflow.cli.console import data_console, print_json

    figures = measure_loop(recipe, overrides or [], steps=steps)
    if json:
        print_json(figures)
        return
    data_console.print(
        f"{figures['steps']} steps, {figures['steps_per_s']:.3f} a second; "
        f"{figures['sampled_tokens_per_s']:,.0f} tokens/s sampled, "
        f"{figures['trained_tokens_per_s']:,.0f} trained"
    )
    data_console.print(f"{figures['bottleneck']}; stages (s, median): {figures['stages_s']}")
    for name, memory in figures["memory"].items():
        data_console.print(
            f"{name}: {memory['second_bytes'] / 2**30:.2f} GiB, {memory['growth_frac']:+.1%} "
            "against the first half"
        )
