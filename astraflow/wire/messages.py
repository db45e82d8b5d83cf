"""
Every message between roles, as msgpack over HTTP.

    RaaS       -> dataflow   /v1/run /v1/lease /v1/groups /v1/beat /v1/install /v1/release
    trainer    -> dataflow   /v1/publishers /v1/version /v1/batch /v1/checkpoint /v1/evaluation
    supervisor -> dataflow   /v1/lost
"""

from __future__ import annotations

from typing import Literal

import msgspec

from astraflow.records import Prompt, SampleGroup

__all__ = [
    "BatchRequest",
    "Beat",
    "BeatReply",
    "CheckpointRequest",
    "Done",
    "EvaluationReply",
    "EvaluationRequest",
    "FailedLease",
    "GroupsReply",
    "GroupsReport",
    "InstallReply",
    "InstallRequest",
    "Lease",
    "LeaseReply",
    "LeaseRequest",
    "LostReport",
    "PublisherAddress",
    "PublishersReport",
    "ReleaseRequest",
    "RunReply",
    "RunRequest",
    "VersionReply",
    "VersionReport",
]


class _Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every message: frozen, named fields only, unknown fields refused."""


class Lease(_Message, frozen=True, kw_only=True):
    """One prompt to sample, until the lease is answered, released or lost."""

    lease_id: str
    purpose: Literal["train", "evaluate"]
    prompt: Prompt
    position: int
    """Place of the prompt in the endless seeded order; what seeds are made from."""
    samples: int
    temperature: float
    max_new_tokens: int
    seed: int
    """Sample ``i`` of the group is drawn with ``seed + i``."""


class LeaseRequest(_Message, frozen=True, kw_only=True):
    """Ask for work."""

    instance: str
    version: int
    """What the instance's engine holds; evaluation goes only to its own version."""
    max_groups: int
    wait_s: float
    lineage: str = ""
    """The trainer's start that the held weights were proved against; empty for those that the
    engine loaded itself."""


class LeaseReply(_Message, frozen=True, kw_only=True):
    """Work, perhaps none."""

    leases: tuple[Lease, ...]


class FailedLease(_Message, frozen=True, kw_only=True):
    """A lease that gave no group."""

    lease_id: str
    cause: Literal["prompt_too_long", "sampling_failed", "grading_failed"]
    why: str


class GroupsReport(_Message, frozen=True, kw_only=True):
    """Hand groups back."""

    instance: str
    groups: tuple[SampleGroup, ...] = ()
    failed: tuple[FailedLease, ...] = ()


class GroupsReply(_Message, frozen=True, kw_only=True):
    """What became of the groups, by cause; ``buffered`` and ``evaluated`` are not drops."""

    counts: dict[str, int]


class Beat(_Message, frozen=True, kw_only=True):
    """A sign of life of an instance; renews its leases."""

    instance: str
    version: int
    running: int
    waiting: int
    lease_ids: tuple[str, ...]
    lineage: str = ""
    """The trainer's start that the held weights were proved against; empty for those that the
    engine loaded itself."""


class PublisherAddress(_Message, frozen=True, kw_only=True):
    """Where one trainer rank serves its shards."""

    rank: int
    host: str
    port: int


class BeatReply(_Message, frozen=True, kw_only=True):
    """What an instance should know."""

    publishers: tuple[PublisherAddress, ...]
    """All ranks, in order; empty until every rank has reported."""
    newest: int
    """Newest version that can be fetched; -1 before the first publish."""
    trainer_version: int
    """Version that the trainer holds; samples must not lie too far behind it."""
    lost: tuple[str, ...]
    """Leases that the instance names and no longer holds."""
    lineage: str = ""
    """The trainer's start that the senders belong to. After another one, versions count anew."""


class InstallRequest(_Message, frozen=True, kw_only=True):
    """Ask whether a version may be installed now, or report that it was."""

    instance: str
    version: int
    installed: bool
    lineage: str = ""
    """The trainer's start that the held weights were proved against; empty for those that the
    engine loaded itself."""


class InstallReply(_Message, frozen=True, kw_only=True):
    """Whether to go on."""

    allowed: bool
    why: str = ""


class ReleaseRequest(_Message, frozen=True, kw_only=True):
    """Give leases back unanswered and leave."""

    instance: str
    lease_ids: tuple[str, ...]


class LostReport(_Message, frozen=True, kw_only=True):
    """An instance is dead: its leases can be handed out again."""

    instance: str


class PublishersReport(_Message, frozen=True, kw_only=True):
    """One rank's address, and how many ranks there are."""

    address: PublisherAddress
    ranks: int
    lineage: str = ""
    """Alike for all ranks of one start of the trainer, and for no other start."""


class VersionReport(_Message, frozen=True, kw_only=True):
    """The trainer holds a new version, published or about to be."""

    version: int
    published: bool


class VersionReply(_Message, frozen=True, kw_only=True):
    """Whether the trainer may publish; an evaluation may still need the version before."""

    publish: bool
    why: str = ""


class BatchRequest(_Message, frozen=True, kw_only=True):
    """Ask for the batch of one step; asking again gives the same batch."""

    step: int
    wait_s: float


class CheckpointRequest(_Message, frozen=True, kw_only=True):
    """Write the dataflow's state as of after ``step`` batches into ``folder``."""

    step: int
    folder: str


class RunRequest(_Message, frozen=True, kw_only=True):
    """Ask what the run is; an instance that joins from elsewhere does."""


class RunReply(_Message, frozen=True, kw_only=True):
    """What an instance must know that has no run folder."""

    run_id: str
    recipe: str
    """The text of recipe.json."""


class Done(_Message, frozen=True, kw_only=True):
    """Nothing to say but that it is done."""


class EvaluationRequest(_Message, frozen=True, kw_only=True):
    """Start the evaluation of a version, or ask how far it is."""

    version: int
    start: bool


class EvaluationReply(_Message, frozen=True, kw_only=True):
    """State of one evaluation."""

    version: int
    state: Literal["waiting", "running", "done"]
    held_by: int
    """Instances that hold the version now (count)."""
    finished: int
    total: int
    accuracy: float | None = None
    """Mean over datasets of avg@k, once done."""
    by_dataset: dict[str, float] = {}
