"""Random checkpoints with the shape of a real model, for measurements that need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from astraflow.errors import RecipeError
from astraflow.recipe.models import ModelFacts, find_facts, local_path

__all__ = ["model_folder"]


def model_folder(model: str, scratch: Path) -> tuple[Path, ModelFacts]:
    """
    Return a folder with a checkpoint of a model's shape.

    Args:
        model: A folder with weights, or the hub id of a known dense model.
        scratch: Where a random checkpoint goes when the model is no folder.

    Raises:
        RecipeError: the model is unknown or not a dense decoder.
    """
    facts = find_facts(model)
    if facts is None:
        raise RecipeError(
            f"the shape of `{model}` is not known here", hint="give a folder with a config.json"
        )
    folder = Path(local_path(model))
    if folder.is_dir() and list(folder.glob("*.safetensors")):
        return folder, facts
    if facts.model_type not in ("qwen3", "llama"):
        raise RecipeError(
            f"no random weights can be made for `{facts.model_type}`",
            hint="give a folder with weights",
        )
    _write(facts, scratch)
    return scratch, facts


def _write(facts: ModelFacts, folder: Path) -> None:
    """Write bfloat16 weights drawn as the architecture's own initialization does."""
    import transformers

    common: dict[str, Any] = {
        "vocab_size": facts.vocab,
        "hidden_size": facts.hidden,
        "intermediate_size": facts.intermediate,
        "num_hidden_layers": facts.num_layers,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "head_dim": facts.head_dim,
        "max_position_embeddings": facts.max_position,
        "tie_word_embeddings": facts.tied,
        "bos_token_id": None,
        "eos_token_id": facts.vocab - 1,
    }
    build = transformers.Qwen3Config if facts.model_type == "qwen3" else transformers.LlamaConfig
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        torch.manual_seed(0)
        build_model: Any = transformers.AutoModelForCausalLM.from_config
        model = build_model(build(**common), dtype=torch.bfloat16)
    model.save_pretrained(folder)
