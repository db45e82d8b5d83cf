"""
Every error that AstraFlow raises on purpose, and the exit code of each branch.

    AstraFlowError                  1
      RecipeError                   2   the recipe or a file it names cannot be used as written
        DataError                   2   a dataset is absent, empty or cannot be read
      PluginError                   3   an adapter, workflow or reward is absent, broken or double
      HardwareError                 4   this machine cannot run the recipe
      RoleError                    10   a role ended; 11 for RaaS, 12 for the trainer
      NotReadyError                13   something was not ready within its deadline
      NoProgressError              14   nothing moved within the recipe's bound
      WireError                    20   a frame or a message was cut, garbled, foreign or late
        StaleBaseError             20   a delta was made against a version we do not hold
        ProofError                 20   weights do not hash to what their sender proved
      LossInputError               12   log-probabilities or rewards that no loss can use
      StoppedError                130   somebody asked the run to stop
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AstraFlowError",
    "DataError",
    "HardwareError",
    "LossInputError",
    "NoProgressError",
    "NotReadyError",
    "PluginError",
    "ProofError",
    "RecipeError",
    "RoleError",
    "StaleBaseError",
    "StoppedError",
    "WireError",
]


class AstraFlowError(Exception):
    """
    An error meant for the person at the keyboard.

    Args:
        what: What is wrong, as one sentence with the value in it and no full stop.
        where: Where it comes from, such as ``recipe.yaml:18:3``; empty when nowhere.
        hint: What to do next: a command or a field; empty when there is nothing to try.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Say the whole error on one line, for logs."""
        where = f" ({self.where})" if self.where else ""
        hint = f"; hint: {self.hint}" if self.hint else ""
        return f"{self.what}{where}{hint}"


class RecipeError(AstraFlowError):
    """The recipe cannot run as written; ``problems`` holds every broken rule."""

    exit_code = 2

    def __init__(
        self,
        what: str,
        *,
        where: str = "",
        hint: str = "",
        problems: Sequence[AstraFlowError] = (),
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.problems = tuple(problems)


class DataError(RecipeError):
    """A dataset is absent, empty or cannot be read."""


class PluginError(AstraFlowError):
    """An adapter, workflow or reward is absent, broken or named twice."""

    exit_code = 3


class HardwareError(AstraFlowError):
    """The machine at hand cannot run the recipe."""

    exit_code = 4


class RoleError(AstraFlowError):
    """A role ended on its own; the exit code tells which."""

    exit_code = 10

    def __init__(self, what: str, *, exit_code: int = 10, where: str = "", hint: str = "") -> None:
        super().__init__(what, where=where, hint=hint)
        self.exit_code = exit_code


class NotReadyError(AstraFlowError):
    """Something was not ready within its deadline."""

    exit_code = 13


class NoProgressError(AstraFlowError):
    """Nothing moved within the recipe's bound."""

    exit_code = 14


class WireError(AstraFlowError):
    """A frame or a message was cut, garbled, foreign or late."""

    exit_code = 20


class StaleBaseError(WireError):
    """A delta was made against a version that this receiver does not hold."""


class ProofError(WireError):
    """
    Weights do not hash to what their sender proved.

    Args:
        what: As in :class:`AstraFlowError`.
        tensors: Names of the tensors that differ.
    """

    def __init__(self, what: str, *, tensors: Sequence[str], hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.tensors = tuple(tensors)


class LossInputError(AstraFlowError):
    """Log-probabilities or rewards that no loss can use."""

    exit_code = 12


class StoppedError(AstraFlowError):
    """Somebody asked the run to stop."""

    exit_code = 130
