"""Policy: a checkpoint's causal language model, and the checkpoint's names for its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from astraflow.errors import RecipeError

__all__ = ["Policy", "checkpoint_folder", "load_policy", "safetensors_name", "stored_tensors"]

# A multimodal checkpoint keeps its text model one level deeper than the text model itself does.
_PREFIXES = (("", ""), ("model.", "model.language_model."), ("model.", "language_model.model."))


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A loaded model and what its checkpoint says of its parameters."""

    model: Any
    """The causal language model (transformers has no types for it)."""

    names: Mapping[str, str]
    """Checkpoint name of each parameter, tied ones once, in the model's order."""

    float32_names: frozenset[str]
    """Parameters, by the model's names, that the checkpoint keeps in float32 among narrower
    ones, such as the decay of Gated-DeltaNet layers; they stay float32 everywhere."""

    @property
    def has_linear_attention(self) -> bool:
        """True if some layers carry a recurrent state instead of keys and values."""
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ()
        return any("linear" in kind or "mamba" in kind for kind in kinds)

    def published_dtype(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """Return the type that a parameter is sent and served in."""
        return torch.float32 if name in self.float32_names else dtype


def checkpoint_folder(path: str) -> Path:
    """
    Return a checkpoint's folder, fetching a hub id first if need be.

    Raises:
        RecipeError: it is neither a folder nor a checkpoint of the hub.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    patterns = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
    try:
        return Path(snapshot_download(path, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise RecipeError(
            f"`model.path` = `{path}` is no folder here and no checkpoint of the hub: {error}",
            hint="give a folder, or set HF_TOKEN if the checkpoint asks for acceptance",
        ) from error


def load_policy(path: str, *, dtype: torch.dtype, attention: str = "sdpa") -> Policy:
    """
    Load a checkpoint onto the CPU.

    Args:
        path: Folder or hub id.
        dtype: Type of the weights in memory; parameters that the checkpoint keeps in float32
            stay so.
        attention: Name of an attention implementation of transformers.

    Raises:
        RecipeError: there is no such checkpoint, or a parameter is not in it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = checkpoint_folder(path)
    stored = stored_tensors(folder)
    # A multimodal checkpoint's own type would win over ours: its text part is loaded by itself.
    config = AutoConfig.from_pretrained(folder).get_text_config()
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, attn_implementation=attention
    )
    assert all(parameter.dtype == dtype for parameter in model.parameters())
    names = {name: _name_in(stored, name, folder) for name, _ in model.named_parameters()}
    narrower = any(kind in ("BF16", "F16") for _, kind in stored.values())
    kept = {name for name, key in names.items() if narrower and stored[key][1] == "F32"}
    if dtype != torch.float32:
        _restore_float32(model, {name: stored[names[name]][0] for name in kept}, names)
    return Policy(model=model, names=names, float32_names=frozenset(kept))


def stored_tensors(folder: Path) -> dict[str, tuple[Path, str]]:
    """
    List a checkpoint's tensors: file and element type (``BF16``, ``F32``, ...) of each name.

    Raises:
        RecipeError: the folder has no safetensors.
    """
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({folder / file for file in weight_map.values()})
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RecipeError(
            f"`{folder}` holds no .safetensors file", hint="convert the checkpoint first"
        )
    found: dict[str, tuple[Path, str]] = {}
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - a safetensors handle does not iterate
                found[key] = (file, str(tensors.get_slice(key).get_dtype()))
    return found


def safetensors_name(dtype: torch.dtype) -> str:
    """Return an element type's name in safetensors, such as ``BF16``."""
    return {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}[dtype]


def _name_in(stored: Mapping[str, object], name: str, folder: Path) -> str:
    for short, long in _PREFIXES:
        if name.startswith(short):
            candidate = long + name.removeprefix(short)
            if candidate in stored:
                return candidate
    raise RecipeError(
        f"`{folder}` has no tensor for the parameter `{name}`",
        hint="the checkpoint is incomplete or of an architecture that is stored otherwise",
    )


def _restore_float32(model: Any, files: Mapping[str, Path], names: Mapping[str, str]) -> None:
    """Read back, unrounded, the parameters that loading cast to a narrower type."""
    from safetensors import safe_open

    for name, file in files.items():
        with safe_open(file, framework="pt") as tensors:
            exact: Tensor = tensors.get_tensor(names[name])
        model.get_parameter(name).data = exact
