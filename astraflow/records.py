"""Prompt, Sample, SampleGroup, TrainBatch, PolicyVersion: what passes between roles."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NewType

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "FinishReason",
    "GradedSample",
    "Outcome",
    "PolicyVersion",
    "Prompt",
    "Sample",
    "SampleGroup",
    "SampleRequest",
    "TrainBatch",
]

PolicyVersion = NewType("PolicyVersion", int)
"""Batches trained on so far; the starting checkpoint is 0."""


class FinishReason(StrEnum):
    """Why sampling of one answer ended."""

    STOP = "stop"
    LENGTH = "length"


class Outcome(StrEnum):
    """What a grader says of one answer; only ``RIGHT`` pays."""

    RIGHT = "right"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    UNPARSABLE = "unparsable"
    TIMED_OUT = "timed_out"
    GOLD_UNPARSABLE = "gold_unparsable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of a dataset."""

    id: str
    """Name of the row inside its dataset."""

    problem: str
    """The question as the dataset has it, before any template."""

    answer: str
    """The gold answer, never empty."""

    dataset: str = ""
    """Name of the dataset the row comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One answer to sample."""

    request_id: str
    """Unique in the run; names the sample in logs."""

    group_id: str
    """Shared by the samples of one prompt, so that an engine may prefill it once."""

    group_size: int
    """Requests that carry this ``group_id`` (count)."""

    prompt_ids: tuple[int, ...]
    """``[prompt]`` token ids."""

    max_new_tokens: int
    """Upper bound on the answer (tokens)."""

    temperature: float
    """Softmax temperature, 0 for greedy; reported log-probabilities are at this temperature."""

    seed: int
    """Seed of this sample alone; two samples of a group have different ones."""

    stop_ids: tuple[int, ...]
    """Token ids that end the answer."""

    top_p: float = 1.0
    """Nucleus bound; 1 keeps the full distribution, which training needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sampled answer."""

    token_ids: tuple[int, ...]
    """``[answer]`` token ids, the stop token included."""

    logprobs: tuple[float, ...]
    """``[answer]`` log of the probability each token was drawn with (nats)."""

    versions: tuple[PolicyVersion, ...]
    """``[answer]`` version that drew each token; more than one if weights changed meanwhile."""

    finish: FinishReason
    """Why it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedSample:
    """One answer with its reward, as RaaS hands it back."""

    token_ids: tuple[int, ...]
    """``[answer]`` token ids, the stop token included."""

    logprobs: tuple[float, ...]
    """``[answer]`` log-probabilities of the policy that sampled (nats)."""

    versions: tuple[int, ...]
    """``[answer]`` version that drew each token."""

    finish: FinishReason
    """Why it ended."""

    reward: float
    """What the reward function paid."""

    outcome: Outcome
    """The grader's class for the answer."""

    text: str = ""
    """The decoded answer, kept for people to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGroup:
    """All samples of one prompt under one lease."""

    lease_id: str
    """The lease this group answers."""

    prompt_ids: tuple[int, ...]
    """``[prompt]`` token ids that every sample started from."""

    samples: tuple[GradedSample, ...]
    """As many as the lease asked for."""

    sampled_s: float
    """Wall time from the first request to the last answer (s)."""

    graded_s: float
    """Wall time that grading added (s)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """
    Sequences packed end to end, with no padding.

    Per-token fields are aligned with ``token_ids``: entry ``t`` belongs to the token at ``t``
    given everything before it in its sequence. The first token of a sequence is never in
    ``answer_mask``.
    """

    token_ids: Tensor
    """``[tokens]`` int64."""

    cu_seqlens: Tensor
    """``[sequences + 1]`` int32, where each sequence starts; the last entry is ``tokens``."""

    answer_mask: Tensor
    """``[tokens]`` bool, True where the policy wrote the token."""

    behavior_logprobs: Tensor
    """``[tokens]`` float32 (nats), as the engine sampled; 0 outside the answer."""

    advantages: Tensor
    """``[tokens]`` float32; 0 outside the answer."""

    keep_mask: Tensor | None = None
    """``[tokens]`` bool, what a mini-batch rule such as M2PO keeps; None keeps all."""

    reference_logprobs: Tensor | None = None
    """``[tokens]`` float32 (nats) of the starting policy; None without a KL term."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences, prompts included (count)."""
        return int(self.token_ids.shape[0])

    @property
    def num_sequences(self) -> int:
        """Sequences (count)."""
        return int(self.cu_seqlens.shape[0]) - 1
