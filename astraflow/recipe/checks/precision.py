"""Rules on number types: what a step of the optimizer can still move."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.recipe.checks.case import Case
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

_TYPICAL_WEIGHT = 0.02
# Adam moves a weight by about lr, and a step below half a unit in the last place rounds back:
# with p bits of significand that is |w| / 2**p.
_SIGNIFICAND_BITS = {"bfloat16": 8, "float32": 24}


def _masters(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    if recipe.trainer.master_dtype == "bfloat16" and recipe.model.dtype == "float32":
        yield Problem(
            what="weights that compute in float32 cannot have bfloat16 masters",
            paths=("trainer.master_dtype", "model.dtype"),
            hint="set `trainer.master_dtype` to `float32`",
        )


def _rounding(case: Case) -> Iterator[Problem]:
    trainer = case.recipe.trainer
    lr, dtype = trainer.optimizer.lr, trainer.master_dtype
    scale = 2 ** _SIGNIFICAND_BITS[dtype]
    movable = scale * lr
    if movable >= _TYPICAL_WEIGHT:
        return
    cure = "`--set trainer.master_dtype=float32 --set trainer.optimizer.lr=1e-6` is the exact "
    yield Problem(
        what=f"with {dtype} masters a step of lr = {lr:g} rounds to nothing for weights "
        f"above {scale} * lr = {movable:.2g}, and typical weights are about {_TYPICAL_WEIGHT}",
        paths=("trainer.master_dtype", "trainer.optimizer.lr")
        if dtype == "bfloat16"
        else ("trainer.optimizer.lr", "trainer.master_dtype"),
        hint=f"{cure}variant" if dtype == "bfloat16" else "raise `trainer.optimizer.lr` to 1e-6",
        severity="warning",
    )


RULES = (_masters, _rounding)
