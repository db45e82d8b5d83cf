"""
Evaluation of any checkpoint outside a run, with the sampling and grading code of RaaS.

    plan.py      what is evaluated, and the recipe that stands for it
    sampling.py  problems to graded groups, every one kept on disk at once
    results.py   groups on disk to scores with intervals
"""

from astraflow.evaluation.plan import EvaluationPlan
from astraflow.evaluation.results import read_problems
from astraflow.evaluation.sampling import run_evaluation

__all__ = ["EvaluationPlan", "read_problems", "run_evaluation"]
