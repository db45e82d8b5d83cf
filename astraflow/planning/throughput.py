"""
Tokens/s of both sides from a roofline, which side waits, and the split of GPUs that balances them.

Every constant below was measured on one H200 with Qwen3-1.7B (docs/results/plan.md) and is taken
to hold elsewhere; lengths of prompts and answers are assumed, as only a run can tell them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from astraflow.planning.gpus import Gpu
from astraflow.planning.memory import plan_memory
from astraflow.recipe.models import ModelFacts
from astraflow.recipe.schema import Recipe

__all__ = ["Split", "Throughput", "plan_throughput"]

# Mean lengths, as shares of what the recipe allows.
_PROMPT_FRAC, _ANSWER_FRAC = 0.1, 0.5
# Share of a GPU's peak that training reaches, attention counted, and that prefill reaches.
_COMPILED_FRAC, _PLAIN_FRAC, _PREFILL_FRAC = 0.39, 0.22, 0.5
# Several ranks gather weights from each other; not measured.
_SEVERAL_RANKS_FRAC = 0.9
# One step of decoding: share of the memory's bandwidth, and what the host adds a step and answer.
_DECODE_FRAC, _STEP_S, _ANSWER_STEP_S = 0.6, 1.0e-3, 18e-6
# Answers that one instance asks for, takes in and grades, however short they are (1/s).
_ANSWERS_PER_INSTANCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """GPUs of each side."""

    rollout_gpus: int
    trainer_gpus: int
    samples_per_s: float
    """What the slower side does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What each side does when it never waits."""

    sampled_tokens_per_s: float
    """Tokens of answers."""
    trained_tokens_per_s: float
    """Tokens of prompts and answers."""
    sampled_per_s: float
    """Answers (1/s)."""
    trained_per_s: float
    """Answers (1/s)."""
    prompt_tokens: float
    """Mean length that was assumed (tokens)."""
    answer_tokens: float
    """Mean length that was assumed (tokens)."""
    answers_at_once: int
    """Answers that one engine decodes at once (count)."""
    waits: str
    """``trainer``, ``rollout``, or ``both`` where they take turns."""
    wait_frac: float
    """Share of the time that this side waits; of both, the trainer's."""
    best: Split | None
    """The split of all GPUs there are that does most; None where nothing can be split."""

    @property
    def samples_per_s(self) -> float:
        """Answers that the run samples and trains on (1/s)."""
        if self.waits == "both":
            return 1 / (1 / self.sampled_per_s + 1 / self.trained_per_s)
        return min(self.sampled_per_s, self.trained_per_s)


def plan_throughput(recipe: Recipe, facts: ModelFacts, gpu: Gpu, *, gpus: int) -> Throughput | None:
    """
    Estimate both sides on GPUs of one kind.

    Args:
        recipe: Without errors.
        facts: Of its model.
        gpu: The kind of every GPU.
        gpus: How many there are to split (count).

    Returns:
        None where a side has no GPU, the GPU's speed is not known, or the model computes in
        float32, for which no peak is in the table.
    """
    sides = recipe.rollout.gpus and recipe.trainer.gpus
    if not sides or not gpu.flops or recipe.model.dtype != "bfloat16":
        return None
    at_once = _answers_at_once(recipe, facts, gpu)
    sampled = _sampled_per_s(recipe, facts, gpu)
    trained = _trained_per_s(recipe, facts, gpu)
    prompt, answer = _lengths(recipe)
    waits, wait_frac = _waiting(recipe, sampled, trained)
    return Throughput(
        sampled_tokens_per_s=sampled * answer,
        trained_tokens_per_s=trained * (prompt + answer),
        sampled_per_s=sampled,
        trained_per_s=trained,
        prompt_tokens=prompt,
        answer_tokens=answer,
        answers_at_once=at_once,
        waits=waits,
        wait_frac=wait_frac,
        best=None if recipe.trainer.shares_gpus else _best_split(recipe, facts, gpu, gpus),
    )


def _waiting(recipe: Recipe, sampled: float, trained: float) -> tuple[str, float]:
    # On-policy, or on one GPU, sampling and training take turns.
    if recipe.trainer.shares_gpus or recipe.dataflow.max_staleness == 0:
        return "both", trained / (sampled + trained)
    if sampled < trained:
        return "trainer", 1 - sampled / trained
    return "rollout", 1 - trained / sampled


def _copies(recipe: Recipe) -> int:
    return max(recipe.rollout.gpus // recipe.rollout.tensor_parallel, 1)


def _lengths(recipe: Recipe) -> tuple[float, float]:
    prompt = _PROMPT_FRAC * recipe.data.max_prompt_tokens
    return prompt, _ANSWER_FRAC * recipe.rollout.max_new_tokens


def _multiplied(facts: ModelFacts) -> int:
    """Weights that a token is multiplied with; an embedding of its own is only looked up."""
    return facts.num_parameters - (0 if facts.tied else facts.vocab * facts.hidden)


def _trained_per_s(recipe: Recipe, facts: ModelFacts, gpu: Gpu) -> float:
    gpus = recipe.trainer.gpus
    settings: Any = getattr(recipe.trainer, "fsdp", None)
    reached = _COMPILED_FRAC if getattr(settings, "compile", False) else _PLAIN_FRAC
    if gpus > 1:
        reached *= _SEVERAL_RANKS_FRAC
    tokens = sum(_lengths(recipe))
    attention = _attention_flops(facts, tokens / 2)
    forward = 2 * _multiplied(facts) + attention
    m2po = recipe.algorithm.name == "m2po" and recipe.algorithm.scope == "minibatch"
    passes = 3 + (recipe.algorithm.kl_coef > 0) + m2po  # backward counts two
    return reached * gpus * gpu.flops / (forward * passes * tokens)


def _attention_flops(facts: ModelFacts, context: float) -> float:
    """Scores and weighted values of one token over its context, in all layers that attend."""
    layers = facts.num_layers - facts.linear_attention_layers
    return 4 * layers * facts.num_heads * facts.head_dim * context


def _answers_at_once(recipe: Recipe, facts: ModelFacts, gpu: Gpu) -> int:
    copies = _copies(recipe)
    settings: Any = getattr(recipe.rollout, recipe.rollout.backend, None)
    limits: list[int] = [
        getattr(settings, key)
        for key in ("max_running_requests", "max_batch")
        if hasattr(settings, key)
    ] or [128]
    prompt, answer = _lengths(recipe)
    cache = plan_memory(recipe, facts, gpu, gpus=recipe.num_gpus).cache_tokens
    limits.append(int(cache / (prompt + answer)))
    admitted = (recipe.dataflow.max_staleness + 1) * recipe.trainer.batch_size
    limits.append(admitted // copies)
    if recipe.rollout.max_concurrent_samples is not None:
        limits.append(recipe.rollout.max_concurrent_samples * recipe.rollout.instances // copies)
    return max(min(limits), 1)


def _sampled_per_s(recipe: Recipe, facts: ModelFacts, gpu: Gpu) -> float:
    copies = _copies(recipe)
    tensor = recipe.rollout.tensor_parallel
    at_once = _answers_at_once(recipe, facts, gpu)
    prompt, answer = _lengths(recipe)
    context = prompt + answer / 2
    layers = facts.num_layers - facts.linear_attention_layers
    cached = 4 * layers * facts.num_kv_heads * facts.head_dim * context
    read_s = (2 * facts.num_parameters + at_once * cached) / (
        tensor * gpu.bytes_per_s * _DECODE_FRAC
    )
    token = 2 * _multiplied(facts) + _attention_flops(facts, context)
    compute_s = at_once * token / (tensor * gpu.flops * _PREFILL_FRAC)
    step_s = max(read_s, compute_s) + _STEP_S + at_once * _ANSWER_STEP_S
    prefill_s = prompt * 2 * _multiplied(facts) / (tensor * gpu.flops * _PREFILL_FRAC)
    decoded = copies / (answer * step_s / at_once + prefill_s)
    return min(decoded, float(_ANSWERS_PER_INSTANCE * recipe.rollout.instances))


def _best_split(recipe: Recipe, facts: ModelFacts, gpu: Gpu, gpus: int) -> Split | None:
    """Try every split that keeps copies and instances whole, ranks busy and memory in bounds."""
    tensor = recipe.rollout.tensor_parallel
    most_ranks = recipe.trainer.batch_size // recipe.algorithm.updates_per_step
    best: Split | None = None
    for copies in range(recipe.rollout.instances, gpus // tensor + 1, recipe.rollout.instances):
        ranks = gpus - copies * tensor
        if not 1 <= ranks <= most_ranks:
            continue
        tried = _with_split(recipe, copies, ranks)
        if plan_memory(tried, facts, gpu, gpus=gpus).problems:
            continue
        slower = min(_sampled_per_s(tried, facts, gpu), _trained_per_s(tried, facts, gpu))
        if best is None or slower > best.samples_per_s:
            best = Split(rollout_gpus=copies * tensor, trainer_gpus=ranks, samples_per_s=slower)
    return best


def _with_split(recipe: Recipe, copies: int, ranks: int) -> Recipe:
    gpus = copies * recipe.rollout.tensor_parallel
    rollout = recipe.rollout.model_copy(update={"gpus": gpus, "data_parallel": copies})
    trainer = recipe.trainer.model_copy(update={"gpus": ranks})
    return recipe.model_copy(update={"rollout": rollout, "trainer": trainer})
