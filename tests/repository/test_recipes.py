"""The eight published recipes are what was published; every shipped one survives its own copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow.plugins import recipe_type
from astraflow.recipe.files import list_recipes, load_recipe, read_resolved
from astraflow.recipe.reading import read_yaml

# Model, rollout GPUs, trainer GPUs, context, longest answer.
_TABLE = {
    "qwen3-1.7b-m2po-2gpus": ("Qwen/Qwen3-1.7B", 1, 1, 7168, 4000),
    "qwen3.5-4b-m2po": ("Qwen/Qwen3.5-4B", 4, 4, 8192, 4000),
    "qwen3-8b-m2po": ("Qwen/Qwen3-8B", 4, 4, 16384, 14000),
    "llama3-8b-instruct-m2po": ("meta-llama/Meta-Llama-3-8B-Instruct", 4, 4, 8192, 6000),
}
_PUBLISHED = [f"{stem}-{mode}" for stem in _TABLE for mode in ("full", "delta")]

# What the published recipes share, by dotted path.
_SHARED: dict[str, object] = {
    "rollout.backend": "sglang",
    "rollout.samples_per_prompt": 8,
    "rollout.temperature": 1.0,
    "workflow.name": "rlvr",
    "workflow.reward": "math_verify",
    "data.train": "deepscaler",
    "data.max_prompt_tokens": 2000,
    "model.thinking": False,
    "algorithm.name": "m2po",
    "algorithm.m2_threshold": 0.01,
    "algorithm.updates_per_step": 4,
    "algorithm.reward_norm": "group",
    "algorithm.advantage_norm": "batch",
    "algorithm.kl_coef": 0.001,
    "trainer.backend": "fsdp",
    "trainer.steps": 800,
    "trainer.batch_size": 256,
    "trainer.tokens_per_microbatch": 17408,
    "trainer.master_dtype": "bfloat16",
    "trainer.optimizer.name": "adamw",
    "trainer.optimizer.lr": 5e-6,
    "trainer.optimizer.schedule": "constant",
    "trainer.optimizer.warmup_updates": 0,
    "trainer.optimizer.betas": (0.9, 0.999),
    "trainer.optimizer.eps": 1e-8,
    "trainer.optimizer.weight_decay": 0.01,
    "trainer.optimizer.clip_norm": 1.0,
    "weights.transport": "tcp",
    "dataflow.max_staleness": 8,
    "dataflow.order": "earliest_deadline",
    "dataflow.drop_equal_rewards": True,
    "evaluation.every_steps": 25,
    "evaluation.datasets": ("aime24", "aime25", "amc", "minerva_math", "math500"),
    "evaluation.samples": 4,
    "evaluation.temperature": 0.6,
    "checkpoint.every_steps": 25,
}


def _recipe(name: str) -> Any:
    return load_recipe(name, recipe_type=recipe_type()).recipe


def _value(recipe: Any, path: str) -> object:
    for part in path.split("."):
        recipe = getattr(recipe, part)
    return recipe


def test_the_eight_and_our_own_are_shipped() -> None:
    own = {"quickstart", "smollm2-sums", "qwen3-1.7b-m2po-1gpu-delta"}
    assert {path.stem for path in list_recipes()} == own | set(_PUBLISHED)


@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_recipe_has_the_published_sizes(name: str) -> None:
    recipe = _recipe(name)
    model, rollout_gpus, trainer_gpus, context, answer = _TABLE[name.rpartition("-")[0]]
    assert recipe.model.path == model
    assert (recipe.rollout.gpus, recipe.trainer.gpus) == (rollout_gpus, trainer_gpus)
    assert recipe.rollout.data_parallel == rollout_gpus
    assert recipe.rollout.tensor_parallel == 1
    assert (recipe.model.context_length, recipe.rollout.max_new_tokens) == (context, answer)


@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_recipe_has_the_published_values(name: str) -> None:
    recipe = _recipe(name)
    assert {path: _value(recipe, path) for path in _SHARED} == _SHARED


@pytest.mark.parametrize("name", _PUBLISHED)
def test_transfer_is_what_the_name_says(name: str) -> None:
    weights = _recipe(name).weights
    mode = name.rpartition("-")[2]
    assert weights.mode == mode
    assert weights.full_sync_interval == (10 if mode == "delta" else None)


@pytest.mark.parametrize(
    "path", [p for p in list_recipes() if p.stem in _PUBLISHED and p.stem.endswith("-delta")]
)
def test_delta_file_says_only_parent_description_and_weights(path: Path) -> None:
    tree, problems = read_yaml(path, shown_as=path.name)
    assert problems == []
    assert isinstance(tree.plain(), dict)
    assert list(tree.key_places) == ["extends", "description", "weights"]


@pytest.mark.parametrize("path", list_recipes(), ids=lambda path: path.stem)
def test_recipe_has_one_line_of_description_and_reads_back_from_its_copy(
    path: Path, tmp_path: Path
) -> None:
    resolved = load_recipe(str(path), recipe_type=recipe_type())
    assert resolved.recipe.description
    assert "\n" not in resolved.recipe.description
    copy = tmp_path / "recipe.json"
    copy.write_text(resolved.to_json())
    again = read_resolved(copy, recipe_type=recipe_type())
    assert again.recipe == resolved.recipe
    assert (again.name, again.digest) == (resolved.name, resolved.digest)


def test_descriptions_tell_the_recipes_apart() -> None:
    said = [_recipe(str(path)).description for path in list_recipes()]
    assert len(set(said)) == len(said)
