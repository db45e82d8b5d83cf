"""Where SGLang keeps a checkpoint's tensors: under their own names, or stacked by rows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

__all__ = ["find_tensors"]

# A parameter of SGLang's, and the checkpoint's parts that are its rows, in order.
_STACKED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
}
# What multimodal checkpoints put before the names of their language model.
_PREFIXES = (("model.language_model.", "model."),)


def find_tensors(
    parameters: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Tensor], list[str]]:
    """
    Find the place of every tensor of a checkpoint.

    Args:
        parameters: SGLang's, by its names.
        shapes: Shapes of the checkpoint's tensors, by theirs.

    Returns:
        For each checkpoint name a view of its shape; what has no place, with the reason.
    """
    found: dict[str, Tensor] = {}
    unmapped: list[str] = []
    for name, shape in shapes.items():
        place, first = _place(name, shapes)
        parameter = parameters.get(place)
        if parameter is None:
            unmapped.append(f"{name}: the server has no `{place}`")
            continue
        row = math.prod(shape[1:])
        count = math.prod(shape)
        # An embedding may have more rows than the checkpoint's, to a round number.
        if not parameter.is_contiguous() or first * row + count > parameter.numel():
            unmapped.append(f"{name}: {list(shape)} does not fit {list(parameter.shape)}")
            continue
        if math.prod(parameter.shape[1:]) != row:
            unmapped.append(f"{name}: rows of {row}, and {list(parameter.shape)} there")
            continue
        if parameter.element_size() != 2:  # noqa: PLR2004 - bytes of bfloat16 and float16
            unmapped.append(f"{name}: held as {parameter.dtype}, quantized weights are not patched")
            continue
        found[name] = parameter.view(-1)[first * row : first * row + count].view(shape)
    return found, unmapped


def _place(name: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[str, int]:
    """Return SGLang's name for a tensor's parameter, and the tensor's first row in it."""
    place = name
    for theirs, ours in _PREFIXES:
        place = place.replace(theirs, ours, 1)
    for stacked, parts in _STACKED.items():
        for number, part in enumerate(parts):
            if f".{part}." in name:
                before = [name.replace(f".{part}.", f".{other}.") for other in parts[:number]]
                first = sum(shapes[other][0] for other in before if other in shapes)
                return place.replace(f".{part}.", f".{stacked}."), first
    return place, 0
