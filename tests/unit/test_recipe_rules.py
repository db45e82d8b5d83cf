"""What a recipe with mistakes in it is told: key, value, place and cure, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow.errors import RecipeError
from astraflow.recipe.files import read_resolved
from astraflow.supervisor.preflight import Findings, inspect_recipe, require_recipe

_BASE = "qwen3-1.7b-m2po-2gpus-full"


def _inspect(tmp_path: Path, text: str, *sets: str) -> Findings:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {_BASE}\n{text}")
    return inspect_recipe(str(path), sets)


def _said(findings: Findings) -> str:
    return "\n".join(str(error) for error in findings.errors)


def test_number_with_exponent_is_a_number(tmp_path: Path) -> None:
    findings = _inspect(tmp_path, "trainer: {optimizer: {lr: 5e-6}}")
    assert findings.errors == ()
    assert findings.resolved is not None
    assert findings.resolved.recipe.trainer.optimizer.lr == 5e-6


def test_misspelled_key_names_line_column_and_the_nearest_key(tmp_path: Path) -> None:
    (error,) = _inspect(tmp_path, "algorithm: {m2_treshold: 0.02}").errors
    assert error.what == "unknown key `algorithm.m2_treshold`"
    assert error.where.endswith("mine.yaml:2:13")
    assert error.hint == "did you mean `m2_threshold`"


def test_key_given_twice_names_both_lines(tmp_path: Path) -> None:
    (error,) = _inspect(tmp_path, "rollout:\n  temperature: 1.0\n  temperature: 0.6").errors
    assert "mine.yaml:3:3" in error.what
    assert error.where.endswith("mine.yaml:4:3")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trainer: {steps: 1e3}", ("whole number", "write `1000`")),
        ("trainer: {steps: 1_000}", ("whole number", "write `1000`")),
        ("trainer: {steps: '1,000'}", ("whole number", "write `1000`")),
        ("rollout: {request_timeout_s: 10m}", ("must be a number", "bare number, such as `10`")),
        ("rollout: {temperature: 100%}", ("must be a number", "bare number, such as `100`")),
        ('trainer: {optimizer: {lr: "0.01"}}', ("must be a number", "without quotes")),
        ("trainer: {optimizer: {lr: .nan}}", ("finite",)),
        ("trainer: {optimizer: {clip_norm: .inf}}", ("finite", "null")),
        ("trainer: {optimizer: {clip_norm: None}}", ("`null` to turn it off",)),
        ("weights: {mode: off}", ("'full' or 'delta'",)),
        ("model: {thinking: yes}", ("`true` or `false`",)),
        ("rollout: {temperature: 0}", ("above 0",)),
        ("rollout: {temperature: -1}", ("above 0",)),
        ("algorithm: {m2_threshold: 0}", ("above 0",)),
        ("dataflow: {max_staleness: -1}", ("at least 0",)),
        ("evaluation: {every_steps: 0}", ("at least 1",)),
        ("trainer: {batch_size: 250}", ("whole groups of 8", "248 or 256")),
        ("trainer: {batch_size: 16}\nalgorithm: {updates_per_step: 32}", ("equal mini-batches",)),
        ("algorithm: {updates_per_step: 7}", ("equal mini-batches", "divisors of 256")),
        ("rollout: {max_new_tokens: 6000}", ("make 8000", "holds 7168")),
        ("trainer: {tokens_per_microbatch: 4096}", ("may have 6000 tokens",)),
        ("rollout: {max_concurrent_samples: 4}", ("a group of 8 never completes",)),
        ("workflow: {reward: math_verfy}", ("did you mean `math_verify`",)),
        ("evaluation: {datasets: [aime42]}", ("neither a known dataset nor a file",)),
        ("trainer: {backend: fdsp}", ("did you mean `fsdp`",)),
        ("weights: {mode: delta}", ("no interval for full sends",)),
        ("weights: {full_sync_interval: 10}", ("would be ignored",)),
        ("algorithm: {name: grpo}", ("would be ignored", "no such rule")),
        ("rollout: {gpus: 2}", ("set `rollout.gpus` to 1",)),
        ("trainer: {backend: megatron}\nmodel: {path: Qwen/Qwen3.5-4B}", ("Gated-DeltaNet",)),
        ("model: {path: meta-llama/Meta-Llama-3-8B}", ("no chat template", "-Instruct")),
        (
            "model: {path: meta-llama/Meta-Llama-3-8B-Instruct, context_length: 16384}",
            ("8192 positions and has no RoPE scaling", "16384"),
        ),
    ],
)
def test_mistake_is_an_error_with_its_cure(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    said = _said(_inspect(tmp_path, text))
    assert all(word in said for word in words), said
    assert "mine.yaml:" in said


def test_prompts_times_samples_may_exceed_the_number_of_updates(tmp_path: Path) -> None:
    # 32 prompts of 8 samples in mini-batches of 64 responses: right, and often refused elsewhere
    assert _inspect(tmp_path, "algorithm: {updates_per_step: 4}").errors == ()


def test_every_problem_is_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = (
        "trainer:\n  stepz: 3\n  batch_size: 252\n  optimizer: {lr: fast}\nworkflow: {name: nope}"
    )
    errors = _inspect(tmp_path, text).errors
    lines = [int(error.where.split(":")[-2]) for error in errors]
    assert len(errors) == 4
    assert lines == sorted(lines)


def test_many_updates_on_one_batch_are_a_warning_with_the_lag(tmp_path: Path) -> None:
    findings = _inspect(tmp_path, "dataflow: {max_staleness: 1}\nalgorithm: {updates_per_step: 16}")
    # a sample may be 1 version = 16 steps old when the last of 16 further steps takes it
    assert any("31 optimizer steps old" in warning.what for warning in findings.warnings)


def test_bfloat16_masters_at_a_low_rate_are_a_warning_with_the_arithmetic() -> None:
    warnings = inspect_recipe(_BASE).warnings
    assert any("256 * lr = 0.0013" in warning.what for warning in warnings)


def test_override_is_named_as_the_place() -> None:
    (error,) = inspect_recipe(_BASE, ["trainer.batch_size=252"]).errors
    assert error.where == "--set trainer.batch_size=252"


def test_place_of_an_inherited_value_is_in_the_parent(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(f"extends: {_BASE}\ntrainer:\n  batch_size: 252\n")
    (tmp_path / "child.yaml").write_text("extends: parent.yaml\n")
    (error,) = inspect_recipe(str(tmp_path / "child.yaml")).errors
    assert error.where.endswith("parent.yaml:3:15")


def test_recipes_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(RecipeError, match="circle"):
        inspect_recipe(str(tmp_path / "a.yaml"))


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(RecipeError) as raised:
        require_recipe("quikstart")
    assert raised.value.hint == "did you mean `quickstart`"


def test_resolved_copy_reads_back_as_the_same_values(tmp_path: Path) -> None:
    resolved = require_recipe(_BASE).resolved
    assert resolved is not None
    path = tmp_path / "recipe.json"
    path.write_text(resolved.to_json())
    from astraflow.plugins import recipe_type

    again = read_resolved(path, recipe_type=recipe_type())
    assert again.recipe == resolved.recipe
    assert again.digest == resolved.digest


def test_a_base_model_may_be_asked_in_plain_text(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    text = "extends: llama3-8b-instruct-m2po-full\nmodel: {path: meta-llama/Meta-Llama-3-8B}\n"
    file.write_text(text)
    assert any("no chat template" in error.what for error in inspect_recipe(str(file)).errors)
    file.write_text(f"{text}workflow: {{chat: false}}\n")
    assert inspect_recipe(str(file)).errors == ()


def test_error_stands_where_the_last_hand_wrote(tmp_path: Path) -> None:
    # The group's size is the parent's; of the batch's three values the option's counts.
    (tmp_path / "parent.yaml").write_text(f"extends: {_BASE}\ntrainer: {{batch_size: 256}}\n")
    path = tmp_path / "child.yaml"
    path.write_text("extends: parent.yaml\nrollout: {samples_per_prompt: 7}\n")
    (error,) = inspect_recipe(str(path)).errors
    assert error.where.endswith("child.yaml:2:31")
    assert "trainer.batch_size = 256" in error.what
    assert "parent.yaml:2:23)" in error.what
    # 252 is 36 groups of 7 and 4 mini-batches of 63
    assert inspect_recipe(str(path), ["trainer.batch_size=252"]).errors == ()
    (error,) = inspect_recipe(str(path), ["trainer.batch_size=260"]).errors
    assert error.where == "--set trainer.batch_size=260"


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("0.0.0.0", ("every address of this host", "hostname -I")),
        ("::", ("every address of this host", "hostname -I")),
        ("", ("every address of this host", "hostname -I")),
        ("10.0.0.5:8000", ("no address and no host name", "without port")),
        ("http://10.0.0.5", ("no address and no host name", "without port")),
        ("-node7", ("no address and no host name", "without port")),
        ("node 7", ("no address and no host name", "without port")),
    ],
)
def test_host_that_no_other_can_reach_is_refused(
    tmp_path: Path, host: str, words: tuple[str, ...]
) -> None:
    (error,) = _inspect(tmp_path, f'network: {{host: "{host}"}}').errors
    assert error.where.endswith("mine.yaml:2:17")
    assert all(word in str(error) for word in (f"`{host}`", *words)), str(error)


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.5", "localhost", "node-7.cluster.example"])
def test_one_address_or_a_name_is_a_host(tmp_path: Path, host: str) -> None:
    assert _inspect(tmp_path, f"network: {{host: {host}}}").errors == ()
