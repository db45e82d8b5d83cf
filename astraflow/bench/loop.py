"""A whole run, measured: steps a second, who waits, the time of each stage, memory that grows."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from astraflow.errors import AstraFlowError

__all__ = ["measure_loop", "read_loop"]

_TAIL_CHARACTERS = 2000
_STAGES = ("step_s", "publish_s")
_SETTLED_STEP = 5


def measure_loop(recipe: str, overrides: Sequence[str], *, steps: int) -> dict[str, Any]:
    """
    Run a recipe for some steps, as a user would, and measure it.

    Args:
        recipe: Stem of a shipped recipe, or a path.
        overrides: As for `astraflow run --set`.
        steps: Optimizer batches (count).

    Raises:
        AstraFlowError: the run did not end well.
    """
    with tempfile.TemporaryDirectory() as runs:
        command = [sys.executable, "-m", "astraflow", "run", recipe, "--plain"]
        command += ["--runs", runs, "--name", "loop"]
        for override in (*overrides, f"trainer.steps={steps}"):
            command += ["--set", override]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        folder = Path(runs) / "loop" / "1"
        if done.returncode:
            raise AstraFlowError(
                f"the run ended with exit code {done.returncode}:\n"
                f"{done.stderr[-_TAIL_CHARACTERS:]}"
            )
        return read_loop(folder)


def read_loop(folder: Path) -> dict[str, Any]:
    """
    Read a finished run's figures.

    Args:
        folder: The run folder.
    """
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = [
        json.loads(line)
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    settled = rows[min(_SETTLED_STEP, len(rows) - 1) :]
    seconds = settled[-1]["time"] - settled[0]["time"]
    return {
        "steps": summary["steps"],
        "steps_per_s": (len(settled) - 1) / seconds if seconds > 0 else None,
        "sampled_tokens_per_s": summary["sampled_tokens_per_s"],
        "trained_tokens_per_s": summary["trained_tokens_per_s"],
        "trainer_wait_frac": summary["trainer_wait_frac"],
        "rollout_wait_frac": summary["rollout_wait_frac"],
        "bottleneck": summary["bottleneck"],
        "stages_s": {
            stage: statistics.median(row[f"trainer/{stage}"] for row in settled)
            for stage in _STAGES
        },
        "held_ms_median": {
            name: weights.get("held_ms_median") for name, weights in summary["weights"].items()
        },
        "memory": {name: _growth(settled, name) for name in sorted(_memory_names(settled))},
        "rows": rows,
    }


def _memory_names(rows: Sequence[dict[str, Any]]) -> set[str]:
    return {
        name
        for row in rows
        for name in row
        if name.endswith(("/memory_bytes", "/gpu_reserved_bytes"))
    }


def _growth(rows: Sequence[dict[str, Any]], name: str) -> dict[str, float]:
    """Compare the second half of the settled steps with the first, by medians (bytes)."""
    values = [row[name] for row in rows if name in row]
    half = max(len(values) // 2, 1)
    first, second = statistics.median(values[:half]), statistics.median(values[-half:])
    return {
        "first_bytes": first,
        "second_bytes": second,
        "growth_frac": second / first - 1 if first else 0.0,
    }
