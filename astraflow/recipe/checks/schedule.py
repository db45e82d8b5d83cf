"""Rules on time: intervals and warm-up against steps, evaluation, deadlines."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.recipe.checks.case import Case
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

_BEAT_S = 1.0  # every role beats once a second
# A role imports torch and compiles before it is ready, and a large model is read from disk.
_MANY_RESTARTS = 100
_SHORTEST_START_S, _LARGE_WEIGHTS = 10.0, 10**9


def _intervals(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    for path, every in (
        ("checkpoint.every_steps", recipe.checkpoint.every_steps),
        ("evaluation.every_steps", recipe.evaluation.every_steps),
    ):
        idle = path.startswith("evaluation") and not recipe.evaluation.datasets
        if every is not None and every > recipe.trainer.steps and case.written(path) and not idle:
            yield Problem(
                what=f"`{path}` is {every} and the run has {recipe.trainer.steps} steps, so only "
                "the last step counts",
                paths=(path, "trainer.steps"),
                hint=f"set `{path}` to at most {recipe.trainer.steps}, or null",
                severity="warning",
            )
    keep = recipe.checkpoint.keep
    if keep > max(10, recipe.trainer.steps // (recipe.checkpoint.every_steps or 1)):
        yield Problem(
            what=f"{keep} checkpoints are kept, more than the run writes, so none is ever deleted",
            paths=("checkpoint.keep", "checkpoint.every_steps", "trainer.steps"),
            hint="2 are enough to resume from",
            severity="warning",
        )


def _updates(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    updates = recipe.trainer.steps * recipe.algorithm.updates_per_step
    optimizer = recipe.trainer.optimizer
    if optimizer.warmup_updates >= updates:
        yield Problem(
            what=f"the warm-up of {optimizer.warmup_updates} optimizer steps never "
            f"ends: the run has {updates}",
            paths=("trainer.optimizer.warmup_updates", "trainer.steps"),
            hint=f"set it below {updates}",
        )
    written = case.written("trainer.optimizer.max_skips_in_a_row")
    if written and optimizer.max_skips_in_a_row > updates:
        yield Problem(
            what=f"the run ends after {optimizer.max_skips_in_a_row} skipped steps in a row, and "
            f"it has {updates} in all",
            paths=("trainer.optimizer.max_skips_in_a_row", "trainer.steps"),
            hint="5 is the default",
            severity="warning",
        )


def _evaluation(case: Case) -> Iterator[Problem]:
    evaluation = case.recipe.evaluation
    if not evaluation.datasets:
        for key in type(evaluation).model_fields:
            if case.written(f"evaluation.{key}"):
                yield Problem(
                    what=f"`evaluation.{key}` is set and `evaluation.datasets` is empty, so "
                    "nothing is ever evaluated",
                    paths=(f"evaluation.{key}", "evaluation.datasets"),
                    hint="name a dataset; `astraflow data list` shows them",
                    severity="warning",
                )
                return
        return
    if evaluation.temperature > 1.5:
        yield Problem(
            what=f"an evaluation at the temperature {evaluation.temperature:g} scores mostly noise",
            paths=("evaluation.temperature",),
            hint="0.6 is the default; 0 is greedy",
            severity="warning",
        )
    if evaluation.temperature < 0.01 and evaluation.samples > 1:
        yield Problem(
            what=f"greedy evaluation gives {evaluation.samples} equal answers",
            paths=("evaluation.samples", "evaluation.temperature"),
            hint="set `evaluation.samples` to 1",
            severity="warning",
        )
    if evaluation.timeout_s < _SHORTEST_START_S:
        yield Problem(
            what=f"an evaluation that ends after {evaluation.timeout_s:g} s counts most answers "
            "as wrong",
            paths=("evaluation.timeout_s",),
            hint="3600 is the default",
            severity="warning",
        )


def _beats(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    for path, limit_s, default in (
        ("limits.heartbeat_s", recipe.limits.heartbeat_s, 60),
        ("dataflow.lease_timeout_s", recipe.dataflow.lease_timeout_s, 120),
    ):
        if limit_s <= 10 * _BEAT_S:
            dead = limit_s <= _BEAT_S
            yield Problem(
                what=f"`{path}` is {limit_s:g} s and roles give a sign of life every "
                f"{_BEAT_S:g} s, so "
                + ("every one counts as silent" if dead else "a short pause counts as the end"),
                paths=(path,),
                hint=f"set it well above {10 * _BEAT_S:g}; {default} is the default",
                severity="error" if dead else "warning",
            )


def _deadlines(case: Case) -> Iterator[Problem]:
    recipe, facts = case.recipe, case.facts
    limits = recipe.limits
    large = facts is not None and facts.num_parameters >= _LARGE_WEIGHTS
    if limits.ready_s < _SHORTEST_START_S * (3 if large else 1):
        yield Problem(
            what=f"{limits.ready_s:g} s are too short for a role to load this model",
            paths=("limits.ready_s", "model.path"),
            hint="600 is the default",
            severity="warning",
        )
    if limits.stop_s < _BEAT_S:
        yield Problem(
            what=f"a role that has {limits.stop_s:g} s to stop is killed before it has written "
            "its last numbers",
            paths=("limits.stop_s",),
            hint="30 is the default",
            severity="warning",
        )
    for path, longer_s, why in (
        (
            "rollout.request_timeout_s",
            recipe.rollout.request_timeout_s,
            "one slow answer may end the run",
        ),
        (
            "dataflow.lease_timeout_s",
            recipe.dataflow.lease_timeout_s,
            "the run may end before the prompts of a lost instance are handed out again",
        ),
    ):
        if limits.no_progress_s < longer_s:
            yield Problem(
                what=f"a run without progress ends after {limits.no_progress_s:g} s, sooner than "
                f"the {longer_s:g} s of `{path}`: {why}",
                paths=("limits.no_progress_s", path),
                hint=f"set `limits.no_progress_s` above {longer_s:g}",
                severity="warning",
            )


def _recovery(case: Case) -> Iterator[Problem]:
    recovery, mismatch = case.recipe.recovery, case.recipe.limits.mismatch_nats
    for key in ("raas_restarts", "dataflow_restarts", "trainer_restarts"):
        if getattr(recovery, key) > _MANY_RESTARTS:
            yield Problem(
                what=f"a role that dies again and again is started {getattr(recovery, key)} times "
                "before the run ends",
                paths=(f"recovery.{key}",),
                hint="3 is usual; 0 ends the run at once",
                severity="warning",
            )
    if recovery.window_s <= recovery.backoff_s:
        yield Problem(
            what=f"restarts count for {recovery.window_s:g} s and come {recovery.backoff_s:g} s "
            "apart, so none ever counts",
            paths=("recovery.window_s", "recovery.backoff_s"),
            hint="3600 is the default of `recovery.window_s`",
            severity="warning",
        )
    if not 1e-4 <= mismatch <= 1:
        told = "never warned about" if mismatch > 1 else "warned about in each step"
        yield Problem(
            what=f"a distance of {mismatch:g} nats between engine and trainer is {told}: on a GPU "
            "in bfloat16 it is about 0.03",
            paths=("limits.mismatch_nats",),
            hint="0.05 is the default",
            severity="warning",
        )


RULES = (_intervals, _updates, _evaluation, _beats, _deadlines, _recovery)
