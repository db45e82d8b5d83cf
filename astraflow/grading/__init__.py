"""Grade answers in mathematics, under hard limits, and sum the grades up with intervals."""

from __future__ import annotations

from astraflow.grading.boxes import AnswerPlace
from astraflow.grading.math_answers import check_gold, gold_text, grade
from astraflow.grading.pool import GradingPool
from astraflow.grading.reward import FunctionReward, GradeRequest, GradeResult, Reward
from astraflow.plugins import Plugin
from astraflow.recipe.base import RecipeModel

__all__ = [
    "AnswerPlace",
    "FunctionReward",
    "GradeRequest",
    "GradeResult",
    "GradingPool",
    "MathVerifySettings",
    "Reward",
    "check_gold",
    "gold_text",
    "grade",
    "plugin",
]


class MathVerifySettings(RecipeModel):
    """Has no settings of its own; limits are in the recipe's `workflow` section."""


def _build(*, workers: int, timeout_s: float, answer: AnswerPlace) -> Reward:
    import math_verify  # noqa: F401  absent, it names the extra that brings it

    return GradingPool(workers=workers, timeout_s=timeout_s, answer=answer)


plugin: Plugin[Reward] = Plugin(
    name="math_verify", settings=MathVerifySettings, build=_build, extra="train"
)
