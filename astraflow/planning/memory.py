"""
Memory of one trainer rank and one engine, part by part.

The constants for activations were fitted to three peaks measured on an H200 with Qwen3-1.7B
(docs/results/plan.md); everything else is counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from astraflow.planning.gpus import Gpu
from astraflow.recipe.models import ModelFacts
from astraflow.recipe.schema import Recipe

__all__ = ["MemoryPlan", "Part", "plan_memory"]

# Saved for the backward pass of one layer and token: this many times the residual's width, the
# MLP's and the attention's (elements).
_RESIDUALS, _MLPS, _ATTENTIONS = 7.5, 3.0, 1.7
# The driver, cuBLAS, NCCL and what the allocator cannot use.
_CONTEXT_BYTES = 2 * 10**9
_LOGIT_BYTES = 10  # bfloat16 logits, float32 ones, and their gradient


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One use of memory."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a GPU of each role has to hold."""

    trainer: tuple[Part, ...]
    engine: tuple[Part, ...]
    cache_tokens: int
    """Tokens whose keys and values one engine can hold (tokens)."""
    full_requests: int
    """Answers of the longest context that fit the cache at once (count)."""
    limit_bytes: int
    """Memory of the GPU."""
    problems: tuple[str, ...]
    """Why it does not fit, with what to change; empty if it does."""

    @property
    def trainer_bytes(self) -> int:
        """Peak of one rank."""
        return sum(part.size_bytes for part in self.trainer)

    @property
    def engine_bytes(self) -> int:
        """What one engine takes."""
        return sum(part.size_bytes for part in self.engine)


def plan_memory(recipe: Recipe, facts: ModelFacts, gpu: Gpu, *, gpus: int) -> MemoryPlan:
    """
    Plan a run's memory.

    Args:
        recipe: Without errors.
        facts: Of its model.
        gpu: The kind of every GPU.
        gpus: How many there are (count).
    """
    trainer = _trainer(recipe, facts)
    engine, cache_tokens = _engine(recipe, facts, gpu)
    full_requests = cache_tokens // recipe.model.context_length
    plan = MemoryPlan(
        trainer=trainer,
        engine=engine,
        cache_tokens=cache_tokens,
        full_requests=full_requests,
        limit_bytes=gpu.memory_bytes,
        problems=(),
    )
    problems = tuple(_problems(recipe, facts, plan, gpu, gpus))
    return MemoryPlan(
        trainer=trainer,
        engine=engine,
        cache_tokens=cache_tokens,
        full_requests=full_requests,
        limit_bytes=gpu.memory_bytes,
        problems=problems,
    )


def _trainer(recipe: Recipe, facts: ModelFacts, *, tokens: int | None = None) -> tuple[Part, ...]:
    ranks = max(recipe.trainer.gpus, 1)
    weights = facts.num_parameters
    master = 4 if recipe.trainer.master_dtype == "float32" else 2
    tokens = tokens or recipe.trainer.tokens_per_microbatch
    settings: Any = getattr(recipe.trainer, "fsdp", None)
    chunk = getattr(settings, "logprob_chunk_tokens", 2048)
    gathered = 2 * facts.vocab * facts.hidden * (1 if facts.tied else 2)
    # Gradients come while activations go: the larger of the two is what counts.
    gradients = master * weights // ranks
    activations = _activations(facts, tokens, getattr(settings, "gradient_checkpointing", None))
    return (
        Part(name="master weights", size_bytes=master * weights // ranks),
        Part(name="optimizer moments", size_bytes=2 * master * weights // ranks),
        Part(name="activations or gradients", size_bytes=max(activations, gradients)),
        Part(name="logits of one chunk", size_bytes=chunk * facts.vocab * _LOGIT_BYTES),
        Part(name="gathered embedding and head", size_bytes=gathered if ranks > 1 else 0),
        Part(
            name="reference model",
            size_bytes=2 * weights // ranks if recipe.algorithm.kl_coef > 0 else 0,
        ),
        Part(name="published snapshot", size_bytes=_snapshot_bytes(recipe, weights // ranks)),
    )


def _activations(facts: ModelFacts, tokens: int, checkpointing: Any) -> int:
    attention = (facts.num_heads + 2 * facts.num_kv_heads) * facts.head_dim
    saved = _RESIDUALS * facts.hidden + _MLPS * facts.intermediate + _ATTENTIONS * attention
    whole, kept = int(2 * tokens * saved), 2 * tokens * facts.hidden
    # On a GPU null means every layer; one of them is computed again at a time.
    again = {"half": facts.num_layers // 2, False: 0}.get(checkpointing, facts.num_layers)
    return (facts.num_layers - again + min(again, 1)) * whole + again * kept


def _snapshot_bytes(recipe: Recipe, weights: int) -> int:
    on_gpu = recipe.weights.mode == "delta" and recipe.weights.snapshot == "gpu"
    return 2 * weights if on_gpu else 0


def _engine(recipe: Recipe, facts: ModelFacts, gpu: Gpu) -> tuple[tuple[Part, ...], int]:
    settings: Any = getattr(recipe.rollout, "sglang", None)
    share = getattr(settings, "mem_fraction_static", 0.8)
    split = recipe.rollout.tensor_parallel
    weights = 2 * facts.num_parameters // split
    cache = max(int(share * gpu.memory_bytes) - weights, 0)
    layers = facts.num_layers - facts.linear_attention_layers
    token = 2 * 2 * layers * facts.num_kv_heads * facts.head_dim // split
    parts = (
        Part(name="weights", size_bytes=weights),
        Part(name="key-value cache", size_bytes=cache),
    )
    return parts, cache // token


def _problems(
    recipe: Recipe, facts: ModelFacts, plan: MemoryPlan, gpu: Gpu, gpus: int
) -> list[str]:
    problems = []
    if recipe.num_gpus > gpus:
        problems.append(f"the recipe takes {recipe.num_gpus} GPUs, and there are {gpus}")
    room = gpu.memory_bytes - _CONTEXT_BYTES
    if recipe.trainer.shares_gpus:
        room -= plan.engine_bytes
    if plan.trainer_bytes > room:
        problems.append(
            f"a trainer's rank needs {_gb(plan.trainer_bytes)} and has {_gb(room)}: "
            + _cure(recipe, facts, room)
        )
    if plan.full_requests < 1:
        problems.append(
            f"an engine's cache holds {plan.cache_tokens} tokens, less than one answer of "
            f"`model.context_length` = {recipe.model.context_length}: raise "
            "`rollout.sglang.mem_fraction_static` or `rollout.tensor_parallel`"
        )
    return problems


def _cure(recipe: Recipe, facts: ModelFacts, room: int) -> str:
    """Name the largest micro-batch that fits, or that none does."""
    tokens = recipe.trainer.tokens_per_microbatch
    while tokens > recipe.model.context_length:
        tokens = max(tokens * 3 // 4, recipe.model.context_length)
        if sum(part.size_bytes for part in _trainer(recipe, facts, tokens=tokens)) <= room:
            return f"`trainer.tokens_per_microbatch: {tokens}` fits"
    ranks = math.ceil(_static_bytes(recipe, facts) / max(room, 1))
    return (
        f"no micro-batch fits; shard over at least {max(ranks, recipe.trainer.gpus + 1)} GPUs "
        "(`trainer.gpus`), or `trainer.fsdp.offload_optimizer: true`"
    )


def _static_bytes(recipe: Recipe, facts: ModelFacts) -> int:
    """Bytes of masters, moments and gradients over all ranks."""
    master = 4 if recipe.trainer.master_dtype == "float32" else 2
    return 4 * master * facts.num_parameters


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
