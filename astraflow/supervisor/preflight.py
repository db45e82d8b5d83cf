"""Read a recipe and check it against this installation, and against this machine's GPUs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from astraflow.data.registry import dataset_names, find_entry
from astraflow.errors import HardwareError, PluginError, RecipeError
from astraflow.planning import (
    HostPlan,
    Plan,
    plan_host,
    plan_recipe,
    read_hardware,
    visible_devices,
)
from astraflow.plugins import installed, load_plugin, recipe_type
from astraflow.recipe.checks import check
from astraflow.recipe.files import ResolvedRecipe, read_recipe, summary
from astraflow.recipe.models import find_facts
from astraflow.recipe.problems import Known, Problem
from astraflow.recipe.schema import Recipe

__all__ = [
    "Findings",
    "inspect_recipe",
    "plan_here",
    "require_fit",
    "require_gpus",
    "require_plugins",
    "require_recipe",
    "visible_gpus",
]

_PATH = re.compile(rf"\b(?:{'|'.join(Recipe.model_fields)})(?:\.\w+)+")


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
            if _is_about(problem.paths, reading.dropped):
                continue  # it would speak of a default that nobody chose
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


def plan_here(recipe: Recipe, hardware: str | None = None) -> Plan | None:
    """
    Plan a recipe on this host's GPUs.

    Args:
        recipe: Without errors.
        hardware: Such as ``8xH100-80GB``, to plan for those GPUs instead.

    Returns:
        None where the model's shape is not known, or no GPU is.

    Raises:
        RecipeError: ``hardware`` has another form.
    """
    facts = find_facts(recipe.model.path)
    if hardware is not None:
        count, gpu = read_hardware(hardware)
    else:
        kinds = [device.gpu for device in visible_devices()]
        if not kinds:
            return None
        # Ranks move in step, so the smallest GPU decides for all.
        count, gpu = len(kinds), min(kinds, key=lambda kind: kind.memory_bytes)
    return None if facts is None else plan_recipe(recipe, facts, gpu, gpus=count)


def require_fit(recipe: Recipe, hardware: str | None = None) -> None:
    """
    Refuse a run that will not fit the GPUs or the host, before anything is loaded.

    Args:
        recipe: Without errors.
        hardware: Such as ``8xH100-80GB``, to plan for those GPUs instead of this host's.

    Raises:
        HardwareError: it does not fit, with what to change.
    """
    plan = plan_here(recipe, hardware) if recipe.num_gpus else None
    problems = list(plan.problems) if plan else []
    facts = find_facts(recipe.model.path)
    if facts is not None:
        problems += _host_problems(plan_host(recipe, facts))
    if problems:
        raise HardwareError(
            f"the run does not fit: {'; '.join(problems)}",
            hint="`--dry-run` shows the plan part by part; it is an estimate, and `--hardware` "
            "plans for other GPUs than those that are seen here",
        )


def _host_problems(host: HostPlan) -> Iterator[str]:
    memory = psutil.virtual_memory().total
    if host.memory_bytes > memory:
        yield (
            f"the host needs {host.memory_bytes / 1e9:.1f} GB of memory and has "
            f"{memory / 1e9:.1f} GB: take a smaller model, fewer `rollout.instances` or, with "
            "delta transfer, fewer `weights.keep_deltas`"
        )
    shared = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
    if host.shm_bytes > shared:
        yield (
            f"/dev/shm needs {host.shm_bytes / 1e9:.2f} GB and has {shared / 1e9:.2f} GB free: in "
            "a container, `--shm-size=16g`"
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
    entries = [entry for name in names if (entry := find_entry(name))]
    return Known(
        inference_backends=tuple(installed("inference_backends")),
        trainer_backends=tuple(installed("trainer_backends")),
        workflows=tuple(installed("workflows")),
        rewards=tuple(installed("rewards")),
        datasets=names,
        held_out=tuple(entry.name for entry in entries if not entry.training),
        plain=tuple(entry.name for entry in entries if entry.prompt_style == "plain"),
        rows={entry.name: entry.rows for entry in entries if entry.rows is not None},
    )


def _is_about(paths: Sequence[str], dropped: Sequence[str]) -> bool:
    return any(f"{gone}.".startswith(f"{path}.") for gone in dropped for path in paths)


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
            # It names the values it is about; where it names none it is about being chosen.
            named = [path for path in _PATH.findall(why) if path in resolved.places]
            paths = tuple(dict.fromkeys((*named, f"{section}.backend")))
            what, _, cure = why.partition("; ")
            hint = cure or f"change it, or choose another adapter at `{section}.backend`"
            refusals.append(Problem(what=what, paths=paths, hint=hint).locate(resolved))
    return refusals
