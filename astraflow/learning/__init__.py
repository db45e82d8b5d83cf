"""What a policy learns from: advantages and losses, as pure functions of log-probabilities."""

from astraflow.learning.advantages import batch_normalize, group_normalize
from astraflow.learning.objective import MinibatchTotals, Objective, build_objective

__all__ = [
    "MinibatchTotals",
    "Objective",
    "batch_normalize",
    "build_objective",
    "group_normalize",
]
