"""Facts of models that checks and plans need: known ones by name, others from their folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from astraflow.recipe.paths import expand_path, is_file

__all__ = ["ModelFacts", "find_facts", "has_gated_delta_name", "known_models", "local_path"]

_GATED_DELTA_NAME = re.compile(r"(?i)qwen3([._]5|[._-]?next)")


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

    can_think: bool | None = None
    """True if the chat template knows `enable_thinking`; None where nobody looked."""

    generates: bool = True
    """False for encoders and the like, which do not go on with a text."""

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
        can_think=True,
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
        can_think=False,
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
        can_think=True,
        linear_attention_layers=24,
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ModelFacts(
        model_type="llama",
        num_layers=30,
        hidden=576,
        intermediate=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab=49152,
        tied=True,
        max_position=8192,
        can_think=False,
    ),
    "meta-llama/Meta-Llama-3-8B-Instruct": _llama3(chat=True),
    "meta-llama/Meta-Llama-3-8B": _llama3(chat=False),
}


_BUILTIN = {"builtin:tiny": Path(__file__).resolve().parents[1] / "testing" / "tiny_model"}


def local_path(path: str) -> str:
    """Return where a model that ships with the package lies; any other path as it is."""
    return str(_BUILTIN.get(path, path))


def known_models() -> tuple[str, ...]:
    """List the names whose facts are known without a file."""
    return (*_BUILTIN, *_KNOWN)


def has_gated_delta_name(path: str) -> bool:
    """Tell whether a name is of a family with Gated-DeltaNet layers, whatever its size."""
    return _GATED_DELTA_NAME.search(path) is not None


def find_facts(path: str) -> ModelFacts | None:
    """Return a model's facts: from the table, its local folder, or what the hub left here."""
    # Only a model that is not in the table needs what reads its folder.
    from astraflow.recipe.model_folder import read_facts

    if path in _KNOWN:
        return _KNOWN[path]
    for folder in (expand_path(local_path(path)), *_cached(path)):
        if is_file(folder / "config.json"):
            return read_facts(folder)
    return None


def _cached(name: str) -> list[Path]:
    """Return the folder of a hub model that was downloaded before; nothing is asked for."""
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", name):
        return []
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = expand_path(os.environ.get("HF_HUB_CACHE", f"{home}/hub"))
    model = cache / f"models--{name.replace('/', '--')}"
    main = model / "refs" / "main"
    if not is_file(main):
        return []
    return [model / "snapshots" / main.read_text(encoding="utf-8").strip()]
