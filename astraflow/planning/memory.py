"""
Memory of one trainer rank and one engine, part by part.

The constants for activations were fitted to three peaks measured on an H200 with Qwen3-1.7B
(docs/results/plan.md); everything else is counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from astraflow.planning.gpus import Gpu
from astraflow.recipe.models import ModelFacts
from astraflow.recipe.schema import Recipe

__all__ = ["MemoryPlan", "Part", "plan_memory", "trainer_parts"]

# Saved for the backward pass of one layer and token: this many times the residual's width, the
# MLP's and the attention's (elements).
_RESIDUALS, _MLPS, _ATTENTIONS = 7.5, 3.0, 1.7
# The driver, cuBLAS, NCCL and what the allocator cannot use.
_CONTEXT_BYTES = 2 * 10**9
_MOST_RANKS = 64
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
    trainer = trainer_parts(recipe, facts)
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


def trainer_parts(
    recipe: Recipe, facts: ModelFacts, *, offload: bool | None = None
) -> tuple[Part, ...]:
    """
    List what one rank of the trainer holds at its peak.

    Args:
        recipe: Without errors.
        facts: Of its model.
        offload: Whether the optimizer lies in host memory; None does as the recipe says.
    """
    ranks = max(recipe.trainer.gpus, 1)
    weights = facts.num_parameters
    master = 4 if recipe.trainer.master_dtype == "float32" else 2
    tokens = recipe.trainer.tokens_per_microbatch
    offload = _offloads(recipe) if offload is None else offload
    settings: Any = getattr(recipe.trainer, "fsdp", None)
    chunk = getattr(settings, "logprob_chunk_tokens", 2048)
    gathered = 2 * facts.vocab * facts.hidden * (1 if facts.tied else 2)
    if not getattr(settings, "reshard_after_forward", True):
        gathered = 2 * weights
    # Offloaded masters, moments and gradients lie in host memory.
    held = 0 if offload else master * weights // ranks
    # Gradients come while activations go: the larger of the two is what counts.
    activations = _activations(facts, tokens, getattr(settings, "gradient_checkpointing", None))
    return (
        Part(name="master weights", size_bytes=held),
        Part(name="optimizer moments", size_bytes=2 * held),
        Part(name="activations or gradients", size_bytes=max(activations, held)),
        Part(name="logits of one chunk", size_bytes=chunk * facts.vocab * _LOGIT_BYTES),
        Part(name="gathered weights", size_bytes=gathered if ranks > 1 else 0),
        Part(
            name="reference model",
            size_bytes=2 * weights // ranks if recipe.algorithm.kl_coef > 0 else 0,
        ),
        Part(name="published snapshot", size_bytes=_snapshot_bytes(recipe, weights // ranks)),
    )


def _offloads(recipe: Recipe) -> bool:
    settings: Any = getattr(recipe.trainer, "fsdp", None)
    return bool(recipe.trainer.gpus) and bool(getattr(settings, "offload_optimizer", False))


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
    if recipe.trainer.gpus and plan.trainer_bytes > room:
        problems.append(
            f"a trainer's rank needs {_gb(plan.trainer_bytes)} and has {_gb(room)}: "
            + _cure(recipe, facts, room)
        )
    if recipe.rollout.gpus and plan.full_requests < 1:
        problems.append(
            f"an engine's cache holds {plan.cache_tokens} tokens, less than one answer of "
            f"`model.context_length` = {recipe.model.context_length}: raise "
            "`rollout.sglang.mem_fraction_static` or take larger GPUs"
        )
    return problems


def _cure(recipe: Recipe, facts: ModelFacts, room: int) -> str:
    """Name what alone would make it fit: the largest micro-batch, or other changes."""

    def fits(changed: Recipe, *, offload: bool | None = None) -> bool:
        parts = trainer_parts(changed, facts, offload=offload)
        return sum(part.size_bytes for part in parts) <= room

    tokens = recipe.trainer.tokens_per_microbatch
    while tokens > recipe.model.context_length:
        tokens = max(tokens * 3 // 4, recipe.model.context_length)
        if fits(_with_trainer(recipe, tokens_per_microbatch=tokens)):
            return f"`trainer.tokens_per_microbatch: {tokens}` fits"
    cures = []
    on_host = recipe.weights.model_copy(update={"snapshot": "host"})
    if fits(recipe.model_copy(update={"weights": on_host})):
        cures.append("`weights.snapshot: host`")
    more = range(recipe.trainer.gpus + 1, _MOST_RANKS + 1)
    ranks = next((n for n in more if fits(_with_trainer(recipe, gpus=n))), None)
    if ranks is not None:
        cures.append(f"shard over at least {ranks} GPUs (`trainer.gpus`)")
    if fits(recipe, offload=True):
        cures.append("`trainer.fsdp.offload_optimizer: true`")
    return "no micro-batch fits; " + (
        " or ".join(cures) or "take a smaller model, a shorter context or larger GPUs"
    )


def _with_trainer(recipe: Recipe, **changes: int) -> Recipe:
    return recipe.model_copy(update={"trainer": recipe.trainer.model_copy(update=changes)})


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
