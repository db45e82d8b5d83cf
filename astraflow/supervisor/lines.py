"""Events of roles as lines: of metrics.jsonl, and for a person."""

from __future__ import annotations

import time
from typing import Any

from astraflow.supervisor.state import RunState

__all__ = ["line_of", "metrics_of", "mismatch_warning"]


def metrics_of(state: RunState, event: dict[str, Any]) -> dict[str, Any]:
    """Return one line of metrics.jsonl: names as ``role/what_unit``."""
    trainer = {
        f"trainer/{key}": value for key, value in event.items() if key not in ("event", "step")
    }
    dataflow = {
        f"dataflow/{key}": value
        for key, value in state.dataflow.items()
        if isinstance(value, int | float | dict)
    }
    raas = {
        f"{role.name}/{key}": value
        for role in state.instances()
        for key, value in role.numbers.items()
        if isinstance(value, int | float | dict)
    }
    memory = {f"{role.name}/memory_bytes": role.memory_bytes for role in state.roles.values()}
    return {
        "step": event["step"],
        "time": round(time.time(), 3),
        **trainer,
        **dataflow,
        **raas,
        **memory,
    }


def line_of(name: str, event: dict[str, Any]) -> str:
    """Say an event in one line; empty for those that nobody needs to read."""
    kind = event.get("event")
    if kind == "ready":
        return f"{name} is ready"
    if kind == "step":
        return (
            f"step {event['step']}: reward {event.get('reward_mean', 0):.3f}, loss "
            f"{event.get('loss', 0):+.4f}, {event['tokens']} tokens in {event['step_s']:.2f} s, "
            f"lag {event.get('lag_mean', 0):.2f}"
        )
    if kind == "evaluation":
        return f"version {event['version']} scores {event['accuracy']:.4f} in evaluation"
    if kind == "checkpoint":
        return f"step {event['step']} is saved"
    return ""


def mismatch_warning(event: dict[str, Any], bound: float) -> str:
    """Warn about a step whose two sides differ by more than ``bound`` (nats)."""
    return (
        f"warning: at step {event['step']} engine and trainer differ by "
        f"{event['mismatch_mean_abs']:.3f} nats on tokens of the same weights "
        f"(`limits.mismatch_nats` is {bound:g}; second moment {event['mismatch_m2']:.4f}, largest "
        f"{event['mismatch_max_abs']:.2f}): the importance ratios are off by that much; compare "
        "dtype, temperature and attention kernels of both sides"
    )
