"""
The rules that span sections; every broken rule is found, with the place of each value.

    case.py        what every rule looks at
    inputs.py      names, datasets, columns, prompts
    lengths.py     prompts and answers against contexts and micro-batches
    model.py       the model's folder, shape and tokenizer
    placement.py   GPUs, copies, ranks
    batches.py     groups, mini-batches, samples in flight
    learning.py    loss and optimizer
    precision.py   steps too small for the type of the masters
    transfer.py    weights on their way
    schedule.py    intervals, evaluation, deadlines
    adapters.py    settings that an adapter would ignore or cannot do
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from astraflow.recipe.checks import (
    adapters,
    batches,
    inputs,
    learning,
    lengths,
    model,
    placement,
    precision,
    schedule,
    transfer,
)
from astraflow.recipe.checks.case import Case
from astraflow.recipe.files import ResolvedRecipe
from astraflow.recipe.models import find_facts
from astraflow.recipe.problems import Known, Problem

__all__ = ["check"]

_RULES: tuple[Callable[[Case], Iterable[Problem]], ...] = (
    *inputs.RULES,
    *lengths.RULES,
    *model.RULES,
    *placement.RULES,
    *batches.RULES,
    *learning.RULES,
    *precision.RULES,
    *transfer.RULES,
    *schedule.RULES,
    *adapters.RULES,
)


def check(resolved: ResolvedRecipe, known: Known) -> list[Problem]:
    """Apply every rule to one recipe; errors come before warnings."""
    case = Case(resolved=resolved, known=known, facts=find_facts(resolved.recipe.model.path))
    problems = [problem for rule in _RULES for problem in rule(case)]
    return sorted(problems, key=lambda problem: problem.severity)
