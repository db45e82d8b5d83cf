"""The k3 estimate of the divergence from the starting policy, bounded."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["k3"]

# exp(10) is large enough to pull any token back, and its gradient is still finite in float32.
_BOUND = 10.0


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """
    Estimate the divergence at each token: ``exp(x) - 1 - x`` with ``x = reference - policy``.

    Args:
        logprobs: ``[tokens]`` float32 (nats), with gradient.
        reference_logprobs: ``[tokens]`` float32 (nats).

    Returns:
        ``[tokens]`` float32, never below 0; ``x`` is clamped to 10 nats either way.

    Source:
        J. Schulman, "Approximating KL Divergence" (2020), estimator k3; the clamp is ours, as
        ``exp(30)`` would end a run.
    """
    difference = (reference_logprobs - logprobs).clamp(-_BOUND, _BOUND)
    return torch.expm1(difference) - difference
