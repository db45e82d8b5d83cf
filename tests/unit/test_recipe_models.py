"""Models in folders: what their files say, and what is said of folders that hold none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astraflow.recipe.models import ModelFacts, find_facts
from astraflow.supervisor.preflight import Findings, inspect_recipe

_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 8192,
}
_TOKENIZER = {"chat_template": "{% if enable_thinking %}{% endif %}{{ messages }}"}


def _folder(root: Path, *, tokenizer: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Write a model's folder; a change to None takes the key out of its config."""
    folder = root / "model"
    folder.mkdir()
    config = {key: value for key, value in {**_CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer or _TOKENIZER))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def _facts(folder: Path) -> ModelFacts:
    facts = find_facts(str(folder))
    assert facts is not None
    return facts


def _inspect(tmp_path: Path, model: object, text: str = "") -> Findings:
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: qwen3-1.7b-m2po-2gpus-full\nmodel: {{path: {model}}}\n{text}")
    return inspect_recipe(str(path))


def _error(tmp_path: Path, model: object, text: str = "") -> str:
    (error,) = _inspect(tmp_path, model, text).errors
    assert "mine.yaml:" in error.where
    assert error.hint
    return f"{error.what}; {error.hint}"


def test_whole_folder_is_a_model(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    assert _inspect(tmp_path, folder).errors == ()
    facts = _facts(folder)
    assert (facts.num_layers, facts.num_kv_heads, facts.head_dim) == (8, 4, 5)
    assert (facts.has_chat_template, facts.can_think) == (True, True)


def test_file_and_missing_folder_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"")
    assert "is a file, and a model is a folder" in _error(
        tmp_path, tmp_path / "weights.safetensors"
    )
    assert "neither a folder on this machine" in _error(tmp_path, tmp_path / "absent")


def test_folder_above_the_model_is_told_which_one_it_is(tmp_path: Path) -> None:
    _folder(tmp_path)
    assert f"did you mean `{tmp_path}/model`" in _error(tmp_path, tmp_path)


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer_config.json", "has no tokenizer"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_folder_without_a_part_is_refused(tmp_path: Path, missing: str, words: str) -> None:
    folder = _folder(tmp_path)
    (folder / missing).unlink()
    assert words in _error(tmp_path, folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ['{"model_type": "qw', "", "[1, 2]", "[" * 100_000, "\x00"])
def test_cut_or_foreign_json_is_refused_with_its_name(tmp_path: Path, name: str, text: str) -> None:
    folder = _folder(tmp_path)
    (folder / name).write_text(text)
    assert f"`{name}` of `{folder}`" in _error(tmp_path, folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 0},
        {"hidden_size": "large"},
        {"num_hidden_layers": None},
        {"vocab_size": -1},
        {"layer_types": 7},
        {"rope_scaling": [1]},
    ],
)
def test_config_that_makes_no_sense_leaves_the_model_unknown(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = _folder(tmp_path, **changes)
    assert find_facts(str(folder)) is None
    findings = _inspect(tmp_path, folder)
    assert any("nothing is known here" in warning.what for warning in findings.warnings)


@pytest.mark.parametrize(
    ("quantization", "words"),
    [
        ({"quant_method": "gptq"}, "quantized with gptq"),
        ({"load_in_4bit": True}, "quantized with an unnamed method"),
    ],
)
def test_quantized_checkpoint_is_refused(
    tmp_path: Path, quantization: dict[str, Any], words: str
) -> None:
    folder = _folder(tmp_path, quantization_config=quantization)
    assert words in _error(tmp_path, folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
        {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True},
    ],
)
def test_model_that_does_not_go_on_with_a_text_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    assert "does not go on with a text" in _error(tmp_path, _folder(tmp_path, **changes))


@pytest.mark.parametrize(
    ("changes", "linear"),
    [
        ({"layer_types": ["linear_attention"] * 6 + ["full_attention"] * 2}, 6),
        ({"layer_types": ["full_attention", "sliding_attention"] * 4}, 0),
        ({"model_type": "qwen3_next", "full_attention_interval": 4}, 6),
        ({"model_type": "qwen3_next", "linear_num_value_heads": 16}, 6),
        ({"layer_types": ["mamba"] * 7 + ["attention"]}, 7),
    ],
)
def test_linear_attention_layers_are_counted_and_megatron_refuses_them(
    tmp_path: Path, changes: dict[str, Any], linear: int
) -> None:
    folder = _folder(tmp_path, **changes)
    assert _facts(folder).linear_attention_layers == linear
    findings = _inspect(tmp_path, folder, "trainer: {backend: megatron}")
    refused = [error for error in findings.errors if "Megatron-Core has no" in error.what]
    assert len(refused) == (1 if linear else 0)
    assert all("fsdp" in error.hint for error in refused)


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({"rope_type": "linear", "factor": 2.0}, 16384),
        ({"rope_type": "yarn", "factor": 4.0}, 32768),
        # made with room for them: the number already has it
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}, 8192),
        ({"rope_type": "llama3", "factor": 8.0}, 8192),
        ({"rope_type": "default"}, 8192),
    ],
)
def test_positions_are_those_that_an_engine_allows(
    tmp_path: Path, rope: dict[str, Any], positions: int
) -> None:
    folder = _folder(tmp_path, rope_scaling=rope)
    assert _facts(folder).max_position == positions
    (tmp_path / "mine.yaml").write_text(
        "extends: qwen3-1.7b-m2po-2gpus-full\n"
        f"model: {{path: {folder}, context_length: {positions + 1}}}\n"
    )
    (error,) = inspect_recipe(str(tmp_path / "mine.yaml")).errors
    assert error.hint == f"set `model.context_length` to at most {positions}"


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (5, "12 attention heads cannot be split over 5"),
        (6, "4 key-value heads can neither be split over 6 GPUs nor be copied evenly"),
    ],
)
def test_heads_that_do_not_split_are_refused(tmp_path: Path, tensor: int, words: str) -> None:
    sizes = f"{{gpus: {tensor}, data_parallel: 1, tensor_parallel: {tensor}}}"
    findings = _inspect(tmp_path, _folder(tmp_path), f"rollout: {sizes}")
    assert any(words in error.what for error in findings.errors)


def test_template_without_thinking_and_none_at_all_are_told(tmp_path: Path) -> None:
    folder = _folder(tmp_path, tokenizer={"chat_template": "{{ messages }}"})
    text = f"model: {{path: {folder}, thinking: true}}\n"
    (tmp_path / "mine.yaml").write_text(f"extends: qwen3-1.7b-m2po-2gpus-full\n{text}")
    (error,) = inspect_recipe(str(tmp_path / "mine.yaml")).errors
    assert "knows no thinking" in error.what
    (folder / "tokenizer_config.json").write_text("{}")
    assert "no chat template" in _error(tmp_path, folder)
    (folder / "chat_template.jinja").write_text("{{ enable_thinking }}")
    assert inspect_recipe(str(tmp_path / "mine.yaml")).errors == ()


def test_model_that_the_hub_left_here_is_known_without_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert find_facts("someone/some-model") is None
    model = tmp_path / "hub" / "models--someone--some-model"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("abc")
    (model / "snapshots").mkdir()
    _folder(model / "snapshots").rename(model / "snapshots" / "abc")
    facts = find_facts("someone/some-model")
    assert facts is not None
    assert facts.max_position == 8192


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3.5-27B", "me/qwen3_next-tiny"]
)
def test_family_with_linear_attention_is_refused_on_megatron_by_its_name(
    tmp_path: Path, name: str
) -> None:
    assert "Gated-DeltaNet" in _error(tmp_path, name, "trainer: {backend: megatron}")
    assert _inspect(tmp_path, name).errors == ()
