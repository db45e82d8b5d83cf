"""The tiny model that ships with the package."""

import json
from typing import Any

import pytest
import torch

from astraflow.learning.policy import load_policy
from astraflow.testing import tiny


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny.tiny_model_path())


def test_prompt_and_answer_are_a_few_tokens_with_single_digits(tokenizer: Any) -> None:
    prompt, answer = tiny._prompt(tokenizer, (12, 34)), tiny._answer(tokenizer, (52, 77))
    assert len(prompt) <= 40
    assert tokenizer.convert_ids_to_tokens(answer) == [
        "\\boxed{",
        *("1", "2", "9"),
        "}",
        "<|im_end|>",
    ]


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = "Let x ≠ 3.14, then\n\n\\frac{1}{2} of \\boxed{}; 100%"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_template_opens_thinking_only_when_it_is_on(tokenizer: Any) -> None:
    def rendered(**flags: Any) -> str:
        text: str = tokenizer.apply_chat_template(
            [{"role": "user", "content": "1"}],
            tokenize=False,
            add_generation_prompt=True,
            **flags,
        )
        return text

    assert rendered(enable_thinking=True) == rendered() + "<think>\n"
    assert rendered(enable_thinking=False) == rendered()


def test_greedy_accuracy_on_held_out_additions_leaves_work_for_training(tokenizer: Any) -> None:
    policy = load_policy(str(tiny.tiny_model_path()), dtype=torch.float32)
    _, held_out = tiny._split()
    assert len(held_out) == 500
    assert 0.60 <= tiny.greedy_accuracy(policy.model, tokenizer, held_out) <= 0.73


def test_folder_is_small_and_says_where_answers_end(tokenizer: Any) -> None:
    folder = tiny.tiny_model_path()
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5_000_000
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.eos_token_id


def test_tokenizer_is_made_again_as_it_was_shipped(tokenizer: Any) -> None:
    assert tiny.build_tokenizer().get_vocab() == tokenizer.get_vocab()
