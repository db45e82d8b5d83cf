"""The attention kernels that a trainer may choose, forward and backward against float32."""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from astraflow.doctor.finding import Finding, fail, ok, skipped
from astraflow.doctor.numbers import compare

__all__ = ["KERNELS", "examine_attention", "examine_kernel"]

_LENGTHS = (37, 91)  # two packed sequences, neither a multiple of a kernel's block
_KV_HEADS = 2
_TOLERANCES = {"float32": 1e-4, "bfloat16": 3e-2}
_CURE = (
    "`--set trainer.fsdp.attention=sdpa --set trainer.fsdp.layout=padded`, or reinstall what "
    "brings the kernel: `pip install --force-reinstall {package}`"
)

# Query, key and value, each [tokens, heads, width], to [tokens, heads, width].
Kernel: TypeAlias = Callable[[Any, Any, Any], Any]


def examine_attention(
    device: str, *, wanted: str, head_dim: int, groups: int
) -> Iterator[Finding | str]:
    """
    Try the kernels that a trainer on this device may choose.

    Args:
        device: As torch names it.
        wanted: The recipe's setting; ``auto`` tries every kernel that is there.
        head_dim: Width of one head (elements).
        groups: Query heads for each head of keys and values (count).
    """
    on_gpu = device != "cpu"
    names = tuple(KERNELS) if wanted == "auto" else (wanted,)
    for name in names if on_gpu else ("sdpa",):
        label = f"attention {name}"
        yield label
        if name not in KERNELS:
            yield skipped(label, "transformers fetches it when a trainer starts")
            continue
        package, module, kernel = KERNELS[name]
        if importlib.util.find_spec(module) is None:
            cure = f"`pip install -U {package}`"
            absent = f"{module} is not there"
            yield skipped(label, absent) if wanted == "auto" else fail(label, absent, cure)
            continue
        for dtype in ("bfloat16",) if on_gpu else ("float32", "bfloat16"):
            yield examine_kernel(
                kernel,
                label=f"{label} {dtype} {device}",
                cure=_CURE.format(package=package),
                device=device,
                dtype=dtype,
                shape=(_KV_HEADS, groups, head_dim),
            )


def examine_kernel(
    kernel: Kernel,
    *,
    label: str,
    cure: str,
    device: str = "cpu",
    dtype: str = "float32",
    shape: tuple[int, int, int] = (_KV_HEADS, 2, 64),
) -> Finding:
    """
    Run a kernel on two packed sequences, forward and backward, and compare.

    Args:
        kernel: Attends causally within each sequence.
        label: Of the finding.
        cure: When it is wrong.
        device: As torch names it.
        dtype: Type that computes.
        shape: Heads of keys, query heads for each of them, width.
    """
    import torch

    kv_heads, groups, width = shape
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(sum(_LENGTHS), heads, width, generator=generator).to(getattr(torch, dtype))
        for heads in (kv_heads * groups, kv_heads, kv_heads)
    ]
    towards = torch.randn(inputs[0].shape, generator=generator)
    results = _forward_backward(kernel, [tensor.to(device) for tensor in inputs], towards)
    expected = _forward_backward(_reference, [tensor.float() for tensor in inputs], towards)
    names = ("output", "dq", "dk", "dv")
    pairs = dict(zip(names, zip(results, expected, strict=True), strict=True))
    found, right = compare(pairs, tolerance=_TOLERANCES[dtype])
    return ok(label, found) if right else fail(label, found, cure)


def _forward_backward(kernel: Kernel, inputs: Sequence[Any], towards: Any) -> list[Any]:
    """Return the output and the gradients of its product with ``towards``."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = kernel(*leaves)
    output.backward(towards.to(output))
    return [output, *(leaf.grad for leaf in leaves)]


def _reference(query: Any, key: Any, value: Any) -> Any:
    """Write softmax attention out, sequence by sequence."""
    import torch

    groups = query.shape[1] // key.shape[1]
    outputs, start = [], 0
    for length in _LENGTHS:
        rows = slice(start, start + length)
        start += length
        q, k, v = query[rows], *(t[rows].repeat_interleave(groups, 1) for t in (key, value))
        scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        outputs.append(torch.einsum("hij,jhd->ihd", weights, v))
    return torch.cat(outputs)


def _sdpa(query: Any, key: Any, value: Any) -> Any:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    outputs = []
    for q, k, v in zip(*(tensor.split(_LENGTHS) for tensor in (query, key, value)), strict=True):
        hq, hk, hv = (tensor.transpose(0, 1)[None] for tensor in (q, k, v))
        out = scaled_dot_product_attention(hq, hk, hv, is_causal=True, enable_gqa=True)
        outputs.append(out[0].transpose(0, 1))
    return torch.cat(outputs)


def _varlen(query: Any, key: Any, value: Any) -> Any:
    # mypy: the CPU build of torch types it, others may lack it.
    from torch.nn.attention.varlen import varlen_attn

    options = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = (
        {"window_size": (-1, 0)} if "window_size" in options else {"is_causal": True}
    )
    groups = query.shape[1] // key.shape[1]
    if "enable_gqa" in options:
        causal["enable_gqa"] = groups > 1
    else:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    bounds, longest = _bounds(query), max(_LENGTHS)
    return varlen_attn(query, key, value, bounds, bounds, longest, longest, **causal)


def _flash(query: Any, key: Any, value: Any) -> Any:
    from flash_attn import flash_attn_varlen_func

    bounds, longest = _bounds(query), max(_LENGTHS)
    return flash_attn_varlen_func(query, key, value, bounds, bounds, longest, longest, causal=True)


def _bounds(query: Any) -> Any:
    import torch

    lengths = torch.tensor((0, *_LENGTHS), device=query.device)
    return lengths.cumsum(0).to(torch.int32)


KERNELS: dict[str, tuple[str, str, Kernel]] = {
    "varlen": ("torch", "torch.nn.attention.varlen", _varlen),
    "flash_attention_2": ("flash-attn", "flash_attn", _flash),
    "sdpa": ("torch", "torch", _sdpa),
}
"""By the recipe's word: package, module and function, in the order that a trainer prefers."""
