"""Read a recipe and check it against this installation, and against this machine's GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.data.registry import dataset_names, find_entry
from astraflow.errors import HardwareError, PluginError, RecipeError
from astraflow.plugins import installed, load_plugin, recipe_type
from astraflow.recipe.checks import check
from astraflow.recipe.files import ResolvedRecipe, read_recipe, summary
from astraflow.recipe.problems import Known
from astraflow.recipe.schema import Recipe

__all__ = [
    "Findings",
    "inspect_recipe",
    "require_gpus",
    "require_plugins",
    "require_recipe",
    "visible_gpus",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What is to be said of one recipe."""

    name: str
    """Stem of its file."""

    resolved: ResolvedRecipe | None
    """The recipe, as far as it could be read."""

    errors: tuple[RecipeError, ...]
    """What stops it, sorted by place."""

    warnings: tuple[RecipeError, ...]
    """What a person should know."""


def inspect_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Findings:
    """
    Read one recipe and apply every rule.

    Raises:
        RecipeError: there is no such recipe, or its file is no mapping.
    """
    reading = read_recipe(name_or_path, overrides, recipe_type=recipe_type())
    errors, warnings = list(reading.problems), list[RecipeError]()
    if reading.resolved is not None:
        for problem in check(reading.resolved, _known()):
            located = problem.locate(reading.resolved)
            (errors if problem.severity == "error" else warnings).append(located)
        errors += _refusals(reading.resolved)
    ordered = summary(reading.name, errors).problems
    return Findings(
        name=reading.name,
        resolved=reading.resolved,
        errors=tuple(error for error in ordered if isinstance(error, RecipeError)),
        warnings=tuple(warnings),
    )


def require_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Findings:
    """
    Read one recipe that must be without errors.

    Raises:
        RecipeError: with every broken rule in ``problems``.
    """
    findings = inspect_recipe(name_or_path, overrides)
    if findings.errors or findings.resolved is None:
        raise summary(findings.name, findings.errors)
    return findings


def require_plugins(recipe: Recipe) -> None:
    """
    Refuse a run whose adapters lack their libraries, before any process starts.

    Raises:
        PluginError: a library is missing, or an adapter cannot do the job.
    """
    import importlib.util

    for kind, name in (
        ("inference_backends", recipe.rollout.backend),
        ("trainer_backends", recipe.trainer.backend),
    ):
        plugin = load_plugin(kind, name)  # type: ignore[arg-type]
        missing = [module for module in plugin.needs if importlib.util.find_spec(module) is None]
        if missing:
            raise PluginError(
                f"`{name}` needs {', '.join(f'`{module}`' for module in missing)}, which is not "
                "installed",
                hint=f"`pip install 'astraflow-rl[{plugin.extra}]'`",
            )
        if plugin.unavailable:
            raise PluginError(
                plugin.unavailable,
                hint="choose another adapter, or try the recipe in miniature with `--smoke`",
            )


def require_gpus(recipe: Recipe) -> None:
    """
    Refuse a run that wants more GPUs than this host shows.

    Raises:
        HardwareError: there are too few.
    """
    wanted = recipe.num_gpus
    visible = visible_gpus()
    if wanted > len(visible):
        shown = ", ".join(visible) or "none"
        raise HardwareError(
            f"the recipe wants {wanted} GPUs ({recipe.rollout.gpus} for rollout, "
            f"{recipe.trainer.gpus} for the trainer) and this host shows {len(visible)}: {shown}",
            hint="set `rollout.gpus` and `trainer.gpus` to what is there, or try the recipe in "
            "miniature with `--smoke`",
        )


def visible_gpus() -> list[str]:
    """List the GPUs that a process started here may use, without loading any CUDA library."""
    restricted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if restricted is not None:
        return [gpu for gpu in restricted.split(",") if gpu.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=index", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    return answer.stdout.split() if answer.returncode == 0 else []


def _known() -> Known:
    names = dataset_names()
    return Known(
        inference_backends=tuple(installed("inference_backends")),
        trainer_backends=tuple(installed("trainer_backends")),
        workflows=tuple(installed("workflows")),
        rewards=tuple(installed("rewards")),
        datasets=names,
        held_out=tuple(name for name in names if not _is_for_training(name)),
    )


def _is_for_training(name: str) -> bool:
    entry = find_entry(name)
    return entry is not None and entry.training


def _refusals(resolved: ResolvedRecipe) -> list[RecipeError]:
    recipe = resolved.recipe
    refusals = []
    for section, kind, name in (
        ("rollout", "inference_backends", recipe.rollout.backend),
        ("trainer", "trainer_backends", recipe.trainer.backend),
    ):
        if name not in installed(kind):
            continue
        plugin = load_plugin(kind, name)  # type: ignore[arg-type]
        why = plugin.refuses(recipe) if plugin.refuses else ""
        if why:
            place = resolved.places.get(f"{section}.backend")
            refusals.append(RecipeError(why, where=str(place) if place else ""))
    return refusals
