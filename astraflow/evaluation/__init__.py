"""
Evaluation of any checkpoint outside a run, with the sampling and grading code of RaaS.

    plan.py       what is evaluated, and the recipe that stands for it
    sampling.py   problems to graded groups, every one kept on disk at once
    results.py    groups on disk to scores with intervals
    answers.py    evaluated answers in SQLite, by version, of runs and of evaluations
    comparing.py  two evaluations over the same problems
    markdown.py   results as a table
"""

from astraflow.evaluation.answers import evaluated_versions, solve_rates
from astraflow.evaluation.comparing import compare_saved, find_saved
from astraflow.evaluation.markdown import to_markdown
from astraflow.evaluation.plan import EvaluationPlan
from astraflow.evaluation.results import read_problems
from astraflow.evaluation.sampling import run_evaluation

__all__ = [
    "EvaluationPlan",
    "compare_saved",
    "evaluated_versions",
    "find_saved",
    "read_problems",
    "run_evaluation",
    "solve_rates",
    "to_markdown",
]
