"""Draw tokens from logits, exactly: the reported log-probability is that of the draw."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from astraflow.records import SampleRequest

__all__ = ["draw", "uniforms"]


def uniforms(request: SampleRequest) -> Tensor:
    """
    Return the request's random numbers, one a token: ``[max_new_tokens]`` float64 in [0, 1).

    They come from a counter-based generator seeded by the request alone, so a sample depends
    neither on its neighbors in a batch nor on when it ran.
    """
    generator = np.random.Generator(np.random.Philox(request.seed))
    return torch.from_numpy(generator.random(request.max_new_tokens))


def draw(
    logits: Tensor, temperatures: Tensor, top_ps: Tensor | None, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """
    Draw one token a row.

    By inverting the cumulative distribution in float64: with float32 the sum over a large
    vocabulary would be off by more than rare tokens weigh.

    Args:
        logits: ``[rows, vocab]`` of any float type.
        temperatures: ``[rows]`` float32; 0 takes the most likely token.
        top_ps: ``[rows]`` float32, or None when every row samples the full distribution.
        uniform: ``[rows]`` float64 in [0, 1).

    Returns:
        Tokens ``[rows]`` int64, and their log-probabilities ``[rows]`` float32 (nats) after
        temperature and before any top-p cut; for temperature 0 those of the untempered policy.
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    weights = logprobs.double().exp()
    if top_ps is not None:
        weights = _cut(weights, top_ps)
    cumulative = weights.cumsum(-1)
    # Below the total by construction, so the token found always has a weight above zero.
    target = uniform[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).squeeze(1)
    tokens = tokens.clamp_(max=logits.shape[1] - 1)
    if bool(greedy.any()):
        tokens = torch.where(greedy, logprobs.argmax(-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def _cut(weights: Tensor, top_ps: Tensor) -> Tensor:
    """Zero the tokens outside each row's nucleus: the fewest likely ones that reach ``top_p``."""
    ordered, order = weights.sort(dim=-1, descending=True)
    before = ordered.cumsum(-1) - ordered
    ordered = ordered * (before < top_ps[:, None])
    return torch.zeros_like(weights).scatter_(1, order, ordered)
