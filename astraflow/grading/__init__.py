"""
Grading of mathematical answers: rules of our own around math-verify, in killable processes.

    boxes.py         which part of a completion is the answer
    spelling.py ...  what is written, brought to one form; numbers, units, words, regions
    compare.py       whether two forms are the same answer
    math_answers.py  one answer against one gold, in this process
    golds.py         golds that no answer can match
    pool.py          many answers, with a hard limit for each
    reward.py        the seam: what grades in a run
    statistics.py    avg@k, pass@k, maj@k and their intervals
"""

from __future__ import annotations

from astraflow.grading.boxes import AnswerPlace
from astraflow.grading.golds import report_golds, unverified_golds
from astraflow.grading.math_answers import check_gold, grade
from astraflow.grading.pool import GradingPool
from astraflow.grading.reward import FunctionReward, GradeRequest, GradeResult, Reward
from astraflow.plugins import Plugin
from astraflow.recipe.base import RecipeModel

__all__ = [
    "FunctionReward",
    "GradeRequest",
    "GradeResult",
    "GradingPool",
    "MathVerifySettings",
    "Reward",
    "check_gold",
    "grade",
    "plugin",
    "report_golds",
    "unverified_golds",
]


class MathVerifySettings(RecipeModel):
    """The reward has no settings beyond `workflow` itself."""


def _build(*, workers: int, timeout_s: float, answer: AnswerPlace) -> Reward:
    return GradingPool(workers=workers, timeout_s=timeout_s, answer=answer)


plugin: Plugin[Reward] = Plugin(
    name="math_verify",
    settings=MathVerifySettings,
    build=_build,
    extra="train",
    needs=("math_verify",),
)
