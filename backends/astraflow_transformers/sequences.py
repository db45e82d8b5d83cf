"""Sequence: one request on its way through the engine, and the sample it becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from astraflow.records import FinishReason, PolicyVersion, Sample, SampleRequest
from astraflow_transformers.sampling import uniforms

__all__ = ["Sequence"]


@dataclass(slots=True)
class Sequence:
    """A request, what was drawn for it so far, and whom to tell."""

    request: SampleRequest
    deliver: Callable[[Sample | BaseException], None]
    uniform: Tensor = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    cancelled: bool = False

    def __post_init__(self) -> None:
        """Prepare what every step needs."""
        self.uniform = uniforms(self.request)
        self.stop_ids = frozenset(self.request.stop_ids)

    def take(self, token: int, logprob: float, version: int) -> bool:
        """Append one drawn token; True when the answer is complete."""
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        return token in self.stop_ids or len(self.token_ids) >= self.request.max_new_tokens

    def finish(self) -> None:
        """Hand the sample over."""
        stopped = self.token_ids[-1] in self.stop_ids
        self.deliver(
            Sample(
                token_ids=tuple(self.token_ids),
                logprobs=tuple(self.logprobs),
                versions=tuple(PolicyVersion(version) for version in self.versions),
                finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
            )
        )
