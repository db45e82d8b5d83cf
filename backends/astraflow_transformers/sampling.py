"""Sampling: one uniform number a token through the inverse of the cumulative distribution."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["draw"]


def draw(
    logits: Tensor, *, temperature: Tensor, uniform: Tensor, top_p: Tensor | None
) -> tuple[Tensor, Tensor]:
    """
    Draw a token for each row.

    The model's own generation settings play no part. Rows of temperature 0 take the likeliest
    token and report its log-probability at temperature 1, as other engines do.

    Args:
        logits: ``[rows, vocabulary]`` of any float type.
        temperature: ``[rows]`` float32, 0 for greedy.
        uniform: ``[rows]`` float64 in [0, 1).
        top_p: ``[rows]`` float64; None when every row samples from the whole distribution.

    Returns:
        ``[rows]`` int64 token ids; ``[rows]`` float32 log-probabilities (nats) of the whole
        distribution at the row's temperature. A drawn token never has probability 0.
    """
    greedy = temperature == 0
    scaled = logits.float() / torch.where(greedy, 1.0, temperature)[:, None]
    logprobs = scaled.log_softmax(-1)
    probabilities = logprobs.double().exp()
    if top_p is not None:
        probabilities = _nucleus(probabilities, top_p)
    cumulative = probabilities.cumsum(-1)
    total = cumulative[:, -1:]
    tokens = (cumulative <= uniform[:, None] * total).sum(-1)
    # Rounding can lift the product to the total itself: stay on the last token with any weight.
    tokens = torch.minimum(tokens, (cumulative < total).sum(-1))
    tokens = torch.where(greedy, logprobs.argmax(-1), tokens)
    return tokens, logprobs.gather(-1, tokens[:, None])[:, 0]


def _nucleus(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """Zero what is outside the smallest set of likeliest tokens with ``top_p`` of the mass."""
    ordered, order = probabilities.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.where(before < top_p[:, None], ordered, 0.0)
    return torch.zeros_like(probabilities).scatter(-1, order, kept)
