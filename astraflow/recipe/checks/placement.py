"""Rules on where things run: GPUs, copies of the model, ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from astraflow.recipe.checks.case import Case
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

_EVERY_ADDRESS = ("0.0.0.0", "::", "")
_HOST = re.compile(r"[0-9A-Za-z]([0-9A-Za-z.-]*[0-9A-Za-z])?")
_USUAL_GPUS = 8
# A CPU computes some 10^11 FLOP/s; one step of a larger model takes hours.
_MOST_WEIGHTS_ON_CPU = 10**9
# Weights, moments, gradients and activations need about as much as a model's engine.
_LARGEST_SHARED_FRAC = 0.6


def _copies(case: Case) -> Iterator[Problem]:
    rollout = case.recipe.rollout
    wanted = rollout.data_parallel * rollout.tensor_parallel
    if rollout.gpus and wanted != rollout.gpus:
        yield Problem(
            what=f"{rollout.data_parallel} copies on {rollout.tensor_parallel} GPU(s) each need "
            f"{wanted} GPUs, and `rollout.gpus` is {rollout.gpus}",
            paths=("rollout.gpus", "rollout.data_parallel", "rollout.tensor_parallel"),
            hint=f"set `rollout.gpus` to {wanted}",
        )
    if rollout.gpus and rollout.data_parallel % rollout.instances:
        yield Problem(
            what=f"{rollout.data_parallel} copies cannot be shared evenly by {rollout.instances} "
            "instances",
            paths=("rollout.instances", "rollout.data_parallel"),
            hint="let `rollout.instances` divide `rollout.data_parallel`",
        )
    if rollout.backend == "sglang" and rollout.gpus == 0:
        yield Problem(
            what="SGLang needs a GPU, and `rollout.gpus` is 0",
            paths=("rollout.gpus", "rollout.backend"),
            hint="set `rollout.backend` to `transformers` to sample on the CPU",
        )


def _sharing(case: Case) -> Iterator[Problem]:
    trainer, rollout = case.recipe.trainer, case.recipe.rollout
    if not trainer.shares_gpus:
        return
    paths = ("trainer.shares_gpus", "trainer.gpus", "rollout.gpus")
    if not 0 < trainer.gpus <= rollout.gpus:
        yield Problem(
            what=f"a trainer of {trainer.gpus} GPUs cannot share the {rollout.gpus} of rollout",
            paths=paths,
            hint="set `trainer.gpus` to at most `rollout.gpus`",
        )
    elif trainer.gpus < rollout.gpus:
        yield Problem(
            what=f"{trainer.gpus} of {rollout.gpus} GPUs are shared, and every engine takes the "
            "same part of its GPU, so the others leave memory unused",
            paths=paths,
            hint=f"set `trainer.gpus` to {rollout.gpus}",
            severity="warning",
        )
    if rollout.backend == "sglang":
        share = getattr(case.engine, "mem_fraction_static", 0.8)
        if share > _LARGEST_SHARED_FRAC:
            yield Problem(
                what=f"the engine takes {share:.0%} of each shared GPU, which leaves "
                f"{1 - share:.0%} to the trainer",
                paths=("rollout.sglang.mem_fraction_static", "trainer.shares_gpus"),
                hint="set `rollout.sglang.mem_fraction_static` to 0.35; "
                "`astraflow validate --hardware` counts what fits",
                severity="warning",
            )


def _address(case: Case) -> Iterator[Problem]:
    host = case.recipe.network.host
    if host in _EVERY_ADDRESS:
        yield Problem(
            what=f"`network.host` is `{host}`, which stands for every address of this host, and "
            "the roles tell each other the one where they can be reached",
            paths=("network.host",),
            hint="name one address; `hostname -I` lists them",
        )
    elif not _HOST.fullmatch(host):
        yield Problem(
            what=f"`network.host` is `{host}`, which is no address and no host name",
            paths=("network.host",),
            hint="such as 127.0.0.1 or 10.0.0.5, without port",
        )


def _host(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    if recipe.num_gpus > _USUAL_GPUS:
        yield Problem(
            what=f"the run takes {recipe.num_gpus} GPUs of one host, and most hosts have "
            f"{_USUAL_GPUS}",
            paths=("trainer.gpus", "rollout.gpus", "trainer.shares_gpus"),
            hint=f"lower them to {_USUAL_GPUS} in all unless your host has more",
            severity="warning",
        )


def _large_on_cpu(case: Case) -> Iterator[Problem]:
    recipe, facts = case.recipe, case.facts
    if facts is None or facts.num_parameters < _MOST_WEIGHTS_ON_CPU:
        return
    for section, does in (("trainer", "train"), ("rollout", "sample")):
        if getattr(recipe, section).gpus == 0:
            yield Problem(
                what=f"the run would {does} {facts.num_parameters / 1e9:.1f} billion weights on "
                "the CPU, hours for each batch",
                paths=(f"{section}.gpus", "model.path"),
                hint=f"set `{section}.gpus`, or try the recipe in miniature: `--smoke`",
                severity="warning",
            )


def _grid(case: Case) -> Iterator[Problem]:
    """Trainers that share matrices or layers among ranks need whole groups of them."""
    tensor = getattr(case.tuning, "tensor_parallel", 1)
    pipeline = getattr(case.tuning, "pipeline_parallel", 1)
    backend = case.recipe.trainer.backend
    name = f"trainer.{backend}"
    if case.ranks % (tensor * pipeline):
        yield Problem(
            what=f"{tensor} x {pipeline} ranks for one copy do not divide the {case.ranks} there "
            "are",
            paths=(case.ranks_path, f"{name}.tensor_parallel", f"{name}.pipeline_parallel"),
            hint=f"set `{case.ranks_path}` to a multiple of {tensor * pipeline}",
        )
    facts = case.facts
    if facts is None:
        return
    for number, parts, key, what in (
        (facts.num_heads, tensor, "tensor_parallel", "attention heads"),
        (facts.num_layers, pipeline, "pipeline_parallel", "layers"),
    ):
        if number % parts:
            yield Problem(
                what=f"{number} {what} cannot be split into {parts}",
                paths=(f"{name}.{key}", "model.path"),
                hint=f"use a divisor of {number}",
            )


RULES = (_copies, _sharing, _address, _host, _large_on_cpu, _grid)
