"""Facts of model configurations that checks need: known ones by name, others from a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ModelFacts", "find_facts", "local_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a model's config.json and tokenizer say, as far as a recipe depends on it."""

    model_type: str
    """The architecture's name in transformers, such as ``qwen3``."""

    num_layers: int
    """Decoder layers (count)."""

    hidden: int
    """Width of the residual stream (elements)."""

    intermediate: int
    """Width inside the MLP (elements)."""

    num_heads: int
    """Query heads of full attention (count)."""

    num_kv_heads: int
    """Key-value heads of full attention (count)."""

    head_dim: int
    """Width of one head (elements)."""

    vocab: int
    """Rows of the embedding (count)."""

    tied: bool
    """True if the head is the embedding."""

    max_position: int
    """Longest context that the checkpoint was made for (tokens)."""

    rope_scaled: bool = False
    """True if the config stretches its positions."""

    linear_attention_layers: int = 0
    """Gated-DeltaNet or other linear-attention layers (count)."""

    has_chat_template: bool | None = True
    """None where only the tokenizer, which was not read, could tell."""

    gated: bool = False
    """True if the hub asks for an accepted licence and a token."""

    quantized: str = ""
    """Quantization method of the checkpoint; empty for plain weights."""

    @property
    def num_parameters(self) -> int:
        """Weights, tied ones once (count); linear-attention layers counted like full ones."""
        attention = self.hidden * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.num_layers * layer + embeddings + self.hidden


def _qwen3(layers: int, hidden: int, intermediate: int, heads: int, *, tied: bool) -> ModelFacts:
    return ModelFacts(
        model_type="qwen3",
        num_layers=layers,
        hidden=hidden,
        intermediate=intermediate,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        vocab=151936,
        tied=tied,
        max_position=40960,
    )


def _llama3(*, chat: bool) -> ModelFacts:
    return ModelFacts(
        model_type="llama",
        num_layers=32,
        hidden=4096,
        intermediate=14336,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab=128256,
        tied=False,
        max_position=8192,
        has_chat_template=chat,
        gated=True,
    )


# Facts of the published config.json files; no weights and no tokenizer come with them.
_KNOWN: dict[str, ModelFacts] = {
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 3072, 16, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 6144, 16, tied=True),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 9728, 32, tied=True),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 12288, 32, tied=False),
    "Qwen/Qwen3.5-4B": ModelFacts(
        model_type="qwen3_5",
        num_layers=32,
        hidden=2560,
        intermediate=9216,
        num_heads=16,
        num_kv_heads=4,
        head_dim=256,
        vocab=248320,
        tied=True,
        max_position=262144,
        linear_attention_layers=24,
    ),
    "meta-llama/Meta-Llama-3-8B-Instruct": _llama3(chat=True),
    "meta-llama/Meta-Llama-3-8B": _llama3(chat=False),
}


_BUILTIN = {"builtin:tiny": Path(__file__).resolve().parents[1] / "testing" / "tiny_model"}


def local_path(path: str) -> str:
    """Return where a model that ships with the package lies; any other path as it is."""
    return str(_BUILTIN.get(path, path))


def find_facts(path: str) -> ModelFacts | None:
    """Return a model's facts from the table or from a local folder; None when neither has them."""
    if path in _KNOWN:
        return _KNOWN[path]
    config = Path(local_path(path)).expanduser() / "config.json"
    if not config.is_file():
        return None
    try:
        return _read_config(config)
    except (OSError, json.JSONDecodeError, KeyError, TypeError):
        return None  # not a config that we can judge; loading the model will say what is wrong


def _read_config(path: Path) -> ModelFacts:
    whole: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    text: dict[str, Any] = whole.get("text_config") or whole
    heads = text["num_attention_heads"]
    kinds = text.get("layer_types") or []
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    return ModelFacts(
        model_type=whole.get("model_type", "unknown"),
        num_layers=text["num_hidden_layers"],
        hidden=text["hidden_size"],
        intermediate=text.get("intermediate_size", 4 * text["hidden_size"]),
        num_heads=heads,
        num_kv_heads=text.get("num_key_value_heads", heads),
        head_dim=text.get("head_dim") or text["hidden_size"] // heads,
        vocab=text["vocab_size"],
        tied=bool(whole.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        max_position=text.get("max_position_embeddings", 0),
        rope_scaled=rope.get("rope_type", rope.get("type", "default")) != "default",
        linear_attention_layers=sum("linear" in kind for kind in kinds),
        has_chat_template=_has_chat_template(path.parent),
        quantized=(whole.get("quantization_config") or {}).get("quant_method", ""),
    )


def _has_chat_template(folder: Path) -> bool | None:
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return None
    return bool(json.loads(config.read_text(encoding="utf-8")).get("chat_template"))
