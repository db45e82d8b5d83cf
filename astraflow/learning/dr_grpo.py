"""Dr. GRPO: GRPO with a divisor that no answer's length can move."""

from __future__ import annotations

__all__ = ["CLIP_HIGH", "CLIP_LOW", "constant_divisor"]

CLIP_LOW = 0.2
CLIP_HIGH = 0.2


def constant_divisor(sequences: int, max_new_tokens: int) -> float:
    """
    Return what the sum of token losses is divided by: sequences times the longest answer.

    A long wrong answer is then punished as much per token as a short one. The other half of
    the method, advantages that are not divided by the group's deviation, is the recipe's
    `reward_norm: mean_only`.

    Args:
        sequences: of the mini-batch over all ranks (count).
        max_new_tokens: longest answer that sampling allows (tokens).

    Source:
        Dr. GRPO, arXiv:2503.20783, section 3.2, where the divisor is the generation budget.
    """
    return float(max(sequences, 1) * max(max_new_tokens, 1))
