"""The rules that span sections; every broken rule is found, with the place of each value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.recipe.files import ResolvedRecipe
from astraflow.recipe.models import ModelFacts, find_facts
from astraflow.recipe.nearest import near_divisors, nearest
from astraflow.recipe.problems import Known, Problem
from astraflow.recipe.schema import Recipe

__all__ = ["check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """What every rule looks at."""

    resolved: ResolvedRecipe
    known: Known
    facts: ModelFacts | None

    @property
    def recipe(self) -> Recipe:
        return self.resolved.recipe

    def written(self, path: str) -> bool:
        """Tell whether somebody wrote this value, rather than leaving its default."""
        return path in self.resolved.places


def check(resolved: ResolvedRecipe, known: Known) -> list[Problem]:
    """Apply every rule to one recipe; errors come before warnings."""
    case = _Case(resolved=resolved, known=known, facts=find_facts(resolved.recipe.model.path))
    problems = [problem for rule in _RULES for problem in rule(case)]
    return sorted(problems, key=lambda problem: problem.severity)


def _names(case: _Case) -> Iterator[Problem]:
    recipe, known = case.recipe, case.known
    pairs = (
        ("rollout.backend", recipe.rollout.backend, known.inference_backends),
        ("trainer.backend", recipe.trainer.backend, known.trainer_backends),
        ("workflow.name", recipe.workflow.name, known.workflows),
        ("workflow.reward", recipe.workflow.reward, known.rewards),
    )
    for path, name, names in pairs:
        if name not in names:
            yield Problem(
                what=f"`{path}` is `{name}`, and nothing of that name is installed",
                paths=(path,),
                hint=nearest(name, names),
            )


def _datasets(case: _Case) -> Iterator[Problem]:
    recipe = case.recipe
    named = [("data.train", recipe.data.train)]
    named += [(f"evaluation.datasets.{i}", n) for i, n in enumerate(recipe.evaluation.datasets)]
    seen: dict[str, str] = {}
    for path, name in named:
        if path != "data.train" and name in seen:
            yield Problem(
                what=f"`evaluation.datasets` names `{name}` twice",
                paths=(seen[name], path),
                hint="take one of them out",
            )
        if path != "data.train":
            seen.setdefault(name, path)
        if name in case.known.datasets or _is_data_file(name):
            continue
        is_path = name.endswith((".jsonl", ".jsonl.gz", ".parquet"))
        yield Problem(
            what=f"`{path}` is `{name}`, which is "
            + ("no file on this machine" if is_path else "neither a known dataset nor a file"),
            paths=(path,),
            hint=nearest(name, case.known.datasets),
        )


def _lengths(case: _Case) -> Iterator[Problem]:
    recipe = case.recipe
    prompt, answer = recipe.data.max_prompt_tokens, recipe.rollout.max_new_tokens
    context = recipe.model.context_length
    if prompt + answer > context:
        yield Problem(
            what=f"a prompt of {prompt} tokens and an answer of {answer} make {prompt + answer}, "
            f"and the context holds {context}",
            paths=("rollout.max_new_tokens", "data.max_prompt_tokens", "model.context_length"),
            hint=f"set `rollout.max_new_tokens` to at most {max(context - prompt, 1)} or raise "
            "`model.context_length`",
        )
    evaluated = recipe.evaluation.max_new_tokens
    if evaluated is not None and prompt + evaluated > context:
        yield Problem(
            what=f"a prompt of {prompt} tokens and an evaluation answer of {evaluated} make "
            f"{prompt + evaluated}, and the context holds {context}",
            paths=(
                "evaluation.max_new_tokens",
                "data.max_prompt_tokens",
                "model.context_length",
            ),
            hint=f"set `evaluation.max_new_tokens` to at most {max(context - prompt, 1)}",
        )
    longest = min(prompt + answer, context)
    if recipe.trainer.tokens_per_microbatch < longest:
        yield Problem(
            what=f"one sequence may have {longest} tokens, and a micro-batch holds "
            f"{recipe.trainer.tokens_per_microbatch}",
            paths=(
                "trainer.tokens_per_microbatch",
                "data.max_prompt_tokens",
                "rollout.max_new_tokens",
            ),
            hint=f"set `trainer.tokens_per_microbatch` to at least {longest}",
        )


def _model(case: _Case) -> Iterator[Problem]:
    recipe, facts = case.recipe, case.facts
    if facts is None:
        return
    if facts.max_position and recipe.model.context_length > facts.max_position:
        yield Problem(
            what=f"`{recipe.model.path}` was made for {facts.max_position} positions "
            f"{'with' if facts.rope_scaled else 'and has no'} RoPE scaling, and the context is "
            f"{recipe.model.context_length}",
            paths=("model.context_length", "model.path"),
            hint=f"set `model.context_length` to at most {facts.max_position}",
        )
    if facts.has_chat_template is False and recipe.workflow.chat:
        yield Problem(
            what=f"the tokenizer of `{recipe.model.path}` has no chat template, so prompts cannot "
            "be rendered",
            paths=("model.path",),
            hint="train the -Instruct sibling, put a `chat_template` into the folder's "
            "tokenizer_config.json, or ask in plain text: `workflow.chat: false`",
        )
    tensor = recipe.rollout.tensor_parallel
    if facts.num_heads % tensor:
        yield Problem(
            what=f"{facts.num_heads} attention heads cannot be split over {tensor} GPUs",
            paths=("rollout.tensor_parallel", "model.path"),
            hint=f"use a divisor of {facts.num_heads}",
        )
    if facts.quantized:
        yield Problem(
            what=f"`{recipe.model.path}` is quantized with {facts.quantized}, and new weights "
            "cannot be written into quantized tensors",
            paths=("model.path",),
            hint="train the unquantized checkpoint",
        )


def _gpus(case: _Case) -> Iterator[Problem]:
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
    shared = case.recipe.trainer
    if shared.shares_gpus and not 0 < shared.gpus <= rollout.gpus:
        yield Problem(
            what=f"a trainer of {shared.gpus} GPUs cannot share the {rollout.gpus} of rollout",
            paths=("trainer.shares_gpus", "trainer.gpus", "rollout.gpus"),
            hint="set `trainer.gpus` to at most `rollout.gpus`",
        )
    if rollout.backend == "sglang" and rollout.gpus == 0:
        yield Problem(
            what="SGLang needs a GPU, and `rollout.gpus` is 0",
            paths=("rollout.gpus", "rollout.backend"),
            hint="set `rollout.backend` to `transformers` to sample on the CPU",
        )


def _batches(case: _Case) -> Iterator[Problem]:
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
    ranks = recipe.trainer.gpus or recipe.trainer.cpu_ranks
    if batch // updates and batch // updates < ranks:
        yield Problem(
            what=f"a mini-batch of {batch // updates} sequences leaves some of {ranks} ranks "
            "without any",
            paths=("trainer.batch_size", "algorithm.updates_per_step", _ranks_path(recipe)),
            hint=f"set `trainer.batch_size` to at least {ranks * updates}",
        )


def _concurrency(case: _Case) -> Iterator[Problem]:
    recipe = case.recipe
    group = recipe.rollout.samples_per_prompt
    limits = [("rollout.max_concurrent_samples", recipe.rollout.max_concurrent_samples)]
    section: Any = getattr(recipe.rollout, recipe.rollout.backend, None)
    for key in ("max_running_requests", "max_batch"):
        if section is not None and hasattr(section, key):
            limits.append((f"rollout.{recipe.rollout.backend}.{key}", getattr(section, key)))
    for path, limit in limits:
        if limit is not None and limit < group:
            yield Problem(
                what=f"at most {limit} samples run at once, so a group of {group} never completes "
                "at once",
                paths=(path, "rollout.samples_per_prompt"),
                hint=f"set `{path}` to at least {group}",
            )
    budget = (recipe.dataflow.max_staleness + 1) * recipe.trainer.batch_size
    copies = recipe.rollout.data_parallel
    running = [limit for path, limit in limits[1:] if limit is not None]
    if running and running[0] * copies > budget:
        yield Problem(
            what=f"staleness admits {budget} samples in flight, fewer than the "
            f"{running[0] * copies} that the engines could decode at once",
            paths=("dataflow.max_staleness", "trainer.batch_size", limits[1][0]),
            hint="raise `dataflow.max_staleness`, or accept that the engines are not filled",
            severity="warning",
        )


def _weights(case: _Case) -> Iterator[Problem]:
    weights = case.recipe.weights
    if weights.mode == "delta" and weights.full_sync_interval is None:
        yield Problem(
            what="delta transfer has no interval for full sends, so a broken chain would stay "
            "broken",
            paths=("weights.full_sync_interval", "weights.mode"),
            hint="set `weights.full_sync_interval` to 10",
        )
    for key in ("full_sync_interval", "keep_deltas"):
        path = f"weights.{key}"
        if weights.mode == "full" and case.written(path) and getattr(weights, key) is not None:
            yield _ignored(path, "weights.mode", "full transfer sends no deltas")


def _ignored_settings(case: _Case) -> Iterator[Problem]:
    recipe = case.recipe
    m2po = recipe.algorithm.name == "m2po"
    for key in ("m2_threshold", "scope"):
        if not m2po and case.written(f"algorithm.{key}"):
            yield _ignored(
                f"algorithm.{key}",
                "algorithm.name",
                f"`{recipe.algorithm.name}` has no such rule",
            )
    for key in ("clip_low", "clip_high"):
        if m2po and getattr(recipe.algorithm, key) is not None:
            yield _ignored(f"algorithm.{key}", "algorithm.name", "M2PO masks and never clips")
    if recipe.trainer.gpus and case.written("trainer.cpu_ranks"):
        yield _ignored("trainer.cpu_ranks", "trainer.gpus", "each GPU has one rank")
    for section, backend, names in (
        ("rollout", recipe.rollout.backend, case.known.inference_backends),
        ("trainer", recipe.trainer.backend, case.known.trainer_backends),
    ):
        for name in names:
            unused = name != backend and getattr(getattr(recipe, section), name, None) is not None
            if unused:
                yield _ignored(
                    f"{section}.{name}", f"{section}.backend", f"the backend is `{backend}`"
                )


def _algorithm(case: _Case) -> Iterator[Problem]:
    algorithm = case.recipe.algorithm
    if algorithm.name == "m2po" and algorithm.m2_threshold is None:
        yield Problem(
            what="M2PO without a threshold has no rule",
            paths=("algorithm.m2_threshold", "algorithm.name"),
            hint="set `algorithm.m2_threshold` to 0.01, or `algorithm.name` to `grpo`",
        )
    lag = case.recipe.dataflow.max_staleness * algorithm.updates_per_step
    if algorithm.updates_per_step >= 8:
        yield Problem(
            what=f"{algorithm.updates_per_step} optimizer steps a version add lag that staleness "
            f"does not count: the last mini-batch may be {lag + algorithm.updates_per_step - 1} "
            "optimizer steps old",
            paths=("algorithm.updates_per_step", "dataflow.max_staleness"),
            hint="use fewer updates or a lower `dataflow.max_staleness`",
            severity="warning",
        )


def _precision(case: _Case) -> Iterator[Problem]:
    recipe = case.recipe
    lr = recipe.trainer.optimizer.lr
    if recipe.trainer.master_dtype == "bfloat16" and recipe.model.dtype == "float32":
        yield Problem(
            what="weights that compute in float32 cannot have bfloat16 masters",
            paths=("trainer.master_dtype", "model.dtype"),
            hint="set `trainer.master_dtype` to `float32`",
        )
    # Adam moves a weight by about lr; bfloat16 has 8 bits of significand, so a step under
    # |w| / 256 rounds back to w.
    movable = 256 * lr
    if recipe.trainer.master_dtype == "bfloat16" and movable < 0.02:
        yield Problem(
            what=f"with bfloat16 masters a step of lr = {lr:g} rounds to nothing for weights "
            f"above 256 * lr = {movable:.2g}, and typical weights are about 0.02",
            paths=("trainer.master_dtype", "trainer.optimizer.lr"),
            hint="`--set trainer.master_dtype=float32 --set trainer.optimizer.lr=1e-6` is the "
            "exact variant",
            severity="warning",
        )


def _intervals(case: _Case) -> Iterator[Problem]:
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
                severity="warning",
            )
    updates = recipe.trainer.steps * recipe.algorithm.updates_per_step
    if recipe.trainer.optimizer.warmup_updates >= updates:
        yield Problem(
            what=f"the warm-up of {recipe.trainer.optimizer.warmup_updates} optimizer steps never "
            f"ends: the run has {updates}",
            paths=("trainer.optimizer.warmup_updates", "trainer.steps"),
            hint=f"set it below {updates}",
        )
    greedy = recipe.evaluation.temperature == 0 and recipe.evaluation.samples > 1
    if greedy and recipe.evaluation.datasets:
        yield Problem(
            what=f"greedy evaluation gives {recipe.evaluation.samples} equal answers",
            paths=("evaluation.samples", "evaluation.temperature"),
            hint="set `evaluation.samples` to 1",
            severity="warning",
        )


_RULES: tuple[Callable[[_Case], Iterable[Problem]], ...] = (
    _names,
    _datasets,
    _lengths,
    _model,
    _gpus,
    _batches,
    _concurrency,
    _weights,
    _ignored_settings,
    _algorithm,
    _precision,
    _intervals,
)


def _ignored(path: str, by: str, why: str) -> Problem:
    return Problem(
        what=f"`{path}` would be ignored: {why}", paths=(path, by), hint=f"delete `{path}`"
    )


def _ranks_path(recipe: Recipe) -> str:
    return "trainer.gpus" if recipe.trainer.gpus else "trainer.cpu_ranks"


def _is_data_file(name: str) -> bool:
    return name.endswith((".jsonl", ".jsonl.gz", ".parquet")) and Path(name).expanduser().is_file()
