"""The `rlvr` workflow: render the problem, sample a group, pay verifiable answers."""

from __future__ import annotations

import asyncio
import time

from astraflow.grading import GradeRequest, GradeResult
from astraflow.plugins import Plugin
from astraflow.raas.workflow import PromptTooLong, Workflow, WorkflowContext
from astraflow.recipe.base import RecipeModel
from astraflow.records import FinishReason, GradedSample, Sample, SampleGroup, SampleRequest
from astraflow.wire.messages import Lease

__all__ = ["Rlvr", "RlvrSettings", "plugin"]


class Rlvr:
    """One question, one answer a sample, one reward an answer."""

    def __init__(self, context: WorkflowContext) -> None:
        self._context = context
        self._section = context.recipe.workflow

    async def run(self, lease: Lease) -> SampleGroup:
        """
        Sample and grade one group.

        Raises:
            PromptTooLong: the rendered prompt exceeds ``data.max_prompt_tokens``.
        """
        prompt_ids = self._render(lease)
        started = time.monotonic()
        samples = await asyncio.gather(
            *(self._context.sample(request) for request in self._requests(lease, prompt_ids))
        )
        sampled = time.monotonic()
        texts = [self._context.renderer.decode(self._answer(sample)) for sample in samples]
        grades = await self._context.reward.grade(
            [
                GradeRequest(
                    gold=lease.prompt.answer,
                    completion=text,
                    truncated=sample.finish is FinishReason.LENGTH,
                    answer=self._section.answer,
                )
                for sample, text in zip(samples, texts, strict=True)
            ]
        )
        return SampleGroup(
            lease_id=lease.lease_id,
            prompt_ids=prompt_ids,
            samples=tuple(map(_graded, samples, grades, texts)),
            sampled_s=sampled - started,
            graded_s=time.monotonic() - sampled,
        )

    def _render(self, lease: Lease) -> tuple[int, ...]:
        prompt_ids = self._context.renderer.render(
            lease.prompt.problem,
            instruction=self._section.instruction,
            thinking=self._context.recipe.model.thinking,
        )
        limit = self._context.recipe.data.max_prompt_tokens
        if len(prompt_ids) > limit:
            raise PromptTooLong(
                f"prompt `{lease.prompt.id}` has {len(prompt_ids)} tokens, more than "
                f"`data.max_prompt_tokens` = {limit}"
            )
        return prompt_ids

    def _requests(self, lease: Lease, prompt_ids: tuple[int, ...]) -> list[SampleRequest]:
        return [
            SampleRequest(
                request_id=f"{lease.lease_id}.{index}",
                group_id=lease.lease_id,
                group_size=lease.samples,
                prompt_ids=prompt_ids,
                max_new_tokens=lease.max_new_tokens,
                temperature=lease.temperature,
                seed=lease.seed + index,
                stop_ids=self._context.stop_ids,
            )
            for index in range(lease.samples)
        ]

    def _answer(self, sample: Sample) -> tuple[int, ...]:
        """Leave out the token that ended the answer, which is no part of its text."""
        if sample.token_ids and sample.token_ids[-1] in self._context.stop_ids:
            return sample.token_ids[:-1]
        return sample.token_ids


class RlvrSettings(RecipeModel):
    """The workflow has no settings beyond `workflow` itself."""


def _graded(sample: Sample, grade: GradeResult, text: str) -> GradedSample:
    return GradedSample(
        token_ids=sample.token_ids,
        logprobs=sample.logprobs,
        versions=tuple(int(version) for version in sample.versions),
        finish=sample.finish,
        reward=grade.reward,
        outcome=grade.outcome,
        text=text,
    )


def _build(context: WorkflowContext) -> Workflow:
    return Rlvr(context)


plugin: Plugin[Workflow] = Plugin(name="rlvr", settings=RlvrSettings, build=_build)
