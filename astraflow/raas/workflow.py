"""Workflow: how one lease becomes one graded group; found by entry point `astraflow.workflows`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from astraflow.data.chat import PromptRenderer
from astraflow.errors import AstraFlowError
from astraflow.grading import Reward
from astraflow.recipe.schema import Recipe
from astraflow.records import Sample, SampleGroup, SampleRequest
from astraflow.wire.messages import Lease

__all__ = ["PromptTooLong", "Workflow", "WorkflowContext"]


class PromptTooLong(AstraFlowError):
    """A rendered prompt has more tokens than the recipe admits; the row is dropped and counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowContext:
    """What a workflow is built from."""

    recipe: Recipe
    """The run."""

    renderer: PromptRenderer
    """The tokenizer with its chat template."""

    reward: Reward
    """The recipe's reward."""

    sample: Callable[[SampleRequest], Awaitable[Sample]]
    """Sample one answer; retried and bounded in time."""

    stop_ids: tuple[int, ...]
    """Token ids that end an answer."""


class Workflow(Protocol):
    """One way from a prompt to a graded group."""

    async def run(self, lease: Lease) -> SampleGroup:
        """
        Sample and grade.

        Raises:
            PromptTooLong: the prompt is longer than the recipe admits.
            AstraFlowError: an answer could not be had or graded.
        """
        ...
