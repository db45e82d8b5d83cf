"""What was probably meant: the nearest known name, the nearest numbers that divide."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection

__all__ = ["near_divisors", "nearest"]


_MOST_TRIED = 100_000


def near_divisors(number: int, near: int) -> str:
    """Return the two divisors of ``number`` closest to ``near``, as text."""
    small = [d for d in range(1, min(math.isqrt(number), _MOST_TRIED) + 1) if number % d == 0]
    divisors = {*small, *(number // d for d in small)}
    closest = sorted(divisors, key=lambda d: abs(d - near))[:2]
    return ", ".join(str(d) for d in sorted(closest))


def nearest(name: str, names: Collection[str]) -> str:
    """Return a hint with the known name closest to ``name``, and all known ones."""
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    known = f"known: {', '.join(sorted(names))}"
    return f"did you mean `{near[0]}`; {known}" if near else known
