"""Two-digit additions: all 8,100 pairs, 500 of them held out."""

from __future__ import annotations

import random

from astraflow.records import Prompt

__all__ = ["HELD_OUT", "addition_pairs", "additions"]

HELD_OUT = 500

# Fixed for good: the shipped model was warm-started on the training part alone.
_SPLIT_SEED = 0


def addition_pairs(*, held_out: bool) -> list[tuple[int, int]]:
    """Return one part of the split, in its shuffled order."""
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    random.Random(_SPLIT_SEED).shuffle(pairs)
    return pairs[:HELD_OUT] if held_out else pairs[HELD_OUT:]


def additions(dataset: str, *, held_out: bool, plain: bool = False) -> tuple[Prompt, ...]:
    """Return one part of the split as questions, or as plain lines to go on with."""
    question = "" if plain else " ?"
    return tuple(
        Prompt(id=f"{a}+{b}", problem=f"{a} + {b} ={question}", answer=str(a + b), dataset=dataset)
        for a, b in addition_pairs(held_out=held_out)
    )
