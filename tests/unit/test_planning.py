"""Memory plans, against what was measured and worked out by hand."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from astraflow.cli.main import app, register
from astraflow.errors import HardwareError, RecipeError
from astraflow.planning import MemoryPlan, plan_memory, read_hardware
from astraflow.plugins import recipe_type
from astraflow.recipe.files import load_recipe
from astraflow.recipe.models import find_facts


def _plan(recipe: str, *overrides: str, hardware: str = "8xH100-80GB") -> MemoryPlan:
    loaded = load_recipe(recipe, overrides, recipe_type=recipe_type()).recipe
    facts = find_facts(loaded.model.path)
    assert facts is not None
    gpus, gpu = read_hardware(hardware)
    return plan_memory(loaded, facts, gpu, gpus=gpus)


@pytest.mark.parametrize(
    ("checkpointing", "measured_gib"), [("true", 28.1), ("half", 39.6), ("false", 54.9)]
)
def test_a_trainers_peak_is_within_15_percent_of_what_an_h200_showed(
    checkpointing: str, measured_gib: float
) -> None:
    plan = _plan(
        "qwen3-1.7b-m2po-2gpus-full",
        "trainer.master_dtype=float32",
        "trainer.tokens_per_microbatch=16384",
        "algorithm.kl_coef=0.0",
        f"trainer.fsdp.gradient_checkpointing={checkpointing}",
    )
    assert plan.trainer_bytes / 2**30 == pytest.approx(measured_gib, rel=0.15)


def test_cache_is_counted_by_hand() -> None:
    plan = _plan("qwen3-1.7b-m2po-2gpus-full")
    # 0.8 of 85 GB, less 2 bytes for each of 1,720,574,976 weights;
    # keys and values of 28 layers of 8 heads of 128 in 2 bytes
    weights = 2 * 1_720_574_976
    assert plan.cache_tokens == (68_000_000_000 - weights) // (2 * 28 * 8 * 128 * 2)
    assert plan.full_requests == plan.cache_tokens // 7168


def test_what_does_not_fit_is_told_with_a_micro_batch_that_does() -> None:
    plan = _plan(
        "qwen3-1.7b-m2po-2gpus-full",
        "trainer.tokens_per_microbatch=65536",
        "trainer.fsdp.gradient_checkpointing=false",
    )
    (problem,) = plan.problems
    assert "`trainer.tokens_per_microbatch: " in problem
    tokens = int(problem.split("tokens_per_microbatch: ")[1].split("`")[0])
    again = _plan(
        "qwen3-1.7b-m2po-2gpus-full",
        f"trainer.tokens_per_microbatch={tokens}",
        "trainer.fsdp.gradient_checkpointing=false",
    )
    assert again.problems == ()


def test_too_few_gpus_and_a_model_too_large_for_one_are_told() -> None:
    (few,) = _plan("qwen3-1.7b-m2po-2gpus-full", hardware="1xH100-80GB").problems
    assert few == "the recipe takes 2 GPUs, and there are 1"
    problems = _plan(
        "qwen3-8b-m2po-full", "trainer.gpus=1", "trainer.master_dtype=float32"
    ).problems
    assert any("shard over at least 2 GPUs" in problem for problem in problems)


def test_unknown_hardware_lists_what_is_known() -> None:
    with pytest.raises(RecipeError, match="8xV100") as caught:
        read_hardware("8xV100")
    assert "H200-141GB" in caught.value.hint


def test_the_command_ends_with_4_when_it_does_not_fit() -> None:
    register()
    fits = ["validate", "qwen3-8b-m2po-full", "--hardware", "8xH100-80GB"]
    done = CliRunner().invoke(app, fits)
    assert done.exit_code == 0
    assert "yes" in done.output
    done = CliRunner().invoke(app, [*fits[:-1], "4xH100-80GB"])
    assert isinstance(done.exception, HardwareError)
    assert done.exception.exit_code == 4
