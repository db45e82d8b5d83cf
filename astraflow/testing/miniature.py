r"""
Miniatures: any supported architecture with two to four random layers and a toy vocabulary.

`astraflow run RECIPE --smoke` trains one in place of the recipe's model. The vocabulary has
`\boxed{0}` and `\boxed{1}` as whole tokens and an end token, so random sampling ends by itself
after about 40 tokens and about half of its boxed answers are right: every part of the loop gets
real work, and nothing needs a download.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

__all__ = ["ModelType", "make_miniature", "miniature_rows", "write_rows"]

ModelType: TypeAlias = Literal["qwen3", "llama", "qwen3_5"]

_WORDS = (
    *("<unk>", "<pad>", "<eos>", "<user>", "<assistant>", "\\boxed{0}", "\\boxed{1}"),
    *"0123456789",
    *("What", "is", "the", "remainder", "of", "divided", "by", "2", "?", ".", ",", "+"),
    *("Please", "reason", "step", "and", "put", "your", "final", "answer", "within"),
)
_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<user> ' + message.content + ' <eos> ' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}"
)
# As in the published Qwen3.5 checkpoints, whatever type the other weights have.
_KEPT_FLOAT32 = ("A_log", "linear_attn.norm.weight")


def make_miniature(
    model_type: ModelType, folder: Path, *, seed: int, tie: bool, dtype: str
) -> Path:
    """
    Write a random checkpoint in Hugging Face format.

    A `qwen3_5` one has the layout of the published multimodal checkpoints: a vision tower, text
    weights under `model.language_model`, decay parameters in float32.

    Args:
        model_type: Architecture, by its name in transformers.
        folder: Where it goes; made if absent.
        seed: Seed of the weights.
        tie: Whether the head is the embedding.
        dtype: `float32` or `bfloat16`, type of the stored weights.

    Returns:
        ``folder``.
    """
    import torch

    tokenizer = _build_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _build_model(model_type, tokenizer, tie=tie)
    model = model.to(getattr(torch, dtype))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    if model_type == "qwen3_5" and dtype != "float32":
        _keep_decay_in_float32(folder)
    return folder


def miniature_rows(n: int) -> list[dict[str, str]]:
    """Return ``n`` problems whose gold answers are 0 and 1 in turn, as dataset rows."""
    return [
        {
            "id": f"remainder-{number}",
            "problem": f"What is the remainder of {' '.join(str(number))} divided by 2 ?",
            "answer": str(number % 2),
        }
        for number in range(100, 100 + n)
    ]


def _build_tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = dict.fromkeys(_WORDS)
    tokenizer = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<eos>",
        chat_template=_TEMPLATE,
        model_max_length=4096,
        clean_up_tokenization_spaces=False,
    )


def _build_model(model_type: ModelType, tokenizer: Any, *, tie: bool) -> Any:
    import transformers

    common: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tie,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if model_type == "qwen3":
        config: Any = transformers.Qwen3Config(num_hidden_layers=2, **common)
    elif model_type == "llama":
        config = transformers.LlamaConfig(num_hidden_layers=2, **common)
    else:
        config = _qwen3_5_config(common, tie=tie)
        return transformers.Qwen3_5ForConditionalGeneration(config)  # type: ignore[no-untyped-call]
    return transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]


def _qwen3_5_config(common: dict[str, Any], *, tie: bool) -> Any:
    from transformers import Qwen3_5Config

    text = {
        **common,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": common["hidden_size"],
        "num_position_embeddings": 16,
    }
    return Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=tie)


def _keep_decay_in_float32(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in tensors:
        if name.endswith(_KEPT_FLOAT32):
            tensors[name] = tensors[name].float()
    save_file(tensors, path, metadata={"format": "pt"})


def write_rows(path: Path, n: int) -> None:
    """Write :func:`miniature_rows` as JSON lines."""
    rows = (json.dumps(row) for row in miniature_rows(n))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
