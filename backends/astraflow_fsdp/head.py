"""The language-model head and its log-softmax, in float32 and without logits that are kept."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["HeadLogprobs"]


class HeadLogprobs(torch.autograd.Function):
    """
    Log-probabilities of one chunk of targets.

    Logits are float32 although hidden states and weight may be bfloat16: rounded to bfloat16, a
    logit of 20 is off by up to 0.06, and a log-probability with it. The backward pass makes the
    logits again instead of keeping them, and reads them once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        compiled: bool,
    ) -> Tensor:
        """
        Score.

        Args:
            ctx: What the backward pass reads.
            hidden: ``[rows, width]``.
            weight: ``[vocabulary, width]``, of the same type.
            targets: ``[rows]`` int64.
            temperature: Log-probabilities are of ``logits / temperature``.
            compiled: Compile what follows the matrix product.

        Returns:
            ``[rows]`` float32 (nats).
        """
        picked, normalizer = _function("score", compiled)(
            _logits(hidden, weight), targets, temperature
        )
        ctx.save_for_backward(hidden, weight, targets, normalizer)
        ctx.temperature, ctx.compiled = temperature, compiled
        return picked - normalizer  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states and weight."""
        hidden, weight, targets, normalizer = ctx.saved_tensors
        slope = _function("slope", ctx.compiled)(
            _logits(hidden, weight),
            targets,
            normalizer,
            gradients[0],
            ctx.temperature,
            hidden.dtype,
        )
        return slope @ weight, slope.t() @ hidden, None, None, None


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return ``[rows, vocabulary]`` float32; products are summed in float32 and not rounded."""
    if hidden.dtype == torch.float32:
        return hidden @ weight.t()
    if hidden.device.type == "cuda":
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return hidden.float() @ weight.float().t()


def _score(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return ``[rows]`` scaled logits of the targets, and log-sums over the vocabulary."""
    scaled = logits / temperature
    return scaled.gather(1, targets[:, None])[:, 0], scaled.logsumexp(1)


def _slope(
    logits: Tensor,
    targets: Tensor,
    normalizer: Tensor,
    gradient: Tensor,
    temperature: float,
    dtype: torch.dtype,
) -> Tensor:
    """
    Return ``[rows, vocabulary]``, the loss's gradient by the logits.

    Rounded to ``dtype`` here, so that compiled code never writes the float32 one.
    """
    probabilities = torch.exp(logits / temperature - normalizer[:, None])
    ids = torch.arange(logits.shape[1], device=logits.device)
    hit = (ids[None, :] == targets[:, None]).to(logits.dtype)
    return ((hit - probabilities) * (gradient / temperature)[:, None]).to(dtype)


@cache
def _function(name: str, compiled: bool) -> Any:
    function: Any = {"score": _score, "slope": _slope}[name]
    return torch.compile(function) if compiled else function
