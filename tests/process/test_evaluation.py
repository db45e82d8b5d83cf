"""`astraflow eval`: the same table whether or not it was interrupted, and numbers that add up."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest


def _command(out: Path, *more: str, rows: int = 40, samples: int = 2) -> list[str]:
    return [
        sys.executable, "-m", "astraflow", "eval", "builtin:tiny", "--datasets", "additions_test",
        "--max-rows", str(rows), "--samples", str(samples), "--temperature", "1.0",
        "--max-new-tokens", "12", "--out", str(out), "--json", *more,
    ]  # fmt: skip


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def _rows(out: Path) -> list[dict[str, Any]]:
    path = out / "generations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_evaluation_killed_in_the_middle_continues_to_the_same_table(tmp_path: Path) -> None:
    whole = _run(_command(tmp_path / "whole", rows=400, samples=4))
    cut = tmp_path / "cut"
    command = _command(cut, rows=400, samples=4)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as first:
        give_up = time.monotonic() + 100
        path = cut / "generations.jsonl"
        while time.monotonic() < give_up and first.poll() is None:
            if path.exists() and path.stat().st_size:
                break
            time.sleep(0.005)
        first.send_signal(signal.SIGKILL)
    assert 0 < path.read_text().count("\n") < 400
    continued = _run(command)
    assert continued["datasets"] == whole["datasets"]
    assert len(_rows(cut)) == 400


def test_scores_are_what_the_saved_generations_say(tmp_path: Path) -> None:
    result = _run(_command(tmp_path / "out"))
    rows = _rows(tmp_path / "out")
    right = [[s["outcome"] == "right" for s in row["samples"]] for row in rows]
    found = result["datasets"]["additions_test"]
    assert found["avg_at_k"]["value"] == sum(map(sum, right)) / 80
    assert found["pass_at_k"]["value"] == sum(map(any, right)) / 40
    assert found["avg_at_k"]["low"] <= found["avg_at_k"]["value"] <= found["avg_at_k"]["high"]
    assert found["failed"] == 0
    assert found["unverified_golds"] == 0
    assert result["sha256"]["additions_test"]
    assert {"torch", "transformers", "math-verify"} <= set(result["versions"])
    with sqlite3.connect(tmp_path / "out" / "results.sqlite") as db:
        [(answers, rate)] = db.execute("SELECT COUNT(*), AVG(reward) FROM evaluations")
    assert (answers, rate) == (80, found["avg_at_k"]["value"])


def test_folder_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    _run(_command(tmp_path / "out"))
    command = [*_command(tmp_path / "out"), "--seed", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "another seed" in done.stderr


def test_two_evaluations_are_compared_over_the_same_problems(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    _run(_command(one))
    _run(_command(other, "--seed", "2"))
    command = [sys.executable, "-m", "astraflow", "eval", "--compare", str(one), str(other)]
    compared = _run([*command, "--json"])["compared"]["datasets"]["additions_test"]
    means = [
        sum(s["outcome"] == "right" for row in _rows(out) for s in row["samples"]) / 80
        for out in (one, other)
    ]
    assert compared["value"] == pytest.approx(means[1] - means[0])
    assert compared["low"] <= compared["value"] <= compared["high"]
    assert compared["problems"] == 40
    text = subprocess.run([*command, "--markdown"], capture_output=True, text=True, timeout=100)
    assert "| additions_test | 40 |" in text.stdout


def test_dataset_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    command = _command(tmp_path / "out")
    command[command.index("--datasets") + 1] = "additions_test,additions_test"
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2
    assert "names `additions_test` more than once" in done.stderr
