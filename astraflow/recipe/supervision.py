"""Sections that the supervisor acts on: checkpoints, deadlines, restarts."""

from __future__ import annotations

from pydantic import Field

from astraflow.recipe.base import Positive, RecipeModel, Seconds

__all__ = ["CheckpointSection", "LimitsSection", "RecoverySection"]


class CheckpointSection(RecipeModel):
    """Checkpoints."""

    every_steps: int | None = Field(default=25, ge=1)
    """Steps between checkpoints; null saves only after the last step (count)."""

    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on disk (count)."""


class LimitsSection(RecipeModel):
    """Deadlines of the supervisor."""

    ready_s: Seconds = 600.0
    """Time for a role to load and say that it is ready (s)."""

    heartbeat_s: Seconds = 60.0
    """Time without a heartbeat after which a role counts as hung (s)."""

    no_progress_s: Seconds = 1800.0
    """Time in which neither a sample nor a step was finished after which the run ends (s)."""

    stop_s: Seconds = 30.0
    """Time for a role to leave on request before it is killed (s)."""

    mismatch_nats: Positive = 0.05
    """Mean distance between the engine's and the trainer's log-probabilities of the same tokens
    under the same weights above which a step is warned about (nats)."""


class RecoverySection(RecipeModel):
    """What happens when a role dies or hangs; 0 restarts end the run at once."""

    raas_restarts: int = Field(default=3, ge=0)
    """Restarts of each rollout instance; training goes on meanwhile (count)."""

    dataflow_restarts: int = Field(default=3, ge=0)
    """Restarts of the dataflow service, from what its file holds (count)."""

    trainer_restarts: int = Field(default=2, ge=0)
    """Restarts of the trainer from its last checkpoint; the dataflow goes back with it
    (count)."""

    window_s: Seconds = 3600.0
    """Only restarts within this time count against the numbers above (s)."""

    backoff_s: Seconds = 1.0
    """Pause before a restart; doubles with each one that counts, up to a minute (s)."""
