"""Rules on weight transfer."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.recipe.checks.case import Case, ignored
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]


def _full_sends(case: Case) -> Iterator[Problem]:
    weights, steps = case.recipe.weights, case.recipe.trainer.steps
    interval = weights.full_sync_interval
    if weights.mode == "full":
        return
    if interval is None:
        yield Problem(
            what="delta transfer has no interval for full sends, so a broken chain would stay "
            "broken",
            paths=("weights.full_sync_interval", "weights.mode"),
            hint="set `weights.full_sync_interval` to 10",
        )
    elif interval == 1:
        yield Problem(
            what="every version is sent whole, so `weights.mode: delta` saves nothing",
            paths=("weights.full_sync_interval", "weights.mode"),
            hint="set `weights.full_sync_interval` to 10, or `weights.mode` to `full`",
            severity="warning",
        )
    elif interval > steps:
        yield Problem(
            what=f"the first full send would come after {interval} versions, and the run has "
            f"{steps}",
            paths=("weights.full_sync_interval", "trainer.steps"),
            hint=f"set `weights.full_sync_interval` to at most {steps}",
            severity="warning",
        )


def _ignored_settings(case: Case) -> Iterator[Problem]:
    weights, trainer = case.recipe.weights, case.recipe.trainer
    full = weights.mode == "full"
    for key in ("full_sync_interval", "keep_deltas", "snapshot"):
        path = f"weights.{key}"
        if full and case.written(path) and getattr(weights, key) is not None:
            yield ignored(path, "weights.mode", "full transfer sends no deltas")
    if not full and not trainer.gpus and case.written("weights.snapshot"):
        yield ignored("weights.snapshot", "trainer.gpus", "the trainer has no GPU")


RULES = (_full_sends, _ignored_settings)
