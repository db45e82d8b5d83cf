"""Facts of GPUs, as their makers state them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from astraflow.errors import RecipeError

__all__ = ["Gpu", "read_hardware"]

_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    name: str
    memory_bytes: int


_KNOWN = {
    gpu.name: gpu
    for gpu in (
        Gpu(name="A100-40GB", memory_bytes=42 * _GB),
        Gpu(name="A100-80GB", memory_bytes=85 * _GB),
        Gpu(name="H100-80GB", memory_bytes=85 * _GB),
        Gpu(name="H200-141GB", memory_bytes=150 * _GB),
        Gpu(name="B200-180GB", memory_bytes=191 * _GB),
        Gpu(name="L40S-48GB", memory_bytes=48 * _GB),
        Gpu(name="A6000-48GB", memory_bytes=51 * _GB),
        Gpu(name="RTX4090-24GB", memory_bytes=25 * _GB),
    )
}


def read_hardware(text: str) -> tuple[int, Gpu]:
    """
    Read what a person typed, such as ``8xH100-80GB``.

    Raises:
        RecipeError: it has another form, or the GPU is unknown.
    """
    found = re.fullmatch(r"(\d+)x([\w-]+)", text.strip())
    gpu = _KNOWN.get(found.group(2)) if found else None
    if found is None or gpu is None:
        raise RecipeError(
            f"`--hardware` is `{text}`",
            hint=f"a number, `x` and a GPU, such as `8xH100-80GB`; known: {', '.join(_KNOWN)}",
        )
    return int(found.group(1)), gpu
