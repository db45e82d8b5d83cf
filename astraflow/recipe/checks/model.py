"""Rules on the model: its folder, its shape and its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from astraflow.recipe.checks.case import Case
from astraflow.recipe.model_folder import folder_problem
from astraflow.recipe.models import has_gated_delta_name, known_models
from astraflow.recipe.nearest import nearest
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

_QUANTIZED_NAME = re.compile(r"(?i)[-_.](fp8|awq|gptq|gguf|int[48]|[48]bit|bnb|nvfp4|mxfp4)\b")


def _folder(case: Case) -> Iterator[Problem]:
    what, hint = folder_problem(case.recipe.model.path)
    if what:
        yield Problem(what=what, paths=("model.path",), hint=hint)
    elif case.facts is None:
        yield Problem(
            what=f"nothing is known here of `{case.recipe.model.path}`: its context, heads and "
            "chat template cannot be checked",
            paths=("model.path",),
            hint=f"{nearest(case.recipe.model.path, known_models())}; or name a local folder",
            severity="warning",
        )


def _positions(case: Case) -> Iterator[Problem]:
    recipe, facts = case.recipe, case.facts
    if facts and facts.max_position and recipe.model.context_length > facts.max_position:
        yield Problem(
            what=f"`{recipe.model.path}` was made for {facts.max_position} positions "
            f"{'with' if facts.rope_scaled else 'and has no'} RoPE scaling, and the context is "
            f"{recipe.model.context_length}",
            paths=("model.context_length", "model.path"),
            hint=f"set `model.context_length` to at most {facts.max_position}",
        )


def _chat(case: Case) -> Iterator[Problem]:
    recipe, facts = case.recipe, case.facts
    if facts is None or not recipe.workflow.chat:
        return
    if facts.has_chat_template is False:
        yield Problem(
            what=f"the tokenizer of `{recipe.model.path}` has no chat template, so prompts cannot "
            "be rendered",
            paths=("model.path",),
            hint="train the -Instruct sibling, put a `chat_template` into the folder's "
            "tokenizer_config.json, or ask in plain text: `workflow.chat: false`",
        )
    elif recipe.model.thinking and facts.can_think is False:
        yield Problem(
            what=f"the chat template of `{recipe.model.path}` knows no thinking, so "
            "`model.thinking` would be ignored",
            paths=("model.thinking", "model.path"),
            hint="delete `model.thinking`",
        )


def _splits(case: Case) -> Iterator[Problem]:
    """What tensor parallelism divides must be divisible."""
    recipe, facts = case.recipe, case.facts
    tensor = recipe.rollout.tensor_parallel
    if facts is None or tensor == 1:
        return
    paths = ("rollout.tensor_parallel", "model.path")
    for number, what in (
        (facts.num_heads, "attention heads"),
        (facts.intermediate, "columns of the MLP"),
    ):
        if number % tensor:
            yield Problem(
                what=f"{number} {what} cannot be split over {tensor} GPUs",
                paths=paths,
                hint=f"use a divisor of {facts.num_heads}",
            )
    if facts.num_kv_heads % tensor and tensor % facts.num_kv_heads:
        yield Problem(
            what=f"{facts.num_kv_heads} key-value heads can neither be split over {tensor} GPUs "
            "nor be copied evenly to them",
            paths=paths,
            hint=f"use a divisor or a multiple of {facts.num_kv_heads}",
        )


def _plain_weights(case: Case) -> Iterator[Problem]:
    path, facts = case.recipe.model.path, case.facts
    how = facts.quantized if facts else ""
    if not how and (found := _QUANTIZED_NAME.search(path)):
        how = found[1]
    if how:
        yield Problem(
            what=f"`{path}` is quantized with {how}, and new weights "
            "cannot be written into quantized tensors",
            paths=("model.path",),
            hint="train the unquantized checkpoint",
        )
    if facts and facts.generates is False:
        yield Problem(
            what=f"`{path}` is a `{facts.model_type}`, which does not go on with a text",
            paths=("model.path",),
            hint="name a causal language model",
        )


def _gated_delta(case: Case) -> Iterator[Problem]:
    """A model of which only the name is known; where more is known the adapter judges."""
    recipe = case.recipe
    named = case.facts is None and has_gated_delta_name(recipe.model.path)
    if named and recipe.trainer.backend == "megatron":
        yield Problem(
            what=f"`{recipe.model.path}` is of a family with Gated-DeltaNet layers, and "
            "Megatron-Core has no gated-delta-rule layer with packed sequences and no weight "
            "mapping for it",
            paths=("trainer.backend", "model.path"),
            hint="set `trainer.backend` to `fsdp`, which trains this model",
        )


RULES = (_folder, _positions, _chat, _splits, _plain_weights, _gated_delta)
