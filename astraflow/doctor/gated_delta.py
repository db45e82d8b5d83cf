"""The gated delta rule of linear-attention layers, forward and backward against float32."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from astraflow.doctor.finding import Finding, fail, ok, skipped
from astraflow.doctor.numbers import compare
from astraflow.supervisor.plan import kernel_environment

__all__ = ["examine_gated_delta", "examine_rule"]

_TOKENS, _HEADS, _WIDTH = 160, 4, 128  # no multiple of a kernel's block of 64; the models' width
# Largest |difference| over largest |value|: bfloat16 operands in products of 128 terms. A wrong
# gradient is off by its own size.
_TOLERANCE = 6e-2
_NAMES = ("output", "dq", "dk", "dv", "dg", "dbeta")
_PACKAGE = "flash-linear-attention"

# q, k, v [1, tokens, heads, width], g and beta [1, tokens, heads], to [1, tokens, heads, width].
# g is the logarithm of a decay, q and k are normalized by the rule itself.
Rule: TypeAlias = Callable[[Any, Any, Any, Any, Any], Any]


def examine_gated_delta(device: str, *, wanted: bool) -> Iterator[Finding | str]:
    """
    Try the kernels that a trainer of Qwen3.5 or Qwen3-Next runs.

    Args:
        device: As torch names it.
        wanted: Whether the recipe's model has such layers.
    """
    label = f"gated delta {device}"
    yield label
    if device == "cpu":
        yield skipped(label, "its kernels need a GPU")
        return
    if importlib.util.find_spec("fla") is None:
        cure = f"`pip install {_PACKAGE} tilelang`"
        absent = f"{_PACKAGE} is not there, and transformers' own code is many times slower"
        yield fail(label, absent, cure) if wanted else skipped(label, f"{_PACKAGE} is not there")
        return
    yield examine_rule(_fla, label=label, device=device, dtype="bfloat16")


def examine_rule(
    rule: Rule, *, label: str, device: str, dtype: str, tolerance: float = _TOLERANCE
) -> Finding:
    """
    Run a rule on one sequence, forward and backward, and compare with the recurrence.

    Args:
        rule: What computes.
        label: Of the finding.
        device: As torch names it.
        dtype: Type of queries, keys and values.
        tolerance: Largest |difference| over largest |reference|.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (1, _TOKENS, _HEADS)
    q, k, v, towards = (torch.randn(*shape, _WIDTH, generator=generator) for _ in range(4))
    g = -torch.rand(shape, generator=generator)
    beta = torch.rand(shape, generator=generator)
    rounded = [tensor.to(getattr(torch, dtype)) for tensor in (q, k, v)]
    try:
        found = _forward_backward(rule, [t.to(device) for t in (*rounded, g, beta)], towards)
    except RuntimeError as error:
        first_line = str(error).partition("\n")[0]
        return fail(label, f"the kernels refuse: {first_line} ({_versions()})", _cure())
    expected = _forward_backward(_recurrence, [t.float() for t in (*rounded, g, beta)], towards)
    pairs = dict(zip(_NAMES, zip(found, expected, strict=True), strict=True))
    text, right = compare(pairs, tolerance=tolerance)
    if right:
        return ok(label, f"{text} ({_versions()})")
    return fail(label, f"wrong results: {text} ({_versions()})", _cure())


def _forward_backward(rule: Rule, inputs: Sequence[Any], towards: Any) -> list[Any]:
    """Return the output and the gradients of its product with ``towards``."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    output = rule(*leaves)
    output.backward(towards.to(output))
    return [output, *(leaf.grad for leaf in leaves)]


def _recurrence(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    """
    Write the rule out, token by token.

    Gated Delta Networks (arXiv 2412.06464), equation 10: the state forgets, then the value that
    it holds for this key moves towards the new one by ``beta``.
    """
    import torch
    from torch.nn.functional import normalize

    q, k = normalize(q, dim=-1) / q.shape[-1] ** 0.5, normalize(k, dim=-1)
    state = torch.zeros(*q.shape[:1], q.shape[2], q.shape[3], v.shape[3])
    outputs = []
    for t in range(q.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        held = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        step = (v[:, t] - held) * beta[:, t][..., None]
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], step)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1)


def _fla(q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    output, _ = chunk_gated_delta_rule(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)
    return output


def _versions() -> str:
    names = (_PACKAGE, "triton", "tilelang")
    return ", ".join(f"{name} {_version(name)}" for name in names)


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _cure() -> str:
    """Say what gives right gradients on Hopper, where Triton from 3.4 on does not."""
    home = kernel_environment()["CUDA_HOME"]
    there = "" if os.path.isdir(home) else f", and set CUDA_HOME: {home} is not there"
    return f"`pip install tilelang`, with FLA_TILELANG=1, which `astraflow run` sets itself{there}"
