"""A checkpoint as a folder that transformers loads; needs no process group and no GPU."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from astraflow.errors import AstraFlowError
from astraflow_fsdp.loading import published_dtypes
from astraflow_fsdp.saving import stored_pieces

__all__ = ["export_checkpoint"]


def export_checkpoint(saved: Path, out: Path, *, model_path: str, dtype: str) -> None:
    """
    Assemble the weights of a saved step with config, tokenizer and generation settings.

    Raises:
        AstraFlowError: a parameter is not whole in the checkpoint.
    """
    with torch.device("meta"):
        config = AutoConfig.from_pretrained(model_path)
        lm = AutoModelForCausalLM.from_config(config)
    dtypes = published_dtypes(lm, getattr(torch, dtype))
    state = {}
    for name, parameter in lm.named_parameters(remove_duplicate=True):
        flat = torch.empty(math.prod(parameter.shape), dtype=dtypes[name])
        filled = 0
        for first, values in stored_pieces(saved, name):
            flat[first : first + len(values)] = values.to(dtypes[name])
            filled += len(values)
        if filled != len(flat):
            raise AstraFlowError(f"`{name}` has {filled} of {len(flat)} elements in `{saved}`")
        state[name] = flat.view(parameter.shape)
    _restore_aliases(lm, state)
    lm.save_pretrained(out, state_dict=state)
    AutoTokenizer.from_pretrained(model_path).save_pretrained(out)
    _copy_generation_config(model_path, out)


def _restore_aliases(lm: torch.nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Give tied names the tensor they share, so that the file says they are tied."""
    first: dict[int, str] = {}
    for name, parameter in lm.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(parameter), name)
        if known != name:
            state[name] = state[known]


def _copy_generation_config(model_path: str, out: Path) -> None:
    try:
        GenerationConfig.from_pretrained(model_path).save_pretrained(out)
    except OSError:
        return  # the checkpoint has none, so the export has none
