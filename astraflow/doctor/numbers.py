"""How far a kernel's results lie from a reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["compare"]


def compare(
    pairs: Mapping[str, tuple[Any, Any]], *, tolerance: float, dtype: str = ""
) -> tuple[str, bool]:
    """
    Compare tensors with their references.

    Args:
        pairs: A tensor and its reference each, of one shape, by name.
        tolerance: Largest |difference| over largest |reference| that rounding explains.
        dtype: Type that computed, for the text.

    Returns:
        The distances as text, and whether all are within the tolerance.
    """
    gaps = {name: _gap(tensor, reference) for name, (tensor, reference) in pairs.items()}
    right = all(gap <= tolerance for gap in gaps.values())  # NaN is refused too
    shown = ", ".join(f"{name} {gap:.1e}" for name, gap in gaps.items())
    return f"{dtype} {shown} of at most {tolerance:.0e}".strip(), right


def _gap(tensor: Any, reference: Any) -> float:
    expected = reference.detach().double().cpu()
    difference = tensor.detach().double().cpu() - expected
    return float(difference.abs().max() / expected.abs().max())
