"""summary.json: how a run ended, with the same fields whatever happened."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from astraflow.errors import AstraFlowError
from astraflow.supervisor.bottleneck import bottleneck
from astraflow.supervisor.state import RunState

__all__ = ["summarize", "write_summary"]


def summarize(state: RunState, *, exit_code: int, error: AstraFlowError | None) -> dict[str, Any]:
    """
    Gather the run's result.

    Rates are over the time from every role being ready to the last step; ``*_wait_frac`` are
    shares of that time, 0 to 1. Unknown values are null.
    """
    training_s = state.training_s()
    trainer = state.roles.get("trainer")
    numbers = trainer.numbers if trainer else {}
    instances = state.instances()
    before, after = _accuracies(state)
    return {
        "accuracy_before": before,
        "accuracy_after": after,
        "steps": state.step,
        "wall_s": round(time.monotonic() - state.started_at, 3),
        "training_s": round(training_s, 3),
        "sampled_tokens_per_s": _rate(state.total("sampled_tokens"), training_s),
        "trained_tokens_per_s": _rate(float(numbers.get("trained_tokens", 0)), training_s),
        "samples_per_s": _rate(state.total("samples"), training_s),
        "trainer_wait_frac": _frac(float(numbers.get("wait_s", 0.0)), training_s),
        "rollout_wait_frac": _frac(state.total("idle_s"), training_s * max(len(instances), 1)),
        "bottleneck": bottleneck(state),
        "peak_memory_bytes": state.peak_memory_bytes,
        "memory_bytes": {role.name: role.memory_bytes for role in state.roles.values()},
        "reward_mean_last": state.steps[-1].get("reward_mean") if state.steps else None,
        "groups": {
            key: state.dataflow.get(key) for key in ("produced", "consumed", "buffered", "dropped")
        },
        "evaluations": {
            str(version): score.get("by_dataset") for version, score in state.evaluations.items()
        },
        # With intervals, truncated and missing answers: what `astraflow eval` would say.
        "evaluation_scores": {
            str(version): score.get("datasets") for version, score in state.evaluations.items()
        },
        "weights": {role.name: role.numbers.get("weights", {}) for role in instances},
        "checkpoint_step": state.checkpoint_step,
        "exit_code": exit_code,
        "error": None if error is None else {"what": error.what, "hint": error.hint},
    }


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write summary.json, whole or not at all."""
    scratch = folder / ".summary.json.tmp"
    scratch.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    scratch.rename(folder / "summary.json")


def _accuracies(state: RunState) -> tuple[float | None, float | None]:
    before = state.evaluations.get(0)
    after = state.evaluations.get(state.step) if state.step else None
    return (
        float(before["accuracy"]) if before else None,
        float(after["accuracy"]) if after else None,
    )


def _rate(count: float, seconds: float) -> float | None:
    return round(count / seconds, 1) if seconds > 0 else None


def _frac(part_s: float, whole_s: float) -> float | None:
    return round(min(part_s / whole_s, 1.0), 4) if whole_s > 0 else None
