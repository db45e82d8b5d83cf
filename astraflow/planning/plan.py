"""The whole plan of one recipe on given GPUs, and its words for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from astraflow.planning.gpus import Gpu
from astraflow.planning.host import HostPlan, plan_host
from astraflow.planning.memory import MemoryPlan, Part, plan_memory
from astraflow.planning.throughput import Throughput, plan_throughput
from astraflow.recipe.models import ModelFacts
from astraflow.recipe.schema import Recipe

__all__ = ["Plan", "plan_recipe"]

# A split that promises less than this much more is not worth a word: the estimate is no better.
_WORTHWHILE_GAIN = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run needs and does on GPUs of one kind."""

    gpu: Gpu
    recipe: Recipe
    memory: MemoryPlan
    host: HostPlan
    throughput: Throughput | None

    @property
    def problems(self) -> tuple[str, ...]:
        """Why it does not fit, with what to change; empty if it does."""
        return self.memory.problems

    def lines(self) -> list[str]:
        """Say the plan in sentences."""
        said = [
            *_memory_lines(self),
            f"host memory: {_gb(self.host.memory_bytes)} ("
            + _list(self.host.parts)
            + f"), of it {_gb(self.host.shm_bytes)} in /dev/shm",
        ]
        if self.throughput is not None:
            said += _speed_lines(self.throughput)
            said += self.advice()
        return said

    def advice(self) -> list[str]:
        """Say which split of the GPUs would do more; empty if the recipe's is about the best."""
        speed = self.throughput
        if speed is None or speed.best is None:
            return []
        if speed.best.samples_per_s < _WORTHWHILE_GAIN * speed.samples_per_s:
            return []
        best = speed.best
        copies = best.rollout_gpus // self.recipe.rollout.tensor_parallel
        return [
            f"{best.rollout_gpus + best.trainer_gpus} GPUs in balance: "
            f"`rollout.gpus: {best.rollout_gpus}`, `rollout.data_parallel: {copies}` and "
            f"`trainer.gpus: {best.trainer_gpus}` would do {best.samples_per_s:.2g} answers/s "
            f"instead of {speed.samples_per_s:.2g}"
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        speed = self.throughput
        return {
            "gpu": self.gpu.name,
            "fits": not self.problems,
            "problems": list(self.problems),
            "advice": self.advice(),
            "trainer_rank_bytes": {p.name: p.size_bytes for p in self.memory.trainer},
            "engine_bytes": {p.name: p.size_bytes for p in self.memory.engine},
            "cache_tokens": self.memory.cache_tokens,
            "full_answers": self.memory.full_requests,
            "host_bytes": {p.name: p.size_bytes for p in self.host.parts},
            "shm_bytes": self.host.shm_bytes,
            "throughput": None
            if speed is None
            else {
                "sampled_tokens_per_s": round(speed.sampled_tokens_per_s),
                "trained_tokens_per_s": round(speed.trained_tokens_per_s),
                "answers_at_once": speed.answers_at_once,
                "samples_per_s": speed.samples_per_s,
                "waits": speed.waits,
                "wait_frac": round(speed.wait_frac, 3),
            },
        }


def plan_recipe(recipe: Recipe, facts: ModelFacts, gpu: Gpu, *, gpus: int) -> Plan:
    """
    Plan a run.

    Args:
        recipe: Without errors.
        facts: Of its model.
        gpu: The kind of every GPU.
        gpus: How many there are (count).
    """
    return Plan(
        gpu=gpu,
        recipe=recipe,
        memory=plan_memory(recipe, facts, gpu, gpus=gpus),
        host=plan_host(recipe, facts),
        throughput=plan_throughput(recipe, facts, gpu, gpus=gpus),
    )


def _memory_lines(plan: Plan) -> list[str]:
    memory, lines = plan.memory, []
    if plan.recipe.trainer.gpus:
        lines.append(
            f"trainer: {_gb(memory.trainer_bytes)} of {_gb(memory.limit_bytes)} on each rank ("
            + _list(memory.trainer)
            + ")"
        )
    if plan.recipe.rollout.gpus:
        lines.append(
            f"engine: {_gb(memory.engine_bytes)} of {_gb(memory.limit_bytes)}, a cache of "
            f"{memory.cache_tokens:,} tokens, {memory.full_requests} of the longest answers"
        )
    return lines


def _speed_lines(speed: Throughput) -> list[str]:
    wait = {
        "trainer": f"the trainer waits {speed.wait_frac:.0%} of the time",
        "rollout": f"rollout waits {speed.wait_frac:.0%} of the time",
        "both": f"they take turns, so the trainer waits {speed.wait_frac:.0%} of the time",
    }
    return [
        f"speed: {speed.sampled_tokens_per_s:,.0f} tokens/s sampled ({speed.answers_at_once} "
        f"answers at once in each engine) and {speed.trained_tokens_per_s:,.0f} tokens/s trained, "
        f"so {wait[speed.waits]}; assumed: prompts of {speed.prompt_tokens:,.0f} and answers of "
        f"{speed.answer_tokens:,.0f} tokens"
    ]


def _list(parts: Iterable[Part]) -> str:
    """Name the parts that show in the sum."""
    return ", ".join(f"{p.name} {_gb(p.size_bytes)}" for p in parts if p.size_bytes >= 5e7)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
