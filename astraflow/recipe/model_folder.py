"""Read a model's folder: what its config.json and tokenizer say, and what is wrong with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from astraflow.recipe.models import ModelFacts, known_models, local_path
from astraflow.recipe.nearest import nearest
from astraflow.recipe.paths import expand_path, is_file, is_folder

__all__ = ["folder_problem", "read_facts"]

_HUB_ID = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
# Layers of these kinds hold keys and values; all others, such as the gated delta rule, a state.
_ATTENTION_KINDS = ("full_attention", "sliding_attention", "chunked_attention", "attention")
# Every fourth layer attends in the families that do not list their layers.
_HYBRID_INTERVAL = 4
_WEIGHTS = ("*.safetensors", "*.bin")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json")


def folder_problem(path: str) -> tuple[str, str]:
    """Say what keeps a path from being a model, and the cure; empty when nothing is seen."""
    folder = expand_path(local_path(path))
    if path.startswith("builtin:") and folder == Path(path):
        return f"no model called `{path}` ships with the package", nearest(path, known_models())
    if is_file(folder):
        return f"`{path}` is a file, and a model is a folder", f"name the folder: `{folder.parent}`"
    if not is_folder(folder):
        if _HUB_ID.fullmatch(path) and not path.startswith("."):
            return "", ""
        return (
            f"`{path}` is neither a folder on this machine nor the name of a model on a hub",
            f"a hub id is `owner/name`; {nearest(path, known_models())}",
        )
    return _content_problem(path, folder)


def _content_problem(path: str, folder: Path) -> tuple[str, str]:
    again = "download the checkpoint again, whole"
    if not is_file(folder / "config.json"):
        below = sorted(found.parent.name for found in folder.glob("*/config.json"))
        hint = f"did you mean `{path.rstrip('/')}/{below[0]}`" if below else again
        return f"the folder `{path}` has no config.json, so it holds no model", hint
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        if is_file(folder / name) and (why := _json_problem(folder / name)):
            return f"`{name}` of `{path}` {why}", again
    if not any(is_file(folder / name) for name in _TOKENIZERS):
        return f"the folder `{path}` has no tokenizer", again
    if not any(found for pattern in _WEIGHTS for found in folder.glob(pattern)):
        return f"the folder `{path}` has no weights (*.safetensors)", again
    return "", ""


def _json_problem(path: Path) -> str:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return f"cannot be read: {str(error).splitlines()[0]}"
    return "" if isinstance(value, dict) else "holds no mapping"


def read_facts(folder: Path) -> ModelFacts | None:
    """Return what a folder says of its model; None where the config is not one that we know."""
    try:
        return _read_config(folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None  # folder_problem says what can be said; loading the model says the rest


def _read_config(folder: Path) -> ModelFacts:
    whole: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    text: dict[str, Any] = whole.get("text_config") or whole
    heads = _count(text, "num_attention_heads")
    hidden = _count(text, "hidden_size")
    template = _chat_template(folder)
    return ModelFacts(
        model_type=str(whole.get("model_type", "unknown")),
        num_layers=_count(text, "num_hidden_layers"),
        hidden=hidden,
        intermediate=_count(text, "intermediate_size", 4 * hidden),
        num_heads=heads,
        num_kv_heads=_count(text, "num_key_value_heads", heads),
        head_dim=_count(text, "head_dim", max(hidden // heads, 1)),
        vocab=_count(text, "vocab_size"),
        tied=bool(whole.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        max_position=_max_position(text),
        rope_scaled=_rope_type(_rope(text)) != "default",
        linear_attention_layers=_linear_layers(text),
        has_chat_template=None if template is None else bool(template),
        can_think=None if template is None else "enable_thinking" in template,
        generates=_generates(whole),
        quantized=_quantization(whole),
    )


def _count(config: dict[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"`{key}` is {value!r}, which is no positive number")
    return value


def _rope(text: dict[str, Any]) -> dict[str, Any]:
    rope: dict[str, Any] = text.get("rope_scaling") or text.get("rope_parameters") or {}
    return rope


def _rope_type(rope: dict[str, Any]) -> str:
    return str(rope.get("rope_type", rope.get("type", "default")))


def _max_position(text: dict[str, Any]) -> int:
    """Positions that engines allow: older configs leave the stretching out of their number."""
    positions = _count(text, "max_position_embeddings", 0)
    rope = _rope(text)
    stretched = _rope_type(rope) in ("linear", "dynamic", "yarn")
    if stretched and "original_max_position_embeddings" not in rope:
        positions = int(positions * float(rope.get("factor", 1)))
    return positions


def _linear_layers(text: dict[str, Any]) -> int:
    kinds = text.get("layer_types")
    if kinds:
        return sum(kind not in _ATTENTION_KINDS for kind in kinds)
    if "full_attention_interval" in text or "linear_num_value_heads" in text:
        layers = _count(text, "num_hidden_layers")
        return layers - layers // _count(text, "full_attention_interval", _HYBRID_INTERVAL)
    return 0


def _generates(whole: dict[str, Any]) -> bool:
    named = whole.get("architectures") or ["ForCausalLM"]
    goes_on = any(re.search("ForCausalLM|ForConditionalGeneration|LMHead", name) for name in named)
    return goes_on and not whole.get("is_encoder_decoder", False)


def _quantization(whole: dict[str, Any]) -> str:
    config = whole.get("quantization_config")
    return str(config.get("quant_method") or "an unnamed method") if config else ""


def _chat_template(folder: Path) -> str | None:
    """Return the template, empty when the tokenizer has none; None when there is no tokenizer."""
    for name in ("chat_template.jinja", "chat_template.json"):
        if is_file(folder / name):
            return (folder / name).read_text(encoding="utf-8")
    config = folder / "tokenizer_config.json"
    if not is_file(config):
        return None
    template = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    return template if isinstance(template, str) else json.dumps(template or "").strip('"')
