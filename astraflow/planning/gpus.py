"""Facts of GPUs, as their makers state them, and which of them a machine's driver names."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from astraflow.errors import RecipeError

__all__ = ["Gpu", "known_gpu", "read_hardware"]

_GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU."""

    name: str
    """As `--hardware` names it."""

    memory_bytes: int
    """Of the whole device."""

    flops: float = 0.0
    """Dense bfloat16 operations with float32 sums (1/s); 0 where they are not known."""

    bytes_per_s: float = 0.0
    """Between the GPU and its memory; 0 where it is not known."""


def _gpu(name: str, memory_gb: int, teraflops: float, gb_per_s: float) -> Gpu:
    return Gpu(
        name=name,
        memory_bytes=memory_gb * _GB,
        flops=teraflops * 1e12,
        bytes_per_s=gb_per_s * 1e9,
    )


_KNOWN = {
    gpu.name: gpu
    for gpu in (
        _gpu("A100-40GB", 42, 312, 1555),
        _gpu("A100-80GB", 85, 312, 2039),
        _gpu("H100-80GB", 85, 989, 3350),
        _gpu("H200-141GB", 150, 989, 4800),
        _gpu("B200-180GB", 191, 2250, 7700),
        _gpu("L40S-48GB", 48, 362, 864),
        _gpu("A6000-48GB", 51, 155, 768),
        _gpu("RTX4090-24GB", 25, 165, 1008),
    )
}
# Words of the driver's name, as in "NVIDIA A100-SXM4-80GB" or "NVIDIA GeForce RTX 4090".
_WORDS = {
    r"A100": ("A100-40GB", "A100-80GB"),
    r"H100 80GB HBM3": ("H100-80GB",),
    r"H200": ("H200-141GB",),
    r"B200": ("B200-180GB",),
    r"L40S": ("L40S-48GB",),
    r"RTX A6000": ("A6000-48GB",),
    r"RTX 4090": ("RTX4090-24GB",),
}
_SAME_MEMORY_FRAC = 0.05


def read_hardware(text: str) -> tuple[int, Gpu]:
    """
    Read what a person typed, such as ``8xH100-80GB``.

    Raises:
        RecipeError: it has another form, or the GPU is unknown.
    """
    found = re.fullmatch(r"(\d{1,3})x([\w-]+)", text.strip())
    gpu = _KNOWN.get(found.group(2)) if found else None
    if found is None or gpu is None:
        raise RecipeError(
            f"`--hardware` is `{text}`",
            hint=f"a number, `x` and a GPU, such as `8xH100-80GB`; known: {', '.join(_KNOWN)}",
        )
    return int(found.group(1)), gpu


def known_gpu(device: str, memory_bytes: int) -> Gpu:
    """
    Return the facts of a device that a driver names.

    Args:
        device: The driver's name of it, such as ``NVIDIA H200``.
        memory_bytes: What the driver says of its memory; this counts, not the table's number.

    Returns:
        The known kind with this memory; of an unknown one only the memory.
    """
    for words, names in _WORDS.items():
        if re.search(rf"\b{words}\b", device):
            for gpu in (_KNOWN[name] for name in names):
                if abs(gpu.memory_bytes / memory_bytes - 1) <= _SAME_MEMORY_FRAC:
                    return replace(gpu, memory_bytes=memory_bytes)
    return Gpu(name=device, memory_bytes=memory_bytes)
