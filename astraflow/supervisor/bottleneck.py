"""Which side of a run waits for the other, and what would change that."""

from __future__ import annotations

from astraflow.supervisor.state import RunState

__all__ = ["bottleneck"]

_BUSY_FRAC = 0.1
_MUCH_FRAC = 0.5


def bottleneck(state: RunState) -> str:
    """Say in one line who waits for whom and what to change; ``unknown yet`` before training."""
    seconds = state.training_s()
    trainer = state.roles.get("trainer")
    if seconds <= 0 or trainer is None:
        return "unknown yet"
    waited = min(float(trainer.numbers.get("wait_s", 0.0)) / seconds, 1.0)
    idle = min(state.total("idle_s") / seconds / max(len(state.instances()), 1), 1.0)
    if max(waited, idle) < _BUSY_FRAC:
        return "both sides are busy"
    if min(waited, idle) > _BUSY_FRAC and waited + idle > _MUCH_FRAC:
        return (
            f"the sides take turns (the trainer waits {waited:.1%}, rollout {idle:.1%}): raise "
            "`dataflow.max_staleness` so that they overlap"
        )
    if waited >= idle:
        return f"the trainer waits {waited:.1%} of the time for samples: {_faster_rollout(state)}"
    return (
        f"rollout waits {idle:.1%} of the time for the trainer: give it more of the GPUs, or "
        "`trainer.fsdp.compile: true`"
    )


def _faster_rollout(state: RunState) -> str:
    dropped = state.dataflow.get("dropped") or {}
    produced = state.dataflow.get("produced") or 0
    cause, count = max(dropped.items(), key=lambda item: item[1], default=("", 0))
    if produced and count > _MUCH_FRAC * produced:
        hint = {
            "equal_rewards": "the problems are too easy or too hard for the policy",
            "stale": "raise `dataflow.max_staleness`",
        }.get(cause, "see the logs of RaaS")
        return f"{count} of {produced} groups are dropped ({cause}): {hint}"
    return "give rollout more GPUs or more places (`max_running_requests`)"
