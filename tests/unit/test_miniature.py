"""Miniatures: every architecture in a few layers, loaded as the real one would be."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from astraflow.errors import RecipeError
from astraflow.learning.policy import load_policy, stored_tensors
from astraflow.testing.miniature import ModelType, make_miniature, miniature_rows, write_rows

KINDS: list[ModelType] = ["qwen3", "llama", "qwen3_5"]


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_policy_has_every_parameter_once_under_its_checkpoint_name(
    kind: ModelType, tie: bool, tmp_path: Path
) -> None:
    folder = make_miniature(kind, tmp_path, seed=1, tie=tie, dtype="bfloat16")
    stored = load_file(folder / "model.safetensors")
    policy = load_policy(str(folder), dtype=torch.float32)
    assert ("lm_head.weight" in policy.names) is not tie
    for name, parameter in policy.model.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, stored[policy.names[name]].float())


def test_hybrid_checkpoint_is_multimodal_and_keeps_its_decay_in_float32(tmp_path: Path) -> None:
    folder = make_miniature("qwen3_5", tmp_path, seed=1, tie=True, dtype="bfloat16")
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "qwen3_5"
    assert {"linear_attention", "full_attention"} == set(config["text_config"]["layer_types"])
    assert any(".visual." in name for name in stored_tensors(folder))
    policy = load_policy(str(folder), dtype=torch.bfloat16)
    decay = policy.model.model.layers[0].linear_attn.A_log
    key = policy.names["model.layers.0.linear_attn.A_log"]
    assert key == "model.language_model.layers.0.linear_attn.A_log"
    assert decay.dtype == torch.float32
    assert torch.equal(decay, load_file(folder / "model.safetensors")[key])
    assert policy.has_linear_attention


def test_same_seed_gives_the_same_weights_and_leaves_the_callers_numbers_alone(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    first = make_miniature("llama", tmp_path / "a", seed=1, tie=True, dtype="float32")
    drawn = torch.rand(1)
    second = make_miniature("llama", tmp_path / "b", seed=1, tie=True, dtype="float32")
    torch.manual_seed(0)
    assert torch.equal(torch.rand(1), drawn)
    name = "model.safetensors"
    assert (first / name).read_bytes() == (second / name).read_bytes()


def test_vocabulary_has_both_boxed_answers_whole(tmp_path: Path) -> None:
    folder = make_miniature("qwen3", tmp_path, seed=1, tie=True, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert 32 <= len(tokenizer) <= 48
    for text in ("\\boxed{0}", "\\boxed{1}"):
        (token,) = tokenizer(text)["input_ids"]
        assert tokenizer.decode([token], skip_special_tokens=True) == text


def test_half_of_the_problems_have_each_gold_answer(tmp_path: Path) -> None:
    rows = miniature_rows(10)
    assert [row["answer"] for row in rows] == ["0", "1"] * 5
    assert len({row["id"] for row in rows}) == 10
    write_rows(tmp_path / "rows.jsonl", 3)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["problem"] == "What is the remainder of 1 0 1 divided by 2 ?"


def test_checkpoint_that_lacks_a_tensor_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    folder = make_miniature("qwen3", tmp_path, seed=1, tie=True, dtype="float32")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(RecipeError, match="model.norm.weight"):
        load_policy(str(folder), dtype=torch.float32)
