"""Why a group is not trained on: each filter returns its cause, or nothing."""

from __future__ import annotations

import math

from astraflow.records import GradedSample, Outcome, SampleGroup

__all__ = ["equal_rewards", "malformed", "ungradable"]


def malformed(group: SampleGroup, *, samples: int) -> str:
    """
    Refuse a group that breaks the contract, so that it never becomes a wrong gradient.

    A missing log-probability is never made up: training on our own log-probabilities would hide
    the staleness that the loss has to correct.
    """
    if len(group.samples) != samples:
        return f"it has {len(group.samples)} samples instead of {samples}"
    if not group.prompt_ids:
        return "its prompt is empty"
    for index, sample in enumerate(group.samples):
        why = _malformed_sample(sample)
        if why:
            return f"sample {index} {why}"
    return ""


def equal_rewards(group: SampleGroup) -> bool:
    """Tell whether all rewards are the same number, compared exactly and not by deviation."""
    rewards = [sample.reward for sample in group.samples]
    return max(rewards) == min(rewards)


def ungradable(group: SampleGroup) -> bool:
    """Tell whether the gold answer could not be read, so that no reward means anything."""
    return any(sample.outcome is Outcome.GOLD_UNPARSABLE for sample in group.samples)


def _malformed_sample(sample: GradedSample) -> str:
    tokens = len(sample.token_ids)
    if tokens == 0:
        return "is empty"
    if len(sample.logprobs) != tokens or len(sample.versions) != tokens:
        return (
            f"has {tokens} tokens, {len(sample.logprobs)} log-probabilities and "
            f"{len(sample.versions)} versions"
        )
    if not all(math.isfinite(value) for value in sample.logprobs):
        return "has a log-probability that is not finite"
    if not math.isfinite(sample.reward):
        return f"has the reward {sample.reward}"
    return ""
