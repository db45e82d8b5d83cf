"""What comparisons ask of computer algebra, and the refusal to answer without it."""

from __future__ import annotations

from typing import Literal, NoReturn, Protocol

from astraflow.grading.numerals import Numeral

__all__ = ["Algebra", "AlgebraNeededError", "NoAlgebra", "UnreadableError"]


class AlgebraNeededError(Exception):
    """Two formulas can only be compared by computer algebra, in a worker process."""


class UnreadableError(ValueError):
    """
    A formula cannot be read.

    Args:
        side: Whether the gold or the answer is at fault.
    """

    def __init__(self, side: Literal["gold", "answer"], why: str) -> None:
        super().__init__(f"{side}: {why}")
        self.side = side


class Algebra(Protocol):
    """Compare formulas; all texts are spelled, the first is the gold."""

    def same(self, gold: str, answer: str, *, gold_number: Numeral | None) -> bool:
        """Say whether two formulas are equal wherever both are defined."""
        ...

    def same_angle(self, degrees: str, radians: str) -> bool:
        """Say whether an angle in degrees is the other one in radians."""
        ...

    def same_region(self, gold: str, answer: str) -> bool:
        """Say whether inequalities, intervals or unions describe one set of reals."""
        ...

    def same_relation(self, gold: tuple[str, str], answer: tuple[str, str]) -> bool:
        """Say whether two equations have the same solutions, up to a constant factor."""
        ...


class NoAlgebra:
    """Stands for computer algebra where it must not be imported."""

    def same(self, gold: str, answer: str, *, gold_number: Numeral | None) -> NoReturn:
        """Refuse."""
        raise AlgebraNeededError

    def same_angle(self, degrees: str, radians: str) -> NoReturn:
        """Refuse."""
        raise AlgebraNeededError

    def same_region(self, gold: str, answer: str) -> NoReturn:
        """Refuse."""
        raise AlgebraNeededError

    def same_relation(self, gold: tuple[str, str], answer: tuple[str, str]) -> NoReturn:
        """Refuse."""
        raise AlgebraNeededError
