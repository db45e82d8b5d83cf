"""`run --smoke`: each architecture in miniature, with the recipe's own transfer mode."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("recipe", "mode"),
    [
        ("qwen3-1.7b-m2po-2gpus-full", "full"),
        ("qwen3.5-4b-m2po-delta", "delta"),
        ("llama3-8b-instruct-m2po-delta", "delta"),
        ("smollm2-sums", "delta"),
    ],
)
def test_recipe_runs_in_miniature_without_gpu(tmp_path: Path, recipe: str, mode: str) -> None:
    command = [sys.executable, "-m", "astraflow", "run", recipe, "--smoke", "--plain"]
    done = subprocess.run(
        [*command, "--runs", str(tmp_path)], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    folder = tmp_path / f"{recipe}-smoke" / "latest"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 2
    assert summary["weights"]["raas-0"]["last"]["mode"] == mode


def test_dry_run_says_what_would_be_started_as_one_object() -> None:
    command = [sys.executable, "-m", "astraflow", "run", "qwen3-8b-m2po-delta"]
    done = subprocess.run(
        [*command, "--dry-run", "--json"], capture_output=True, text=True, timeout=60, check=True
    )
    plan = json.loads(done.stdout)
    assert plan["recipe"]["weights"]["full_sync_interval"] == 10
    roles = {role["name"]: role["gpus"] for role in plan["roles"]}
    assert roles == {"dataflow": [], "raas-0": [0, 1, 2, 3], "trainer": [4, 5, 6, 7]}


def test_recipe_for_gpus_is_refused_before_anything_starts() -> None:
    command = [sys.executable, "-m", "astraflow", "run", "qwen3-8b-m2po-full"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode in (3, 4)
    assert "hint:" in done.stderr
