"""`run --smoke`: any recipe in miniature, before anyone pays for GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from astraflow.recipe.files import ResolvedRecipe

__all__ = ["materialize", "miniature"]

Architecture: TypeAlias = Literal["qwen3", "llama", "qwen3_5"]

_STEPS = 2
_ROWS = 512
_CPU_RANKS = 2


def miniature(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """
    Return the recipe with what the miniature replaces: devices, adapter, step count, data names.

    Everything else stays as the recipe says: algorithm, batch, group, transfer mode, staleness,
    optimizer, lengths.
    """
    recipe = resolved.recipe
    rollout = recipe.rollout.model_copy(
        update={
            "backend": "transformers",
            "gpus": 0,
            "data_parallel": 1,
            "tensor_parallel": 1,
            "sglang": None,
        }
    )
    trainer = recipe.trainer.model_copy(
        update={
            "backend": "fsdp",
            "gpus": 0,
            "cpu_ranks": min(recipe.trainer.gpus or recipe.trainer.cpu_ranks, _CPU_RANKS),
            "steps": _STEPS,
            "shares_gpus": False,
        }
    )
    # The miniature has a vocabulary and a chat template of its own.
    workflow = recipe.workflow.model_copy(update={"chat": True, "examples": "", "stop": ()})
    sections = {"rollout": rollout, "trainer": trainer, "workflow": workflow}
    return ResolvedRecipe(
        name=resolved.name,
        recipe=recipe.model_copy(update=sections),
        places=resolved.places,
    )


def materialize(resolved: ResolvedRecipe, folder: Path) -> ResolvedRecipe:
    """Make the miniature's model and data inside the run folder and point the recipe at them."""
    import json

    from astraflow.recipe.models import find_facts
    from astraflow.testing.miniature import make_miniature, miniature_rows

    recipe = resolved.recipe
    facts = find_facts(recipe.model.path)
    model = folder / "miniature"
    make_miniature(
        _architecture(recipe.model.path),
        model,
        seed=recipe.seed,
        tie=facts.tied if facts else True,
        dtype=recipe.model.dtype,
    )
    rows = folder / "miniature.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in miniature_rows(_ROWS)))
    evaluation = recipe.evaluation.model_copy(
        update={"datasets": (str(rows),) if recipe.evaluation.datasets else (), "max_rows": 16}
    )
    updated = recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update={"path": str(model)}),
            "data": recipe.data.model_copy(update={"train": str(rows), "root": None}),
            "evaluation": evaluation,
        }
    )
    return ResolvedRecipe(name=resolved.name, recipe=updated, places=resolved.places)


def _architecture(path: str) -> Architecture:
    """Return the miniature's architecture; a model that nothing is known of stands in as Qwen3."""
    from astraflow.recipe.models import find_facts

    facts = find_facts(path)
    known: dict[str, Architecture] = {"llama": "llama", "qwen3_5": "qwen3_5"}
    return known.get(facts.model_type, "qwen3") if facts else "qwen3"
