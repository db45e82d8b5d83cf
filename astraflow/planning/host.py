"""
Host memory of a run, part by part: processes, and weights on their way from rank to engine.

Pages that processes share are counted once for each, so the sum is what may be needed, not what
is used most of the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from astraflow.planning.memory import Part, trainer_parts
from astraflow.recipe.models import ModelFacts
from astraflow.recipe.schema import Recipe

__all__ = ["HostPlan", "plan_host"]

_MIB, _GIB = 2**20, 2**30
_TORCH_PROCESS_BYTES = _GIB  # Python with torch and transformers imported
_PLAIN_PROCESS_BYTES = 200 * _MIB  # Python with neither, such as a grader with sympy
_PROCESSES_PER_SERVER = 3  # SGLang's front, scheduler and detokenizer
# Share of the weights that one version changes. Few do at published rates; this is a bound.
_CHANGED_FRAC = 0.05
_DELTA_EXTRA_BYTES = 1  # an encoded change has its value and about this much of position
_STAGING_FRAC = 1.25  # the adapter maps more than a version needs, so as not to map again
_NCCL_BYTES = 64 * _MIB  # segments of one GPU that talks to others of its host


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPlan:
    """What the host has to hold."""

    parts: tuple[Part, ...]
    shm_bytes: int
    """Of /dev/shm; weights never lie there."""

    @property
    def memory_bytes(self) -> int:
        """All parts, and what lies in /dev/shm, which is memory too."""
        return sum(part.size_bytes for part in self.parts) + self.shm_bytes


def plan_host(recipe: Recipe, facts: ModelFacts) -> HostPlan:
    """
    Plan a run's host memory.

    Args:
        recipe: Without errors.
        facts: Of its model.
    """
    weights = _item_bytes(recipe) * facts.num_parameters
    parts = (
        Part(name="processes", size_bytes=_processes(recipe)),
        Part(name="published versions", size_bytes=_published(recipe, weights)),
        Part(name="kept deltas", size_bytes=_deltas(recipe, facts)),
        Part(
            name="received versions",
            size_bytes=int(recipe.rollout.instances * weights * (1 + _STAGING_FRAC)),
        ),
        Part(name="trainer in host memory", size_bytes=_trainer(recipe, facts)),
        Part(name="engine in host memory", size_bytes=_engine(recipe, facts)),
    )
    talking = [gpus for gpus in (recipe.trainer.gpus, recipe.rollout.tensor_parallel) if gpus > 1]
    return HostPlan(
        parts=tuple(part for part in parts if part.size_bytes),
        shm_bytes=_NCCL_BYTES * sum(talking),
    )


def _item_bytes(recipe: Recipe) -> int:
    return 4 if recipe.model.dtype == "float32" else 2


def _processes(recipe: Recipe) -> int:
    rollout = recipe.rollout
    servers = rollout.data_parallel if rollout.backend == "sglang" else 0
    with_torch = (
        rollout.instances
        + servers * _PROCESSES_PER_SERVER
        + (recipe.trainer.gpus or recipe.trainer.cpu_ranks)
    )
    plain = 2 + rollout.instances * recipe.workflow.grading_workers  # supervisor and dataflow
    return with_torch * _TORCH_PROCESS_BYTES + plain * _PLAIN_PROCESS_BYTES


def _published(recipe: Recipe, weights: int) -> int:
    """Full mode takes turns with two copies; delta keeps one and copies it for a whole send."""
    if recipe.weights.mode == "full":
        return 2 * weights
    kept_here = recipe.weights.snapshot == "host" or not recipe.trainer.gpus
    return weights * (2 if kept_here else 1)


def _deltas(recipe: Recipe, facts: ModelFacts) -> int:
    if recipe.weights.mode == "full":
        return 0
    each = _CHANGED_FRAC * facts.num_parameters * (_item_bytes(recipe) + _DELTA_EXTRA_BYTES)
    return int(each * recipe.weights.keep_deltas)


def _trainer(recipe: Recipe, facts: ModelFacts) -> int:
    settings: Any = getattr(recipe.trainer, "fsdp", None)
    parts = trainer_parts(recipe, facts)
    if not recipe.trainer.gpus:
        # Planned for one rank that holds everything, as ranks on a CPU share one memory.
        return sum(part.size_bytes for part in parts)
    if getattr(settings, "offload_optimizer", False):
        master = 4 if recipe.trainer.master_dtype == "float32" else 2
        return 4 * master * facts.num_parameters
    return 0


def _engine(recipe: Recipe, facts: ModelFacts) -> int:
    if recipe.rollout.gpus:
        return 0
    settings: Any = getattr(recipe.rollout, "transformers", None)
    rows = getattr(settings, "max_batch", 256)
    layers = facts.num_layers - facts.linear_attention_layers
    token = 2 * layers * facts.num_kv_heads * facts.head_dim * _item_bytes(recipe)
    cache = rows * recipe.model.context_length * token
    return recipe.rollout.instances * (_item_bytes(recipe) * facts.num_parameters + cache)
