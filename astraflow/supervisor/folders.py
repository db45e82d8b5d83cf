"""The run folder: `runs/NAME/N`, with `latest` pointing at the newest."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

from astraflow.errors import RecipeError
from astraflow.recipe.files import ResolvedRecipe
from astraflow.recipe.models import local_path
from astraflow.wire.auth import TOKEN_FILE

__all__ = [
    "latest_run",
    "make_run_folder",
    "with_local_model",
    "write_recipe",
    "write_token",
]

_RECORDED = (
    "astraflow-rl", "torch", "transformers", "sglang", "flash-linear-attention", "datasets",
    "math-verify", "numpy", "safetensors",
)  # fmt: skip


def make_run_folder(root: Path, name: str) -> Path:
    """Make the next numbered folder of a run's name and point `latest` at it."""
    family = root / name
    family.mkdir(parents=True, exist_ok=True)
    number = max((int(p.name) for p in family.iterdir() if p.name.isdigit()), default=0) + 1
    while True:
        try:
            folder = family / str(number)
            folder.mkdir()
            break
        except FileExistsError:
            number += 1  # another run started at the same moment
    for part in ("logs", "checkpoints"):
        (folder / part).mkdir()
    _point_latest(family, folder)
    return folder


def latest_run(root: Path, name: str) -> Path:
    """
    Return the newest run folder of a name.

    Raises:
        RecipeError: there is none.
    """
    family = root / name
    numbers = [int(p.name) for p in family.glob("*") if p.name.isdigit()] if family.is_dir() else []
    if not numbers:
        raise RecipeError(
            f"there is no run `{name}` in `{root}` to resume",
            hint="start it without `--resume`, or give its `--name`",
        )
    return family / str(max(numbers))


def with_local_model(resolved: ResolvedRecipe) -> ResolvedRecipe:
    """Return the recipe with the path of a built-in model instead of its name."""
    model = resolved.recipe.model
    located = model.model_copy(update={"path": local_path(model.path)})
    return replace(resolved, recipe=resolved.recipe.model_copy(update={"model": located}))


def write_recipe(folder: Path, resolved: ResolvedRecipe) -> Path:
    """Write the resolved copy with library versions and the state of the checkout."""
    path = folder / "recipe.json"
    path.write_text(
        resolved.to_json(versions=_versions(), python=platform.python_version(), git=_git_state()),
        encoding="utf-8",
    )
    return path


def write_token(folder: Path, token: str) -> Path:
    """Write the run's token where only this user can read it; it goes when the run ends."""
    path = folder / TOKEN_FILE
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(token)
    return path


def _point_latest(family: Path, folder: Path) -> None:
    scratch = family / f".latest-{os.getpid()}"
    scratch.unlink(missing_ok=True)
    scratch.symlink_to(folder.name)
    scratch.rename(family / "latest")


def _versions() -> dict[str, str]:
    versions = {}
    for name in _RECORDED:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _git_state() -> dict[str, str]:
    """Return commit and cleanliness of the checkout this package runs from; empty in a wheel."""
    checkout = Path(__file__).resolve().parents[2]
    git = shutil.which("git")
    if git is None or not (checkout / ".git").exists():
        return {}

    def ask(*arguments: str) -> str:
        command = [git, "-C", str(checkout), *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        return answer.stdout.strip()

    dirty = bool(ask("status", "--porcelain", "--untracked-files=no"))
    return {"commit": ask("rev-parse", "HEAD"), "dirty": str(dirty).lower()}
