"""
Losses as pure functions of log-probabilities: no model, no process group, no I/O.

    advantages.py  rewards to advantages, within groups and over a batch
    m2po.py        which tokens M2PO keeps
    ratios.py      the surrogate losses: kept ratios, clipped ratios, ratios of whole sequences
    kl.py          the k3 estimate of the divergence from the starting policy
    objective.py   a recipe's algorithm as one object that the training loop calls
"""

from astraflow.learning.advantages import batch_normalize, group_normalize
from astraflow.learning.m2po import Selection, second_moment_selection
from astraflow.learning.objective import MinibatchTotals, Objective, build_objective

__all__ = [
    "MinibatchTotals",
    "Objective",
    "Selection",
    "batch_normalize",
    "build_objective",
    "group_normalize",
    "second_moment_selection",
]
