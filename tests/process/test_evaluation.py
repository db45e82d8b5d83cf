"""`astraflow eval`: the same table whether or not it was interrupted, and numbers that add up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def _command(out: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-m", "astraflow", "eval", "builtin:tiny", "--datasets", "additions_test",
        "--max-rows", "40", "--samples", "2", "--temperature", "1.0", "--max-new-tokens", "12",
        "--dtype", "float32", "--out", str(out), "--json", *more,
    ]  # fmt: skip


def _run(out: Path, *more: str) -> dict[str, Any]:
    done = subprocess.run(_command(out, *more), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def _rows(out: Path) -> list[dict[str, Any]]:
    path = out / "generations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_interrupted_evaluation_continues_to_the_same_table(tmp_path: Path) -> None:
    whole = _run(tmp_path / "whole")
    cut = tmp_path / "cut"
    with subprocess.Popen(
        _command(cut), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as first:
        give_up = time.monotonic() + 100
        path = cut / "generations.jsonl"
        while time.monotonic() < give_up and first.poll() is None:
            if path.exists() and path.stat().st_size:
                break
            time.sleep(0.005)
        first.send_signal(signal.SIGKILL)
    continued = _run(cut)
    assert continued["datasets"] == whole["datasets"]
    assert len(_rows(cut)) == 40


def test_scores_are_what_the_saved_generations_say(tmp_path: Path) -> None:
    result = _run(tmp_path / "out")
    rows = _rows(tmp_path / "out")
    right = [[s["outcome"] == "right" for s in row["samples"]] for row in rows]
    found = result["datasets"]["additions_test"]
    assert found["avg_at_k"]["value"] == sum(map(sum, right)) / 80
    assert found["pass_at_k"]["value"] == sum(map(any, right)) / 40
    assert found["avg_at_k"]["low"] <= found["avg_at_k"]["value"] <= found["avg_at_k"]["high"]
    assert found["failed"] == 0


def test_folder_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    _run(tmp_path / "out")
    command = [*_command(tmp_path / "out"), "--seed", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "another seed" in done.stderr
