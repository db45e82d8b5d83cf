"""How a recipe is read: YAML 1.2 with places, `extends`, `--set`, adapter sections, warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow.errors import RecipeError
from astraflow.plugins import recipe_type
from astraflow.recipe.files import find_recipe, load_recipe, read_resolved
from astraflow.recipe.models import ModelFacts, find_facts
from astraflow.recipe.reading import parse_override, read_yaml
from astraflow.recipe.schema import Recipe
from astraflow.supervisor.preflight import Findings, inspect_recipe, require_recipe

_BASE = "qwen3-1.7b-m2po-2gpus-full"


def _inspect(tmp_path: Path, text: str, *sets: str, base: str = _BASE) -> Findings:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {base}\n{text}")
    return inspect_recipe(str(path), sets)


def _recipe(findings: Findings) -> Recipe:
    assert [str(error) for error in findings.errors] == []
    assert findings.resolved is not None
    return findings.resolved.recipe


def _warned(findings: Findings) -> str:
    return "\n".join(str(warning) for warning in findings.warnings)


def _plain(tmp_path: Path, text: str) -> object:
    path = tmp_path / "plain.yaml"
    path.write_text(text)
    return read_yaml(path, shown_as="plain.yaml")[0].plain()


# --- values


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("5e-6", 5e-6),
        ("1E6", 1e6),
        ("-.5", -0.5),
        ("010", 10),
        ("off", "off"),
        ("yes", "yes"),
        ("None", "None"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2024-01-01", "2024-01-01"),
        ("0x10", "0x10"),
        ("~", None),
        ("", None),
        ("'5e-6'", "5e-6"),
        ("True", True),
        ("-.inf", float("-inf")),
    ],
)
def test_scalar_is_read_by_the_core_schema_of_yaml_1_2(
    tmp_path: Path, written: str, read: object
) -> None:
    assert _plain(tmp_path, f"key: {written}") == {"key": read}


def test_whole_number_does_for_a_real_one_but_not_the_other_way_round(tmp_path: Path) -> None:
    assert _recipe(_inspect(tmp_path, "rollout: {temperature: 1}")).rollout.temperature == 1.0
    (error,) = _inspect(tmp_path, "trainer: {steps: 30.5}").errors
    assert error.what == "`trainer.steps` is `30.5`, but it must be a whole number"


def test_quoted_number_true_for_one_and_list_for_text_are_refused(tmp_path: Path) -> None:
    text = 'seed: true\nmodel: {context_length: "7168"}\ndata: {train: [deepscaler]}'
    errors = _inspect(tmp_path, text).errors
    assert [error.what for error in errors] == [
        "`seed` is `true`, but it must be a whole number",
        "`model.context_length` is the text `7168`, but it must be a whole number",
        "`data.train` is a list, but it must be text",
    ]


def test_section_that_is_no_mapping_is_refused_at_its_place(tmp_path: Path) -> None:
    (error,) = _inspect(tmp_path, "trainer: fast").errors
    assert "section of keys" in error.what
    assert error.where.endswith("mine.yaml:2:10")


def test_missing_value_is_told_with_what_it_is_for(tmp_path: Path) -> None:
    path = tmp_path / "bare.yaml"
    path.write_text("model: {path: x, context_length: 64}\ndata: {train: additions}\n")
    whats = {error.what for error in inspect_recipe(str(path)).errors}
    assert {"`rollout` is missing", "`trainer` is missing"} <= whats


def test_null_turns_a_thing_off(tmp_path: Path) -> None:
    text = "trainer: {optimizer: {clip_norm: null}}\nevaluation: {every_steps: null}"
    recipe = _recipe(_inspect(tmp_path, text))
    assert recipe.trainer.optimizer.clip_norm is None
    assert recipe.evaluation.every_steps is None


# --- keys


def test_key_of_another_section_is_pointed_to_its_home(tmp_path: Path) -> None:
    (error,) = _inspect(tmp_path, "trainer: {max_staleness: 4}").errors
    assert error.hint == "did you mean `dataflow.max_staleness`"


def test_key_like_no_other_lists_the_known_ones(tmp_path: Path) -> None:
    (error,) = _inspect(tmp_path, "checkpoint: {zzz: 1}").errors
    assert error.hint == "known here: every_steps, keep"


def test_duplicates_on_three_levels_are_all_told(tmp_path: Path) -> None:
    text = "seed: 1\nseed: 2\ntrainer:\n  optimizer: {lr: 1e-6, lr: 2e-6}\n  steps: 1\n  steps: 2\n"
    errors = _inspect(tmp_path, text).errors
    assert [error.what.split("`")[1] for error in errors] == [
        "seed",
        "trainer.optimizer.lr",
        "trainer.steps",
    ]


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("trainer: {steps: 3\nrollout: {}", "the YAML ends in an error", "plain.yaml:2:8"),
        ("seed: 1\n---\nseed: 2", "another document", "plain.yaml:2:1"),
        ("seed: *nowhere", "undefined alias", "plain.yaml:1:7"),
        ("seed: &a [*a]", "inside its own anchor", "plain.yaml:1:11"),
        ("seed: \x00", "no YAML may hold", "plain.yaml:1:7"),
        ("- a list", "mapping of sections", "plain.yaml:1:1"),
        ("", "mapping of sections", "plain.yaml:1:1"),
    ],
)
def test_file_that_is_no_recipe_at_all_is_an_error_with_its_place(
    tmp_path: Path, text: str, what: str, where: str
) -> None:
    with pytest.raises(RecipeError, match=what) as raised:
        _plain(tmp_path, text)
    assert raised.value.where == where


# --- all at once


def test_broken_values_and_broken_rules_are_told_in_one_go(tmp_path: Path) -> None:
    # the misspelled key and the negative number are the schema's, the batch is a rule's
    text = (
        "algorithm: {m2_treshold: 0.02}\n"
        "dataflow: {max_staleness: -1}\n"
        "trainer: {batch_size: 250}\n"
        "rollout: {max_new_tokens: 6000}\n"
    )
    errors = _inspect(tmp_path, text).errors
    lines = [int(error.where.rsplit(":", 2)[1]) for error in errors]
    # 250 also does not split into the 4 mini-batches of the parent
    assert all("mine.yaml" in error.where for error in errors)
    assert lines == [2, 3, 4, 4, 5]
    assert "equal mini-batches" in "\n".join(error.what for error in errors)


def test_rule_shows_the_other_values_and_where_they_were_written(tmp_path: Path) -> None:
    errors = _inspect(tmp_path, "trainer: {batch_size: 252}").errors
    assert len(errors) == 1  # 252 splits by 4
    assert "rollout.samples_per_prompt = 8 (" in errors[0].what
    assert "qwen3-1.7b-m2po-2gpus-full.yaml:" in errors[0].what
    assert errors[0].hint == "set `trainer.batch_size` to 248 or 256"


def test_summary_counts_the_problems_and_is_a_recipe_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: {_BASE}\nseed: -1\nrollout: {{temperature: 0}}\n")
    with pytest.raises(RecipeError, match="recipe `mine` has 2 problems") as raised:
        require_recipe(str(path))
    assert len(raised.value.problems) == 2
    assert raised.value.exit_code == 2


# --- extends


def test_child_is_laid_over_its_parent_key_by_key(tmp_path: Path) -> None:
    recipe = _recipe(_inspect(tmp_path, "trainer: {optimizer: {lr: 1e-6}}"))
    assert recipe.trainer.optimizer.lr == 1e-6
    assert recipe.trainer.optimizer.clip_norm == 1.0
    assert recipe.trainer.steps == 800


def test_list_of_a_child_replaces_its_parents(tmp_path: Path) -> None:
    recipe = _recipe(_inspect(tmp_path, "evaluation: {datasets: [math500]}"))
    assert recipe.evaluation.datasets == ("math500",)


def test_parent_may_be_a_path_from_the_child_or_a_stem_beside_it(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "parent.yaml").write_text(f"extends: {_BASE}\nseed: 7\n")
    (tmp_path / "up" / "near.yaml").write_text("extends: parent\n")
    (tmp_path / "far.yaml").write_text("extends: up/parent.yaml\n")
    assert (
        load_recipe(str(tmp_path / "up" / "near.yaml"), recipe_type=recipe_type()).recipe.seed == 7
    )
    assert load_recipe(str(tmp_path / "far.yaml"), recipe_type=recipe_type()).recipe.seed == 7


def test_missing_parent_is_told_at_the_line_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 1\nextends: qwen3-8b-m2po-fulll\n")
    with pytest.raises(RecipeError) as raised:
        inspect_recipe(str(path))
    assert raised.value.where.endswith("mine.yaml:2:10")
    assert raised.value.hint == "did you mean `qwen3-8b-m2po-full`"


def test_circle_of_three_names_the_way_round(tmp_path: Path) -> None:
    for name, parent in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.yaml").write_text(f"extends: {parent}.yaml\n")
    with pytest.raises(RecipeError, match="a -> b -> c -> a"):
        inspect_recipe(str(tmp_path / "a.yaml"))


def test_shipped_recipe_is_found_by_stem_and_a_file_by_path(tmp_path: Path) -> None:
    mine = tmp_path / "quickstart.yaml"
    mine.write_text("extends: x\n")
    assert find_recipe(str(mine)) == mine
    assert find_recipe("quickstart") != mine


# --- --set


def test_last_override_wins_and_reaches_new_sections() -> None:
    sets = ["trainer.steps=5", "trainer.steps=6", "limits.ready_s=30", "model.thinking=true"]
    recipe = _recipe(inspect_recipe("quickstart", sets))
    assert (recipe.trainer.steps, recipe.limits.ready_s, recipe.model.thinking) == (6, 30.0, True)


def test_override_takes_lists_nulls_and_adapter_settings() -> None:
    sets = [
        "evaluation.datasets=[additions_test]",
        "evaluation.every_steps=null",
        "trainer.fsdp.threads=1",
    ]
    recipe = _recipe(inspect_recipe("quickstart", sets))
    assert recipe.evaluation.every_steps is None
    assert recipe.trainer.fsdp.threads == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("option", ["trainer.steps", "=3", "trainer..steps=3", ".steps=3"])
def test_override_without_path_or_value_is_refused(option: str) -> None:
    with pytest.raises(RecipeError, match=r"section\.field=value"):
        parse_override(option)


def test_every_bad_override_is_told_by_its_own_text() -> None:
    errors = inspect_recipe(
        "quickstart", ["trainer.stepz=3", "seed", "rollout.temperature=0"]
    ).errors
    assert {error.where for error in errors} == {
        "--set trainer.stepz=3",
        "--set seed",
        "--set rollout.temperature=0",
    }


# --- adapters


def test_adapter_section_is_checked_by_the_adapters_own_schema(tmp_path: Path) -> None:
    text = "rollout: {sglang: {mem_fraction: 0.5, max_running_requests: 0}}"
    errors = _inspect(tmp_path, text).errors
    assert [error.what for error in errors] == [
        "unknown key `rollout.sglang.mem_fraction`",
        "`rollout.sglang.max_running_requests` is `0`, but it must be at least 1",
    ]
    assert errors[0].hint == "did you mean `mem_fraction_static`"


def test_settings_of_an_adapter_that_is_not_used_are_refused(tmp_path: Path) -> None:
    (error,) = _inspect(tmp_path, "trainer: {megatron: {tensor_parallel: 1}}").errors
    assert error.what.startswith("`trainer.megatron` would be ignored: the backend is `fsdp`")


def test_engine_that_cannot_hold_one_group_is_refused(tmp_path: Path) -> None:
    (error,) = _inspect(tmp_path, "rollout: {sglang: {max_running_requests: 4}}").errors
    assert "a group of 8 never completes" in error.what
    assert error.where.endswith("mine.yaml:2:42")


def test_adapters_refusal_is_told_where_the_adapter_is_chosen(tmp_path: Path) -> None:
    text = "trainer:\n  backend: megatron\nmodel: {path: Qwen/Qwen3.5-4B}"
    (error,) = _inspect(tmp_path, text).errors
    assert "24 Gated-DeltaNet layers" in error.what
    assert error.where.endswith("mine.yaml:3:12")


def test_dense_model_on_megatron_is_not_refused_by_the_schema(tmp_path: Path) -> None:
    assert _inspect(tmp_path, "trainer: {backend: megatron}").errors == ()


# --- rules at their edges


def test_lengths_that_just_fit_are_accepted(tmp_path: Path) -> None:
    # 2000 + 4000 <= 6000, and a micro-batch holds one such sequence
    text = "model: {context_length: 6000}\ntrainer: {tokens_per_microbatch: 6000}"
    assert _inspect(tmp_path, text).errors == ()
    (error,) = _inspect(tmp_path, "trainer: {tokens_per_microbatch: 5999}").errors
    assert error.hint == "set `trainer.tokens_per_microbatch` to at least 6000"


def test_evaluation_answers_are_held_to_the_context_too(tmp_path: Path) -> None:
    (error,) = _inspect(tmp_path, "evaluation: {max_new_tokens: 5169}").errors
    assert "7169" in error.what
    assert error.hint == "set `evaluation.max_new_tokens` to at most 5168"


def test_greedy_sampling_is_for_evaluation_alone(tmp_path: Path) -> None:
    findings = _inspect(tmp_path, "evaluation: {temperature: 0, samples: 1}")
    assert _recipe(findings).evaluation.temperature == 0
    several = _inspect(tmp_path, "evaluation: {temperature: 0, samples: 4}")
    assert "greedy evaluation gives 4 equal answers" in _warned(several)


def test_batch_below_one_group_names_the_smallest_whole_one(tmp_path: Path) -> None:
    text = "trainer: {batch_size: 4}\nalgorithm: {updates_per_step: 1}"
    (error,) = _inspect(tmp_path, text).errors
    assert error.hint == "set `trainer.batch_size` to 8"


def test_rank_without_a_sequence_is_refused(tmp_path: Path) -> None:
    # 8 sequences in 4 mini-batches are 2 a mini-batch, for 4 ranks
    text = "trainer: {batch_size: 8, gpus: 4}"
    (error,) = _inspect(tmp_path, text).errors
    assert "a mini-batch of 2 sequences leaves some of 4 ranks without any" in error.what


def test_intervals_beyond_the_run_are_warnings(tmp_path: Path) -> None:
    text = "trainer: {steps: 30}\ncheckpoint: {every_steps: 100}\nevaluation: {every_steps: 31}"
    findings = _inspect(tmp_path, text)
    assert findings.errors == ()
    assert "`checkpoint.every_steps` is 100 and the run has 30 steps" in _warned(findings)
    assert "`evaluation.every_steps` is 31 and the run has 30 steps" in _warned(findings)


@pytest.mark.parametrize(
    "text",
    [
        "checkpoint: {every_steps: 0}",
        "checkpoint: {keep: 0}",
        "workflow: {grading_timeout_s: 0}",
        "algorithm: {kl_coef: .nan}",
        "trainer: {optimizer: {betas: [0.9, 1.0]}}",
        "rollout: {samples_per_prompt: 1}",
        "limits: {stop_s: -1}",
    ],
)
def test_value_out_of_its_range_is_an_error(tmp_path: Path, text: str) -> None:
    assert len(_inspect(tmp_path, text).errors) == 1


def test_fraction_of_a_second_is_a_grading_limit(tmp_path: Path) -> None:
    assert _recipe(_inspect(tmp_path, "workflow: {grading_timeout_s: 0.5}"))


def test_training_file_that_is_not_there_is_refused_and_one_that_is_there_is_not(
    tmp_path: Path,
) -> None:
    (error,) = _inspect(tmp_path, f"data: {{train: {tmp_path}/rows.jsonl}}").errors
    assert "no file on this machine" in error.what
    (tmp_path / "rows.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    assert _inspect(tmp_path, f"data: {{train: {tmp_path}/rows.jsonl}}").errors == ()


@pytest.mark.parametrize(
    ("master", "lr", "warned"),
    # bfloat16 has 8 significand bits, so |w| = 0.02 moves when lr >= 0.02 / 256 = 7.8e-5
    [("bfloat16", "5e-6", True), ("bfloat16", "8e-5", False), ("float32", "5e-6", False)],
)
def test_bfloat16_masters_warn_where_steps_round_away(
    tmp_path: Path, master: str, lr: str, warned: bool
) -> None:
    text = f"trainer: {{master_dtype: {master}, optimizer: {{lr: {lr}}}}}"
    assert ("rounds to nothing" in _warned(_inspect(tmp_path, text))) is warned


def test_low_staleness_that_starves_the_engines_is_a_warning(tmp_path: Path) -> None:
    # (0 + 1) * 32 samples admitted, and one server decodes 48
    text = "dataflow: {max_staleness: 0}\ntrainer: {batch_size: 32}"
    findings = _inspect(tmp_path, text)
    assert findings.errors == ()
    assert "staleness admits 32 samples in flight, fewer than the 48" in _warned(findings)


def test_ignored_settings_are_errors_only_where_somebody_wrote_them(tmp_path: Path) -> None:
    text = "algorithm: {clip_high: 0.28}\ntrainer: {cpu_ranks: 2}\nweights: {keep_deltas: 4}"
    whats = [error.what for error in _inspect(tmp_path, text).errors]
    assert [what.split("`")[1] for what in whats] == [
        "algorithm.clip_high",
        "trainer.cpu_ranks",
        "weights.keep_deltas",
    ]


# --- facts of models


def test_model_in_a_folder_is_judged_by_its_own_config(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "max_position_embeddings": 4096,
    }
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "tokenizer_config.json").write_text("{}")
    errors = _inspect(tmp_path, f"model: {{path: {tmp_path}/model}}").errors
    whats = "\n".join(error.what for error in errors)
    assert "made for 4096 positions and has no RoPE scaling" in whats
    assert "no chat template" in whats


def test_published_sizes_follow_from_the_facts() -> None:
    def parameters(name: str) -> int:
        facts = find_facts(name)
        assert isinstance(facts, ModelFacts)
        return facts.num_parameters

    # 1,720,574,976 and 8,190,735,360 unique weights, q and k norms of 2 * 128 a layer apart
    assert parameters("Qwen/Qwen3-1.7B") == 1_720_574_976 - 28 * 256
    assert parameters("Qwen/Qwen3-8B") == 8_190_735_360 - 36 * 256


# --- the resolved copy


def test_resolved_copy_says_where_each_value_was_written(tmp_path: Path) -> None:
    resolved = _inspect(tmp_path, "seed: 3", "trainer.steps=9").resolved
    assert resolved is not None
    body = json.loads(resolved.to_json(torch="2.13"))
    assert body["written_at"]["seed"].endswith("mine.yaml:2:7")
    assert body["written_at"]["trainer.steps"] == "--set trainer.steps=9"
    assert body["written_at"]["model.path"].endswith("qwen3-1.7b-m2po-2gpus-full.yaml:4:15")
    assert "limits.ready_s" not in body["written_at"]
    assert body["torch"] == "2.13"


def test_digest_depends_on_the_values_and_not_on_how_they_are_written(tmp_path: Path) -> None:
    plain = _inspect(tmp_path, "trainer: {optimizer: {lr: 5e-6}}").resolved
    long = _inspect(tmp_path, "trainer:\n  optimizer:\n    lr: 0.000005\n").resolved
    other = _inspect(tmp_path, "trainer: {optimizer: {lr: 6e-6}}").resolved
    assert plain is not None
    assert long is not None
    assert other is not None
    assert plain.digest == long.digest != other.digest


@pytest.mark.parametrize("text", ["", "{", "{}", '{"name": "x", "recipe": {"seed": "one"}}'])
def test_damaged_resolved_copy_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(text)
    with pytest.raises(RecipeError, match="not a resolved recipe"):
        read_resolved(path)
    with pytest.raises(RecipeError, match="not a resolved recipe"):
        read_resolved(tmp_path / "absent.json")
