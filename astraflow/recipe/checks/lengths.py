"""Rules on lengths: prompts and answers against contexts, micro-batches and time limits."""

from __future__ import annotations

from collections.abc import Iterator

from astraflow.recipe.checks.case import Case
from astraflow.recipe.problems import Problem

__all__ = ["RULES"]

# No engine decodes one answer faster on hardware of today (tokens/s).
_FASTEST_ANSWER = 1000
# A backslash and the word, two braces and one digit, in the largest vocabularies there are.
_SHORTEST_BOX = 4


def _context(case: Case) -> Iterator[Problem]:
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


def _microbatch(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    prompt, answer = recipe.data.max_prompt_tokens, recipe.rollout.max_new_tokens
    longest = min(prompt + answer, recipe.model.context_length)
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


def _microbatch_bound(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    longest = recipe.data.max_prompt_tokens + recipe.rollout.max_new_tokens
    share = -(-recipe.trainer.batch_size // (recipe.algorithm.updates_per_step * case.ranks))
    most = longest * share
    if recipe.trainer.tokens_per_microbatch > most:
        yield Problem(
            what=f"a micro-batch may hold {recipe.trainer.tokens_per_microbatch} tokens, and a "
            f"rank's part of a mini-batch has at most {most}, so memory is not bounded by it",
            paths=(
                "trainer.tokens_per_microbatch",
                "trainer.batch_size",
                "rollout.max_new_tokens",
                "algorithm.updates_per_step",
            ),
            hint=f"set `trainer.tokens_per_microbatch` to at most {most}",
            severity="warning",
        )


def _room_for_an_answer(case: Case) -> Iterator[Problem]:
    for section in ("rollout", "evaluation"):
        answer = getattr(case.recipe, section).max_new_tokens
        if answer is not None and answer < _SHORTEST_BOX and case.recipe.workflow.answer == "boxed":
            yield Problem(
                what=rf"no \boxed{{}} fits in an answer of {answer} tokens, so nothing is paid",
                paths=(f"{section}.max_new_tokens", "workflow.answer"),
                hint=f"raise `{section}.max_new_tokens`",
                severity="warning",
            )


def _prompt_room(case: Case) -> Iterator[Problem]:
    """What stands around every problem must leave room for the problem."""
    recipe = case.recipe
    for key in ("instruction", "examples"):
        words = len(getattr(recipe.workflow, key).split())
        if words >= recipe.data.max_prompt_tokens:
            yield Problem(
                what=f"`workflow.{key}` alone has {words} words, so no prompt has room within "
                f"{recipe.data.max_prompt_tokens} tokens",
                paths=("data.max_prompt_tokens", f"workflow.{key}"),
                hint=f"raise `data.max_prompt_tokens` well above {words}",
            )


def _time_for_an_answer(case: Case) -> Iterator[Problem]:
    recipe = case.recipe
    needed_s = recipe.rollout.max_new_tokens / _FASTEST_ANSWER
    if recipe.rollout.request_timeout_s < needed_s:
        yield Problem(
            what=f"an answer of {recipe.rollout.max_new_tokens} tokens takes at least "
            f"{needed_s:g} s even at {_FASTEST_ANSWER} tokens/s, and a request may take "
            f"{recipe.rollout.request_timeout_s:g} s",
            paths=("rollout.request_timeout_s", "rollout.max_new_tokens"),
            hint="raise `rollout.request_timeout_s`; 600 is the default",
        )


RULES = (
    _context,
    _microbatch,
    _microbatch_bound,
    _room_for_an_answer,
    _prompt_room,
    _time_for_an_answer,
)
