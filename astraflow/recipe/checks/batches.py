"""Rules on groups, batches and mini-batches, and on samples in flight."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.recipe.checks.case import Case
from astraflow.recipe.nearest import near_divisors
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

# Rounds of sampling for one batch from which on the engines decode nearly one answer at a time.
_MANY_ROUNDS = 16


def _divisions(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    batch, group = recipe.trainer.batch_size, recipe.rollout.samples_per_prompt
    updates = recipe.algorithm.updates_per_step
    if batch % group:
        low = batch // group * group
        nearest = f"{low} or {low + group}" if low else f"{group}"
        yield Problem(
            what=f"a batch of {batch} sequences does not hold whole groups of {group}",
            paths=("trainer.batch_size", "rollout.samples_per_prompt"),
            hint=f"set `trainer.batch_size` to {nearest}",
        )
    if batch % updates:
        yield Problem(
            what=f"a batch of {batch} sequences cannot be split into {updates} equal mini-batches",
            paths=("algorithm.updates_per_step", "trainer.batch_size"),
            hint=f"divisors of {batch} near {updates}: {near_divisors(batch, updates)}",
        )
    if batch // updates and batch // updates < case.ranks:
        yield Problem(
            what=f"a mini-batch of {batch // updates} sequences leaves some of {case.ranks} ranks "
            "without any",
            paths=("trainer.batch_size", "algorithm.updates_per_step", case.ranks_path),
            hint=f"set `trainer.batch_size` to at least {case.ranks * updates}",
        )


def _groups_in_flight(case: Case) -> Iterator[Problem]:
    group = case.recipe.rollout.samples_per_prompt
    limits = (
        ("rollout.max_concurrent_samples", case.recipe.rollout.max_concurrent_samples),
        case.running_limit,
    )
    for path, limit in limits:
        if limit is not None and limit < group:
            yield Problem(
                what=f"at most {limit} samples run at once, so a group of {group} never completes "
                "at once",
                paths=(path, "rollout.samples_per_prompt"),
                hint=f"set `{path}` to at least {group}",
            )


def _rounds(case: Case) -> Iterator[Problem]:
    rollout, batch = case.recipe.rollout, case.recipe.trainer.batch_size
    path, limit = case.running_limit
    copies = max(rollout.data_parallel, rollout.instances)
    offers = (
        (path, limit, copies),
        ("rollout.max_concurrent_samples", rollout.max_concurrent_samples, rollout.instances),
    )
    for where, each, times in offers:
        if each is not None and each >= rollout.samples_per_prompt:
            rounds = -(-batch // (each * times))
            if rounds >= _MANY_ROUNDS:
                yield Problem(
                    what=f"{each * times} samples run at once and a batch takes {batch}: "
                    f"{rounds} rounds of sampling for each batch",
                    paths=(where, "trainer.batch_size"),
                    hint=f"raise `{where}`; an engine is fast when it decodes many answers",
                    severity="warning",
                )
    most = rollout.max_concurrent_samples
    per_instance = (limit or 0) * copies // rollout.instances
    if most is not None and limit is not None and most > 2 * per_instance:
        yield Problem(
            what=f"{most} samples in flight for an instance whose engines decode {per_instance} "
            "at once: the others wait and grow stale",
            paths=("rollout.max_concurrent_samples", path),
            hint=f"set `rollout.max_concurrent_samples` to about {per_instance}",
            severity="warning",
        )


def _staleness(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    staleness, steps = recipe.dataflow.max_staleness, recipe.trainer.steps
    budget = (staleness + 1) * recipe.trainer.batch_size
    path, limit = case.running_limit
    copies = recipe.rollout.data_parallel
    if limit is not None and case.written(path) and limit * copies > budget:
        yield Problem(
            what=f"staleness admits {budget} samples in flight, fewer than the "
            f"{limit * copies} that the engines could decode at once",
            paths=("dataflow.max_staleness", "trainer.batch_size", path),
            hint="raise `dataflow.max_staleness`, or accept that the engines are not filled",
            severity="warning",
        )
    if staleness > steps and case.written("dataflow.max_staleness"):
        yield Problem(
            what=f"samples may be {staleness} versions old and the run has {steps}, so nothing "
            "bounds staleness",
            paths=("dataflow.max_staleness", "trainer.steps"),
            hint=f"set `dataflow.max_staleness` below {steps}",
            severity="warning",
        )
    updates = recipe.algorithm.updates_per_step
    if updates >= 8:
        yield Problem(
            what=f"{updates} optimizer steps a version add lag that staleness "
            f"does not count: the last mini-batch may be {(staleness + 1) * updates - 1} "
            "optimizer steps old",
            paths=("algorithm.updates_per_step", "dataflow.max_staleness"),
            hint="use fewer updates or a lower `dataflow.max_staleness`",
            severity="warning",
        )


RULES = (_divisions, _groups_in_flight, _rounds, _staleness)
