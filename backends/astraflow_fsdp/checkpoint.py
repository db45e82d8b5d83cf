"""
Checkpoints: one pair of files a rank, readable on any number of ranks; no pickle.

    rank-00000.json            version, updates; of each piece name, shape, first, count, steps
    rank-00000.safetensors     weights.0, exp_avg.0, exp_avg_sq.0, weights.1, ...   flat pieces
                               rng.cpu, rng.cuda                                    uint8

A rank that restores reads, from whichever files hold them, the ranges that its own pieces need.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from astraflow.errors import RecipeError
from astraflow_fsdp.optimizer import Optimizer
from astraflow_fsdp.sharding import Piece

__all__ = ["SavedPiece", "read_index", "restore", "save"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedPiece:
    """Where one piece of one parameter lies."""

    name: str
    """Checkpoint name of the parameter."""

    shape: tuple[int, ...]
    """Shape of the whole parameter."""

    first: int
    """Flat index of the piece's first element."""

    count: int
    """Elements (count)."""

    steps: int
    """AdamW steps that it has taken; 0 when it has no moments (count)."""

    file: Path
    """The safetensors file."""

    key: int
    """Its number in the file."""


def save(folder: Path, pieces: Sequence[Piece], optimizer: Optimizer, *, version: int) -> None:
    """Write this rank's weights, moments and random state into ``folder``."""
    rank = dist.get_rank()
    mine = [piece for piece in pieces if rank == 0 or not piece.replicated]
    tensors: dict[str, Tensor] = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    rows = []
    for key, piece in enumerate(mine):
        tensors[f"weights.{key}"] = piece.values
        moments = optimizer.moments(piece)
        if moments is not None:
            tensors[f"exp_avg.{key}"], tensors[f"exp_avg_sq.{key}"] = moments
        rows.append(
            {
                "name": piece.name,
                "shape": piece.shape,
                "first": piece.first,
                "count": piece.values.numel(),
                "steps": optimizer.steps_of(piece),
            }
        )
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / f"rank-{rank:05d}.safetensors")
    index = {"version": version, "updates": optimizer.updates, "pieces": rows}
    (folder / f"rank-{rank:05d}.json").write_text(json.dumps(index), encoding="utf-8")


def read_index(folder: Path) -> tuple[int, int, dict[str, list[SavedPiece]]]:
    """
    Read every rank's index.

    Returns:
        Version, optimizer steps, and each parameter's pieces in ascending order.

    Raises:
        RecipeError: the folder holds no checkpoint of this trainer.
    """
    paths = sorted(folder.glob("rank-*.json"))
    if not paths:
        raise RecipeError(
            f"`{folder}` holds no checkpoint of the `fsdp` trainer",
            hint="give the folder `checkpoints/step-NNNNNN/trainer` of a run",
        )
    found: dict[str, list[SavedPiece]] = {}
    version = updates = 0
    for path in paths:
        index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version, updates = index["version"], index["updates"]
        for key, row in enumerate(index["pieces"]):
            saved = SavedPiece(
                name=row["name"],
                shape=tuple(row["shape"]),
                first=row["first"],
                count=row["count"],
                steps=row["steps"],
                file=path.with_suffix(".safetensors"),
                key=key,
            )
            found.setdefault(saved.name, []).append(saved)
    for pieces in found.values():
        pieces.sort(key=lambda piece: piece.first)
    return version, updates, found


def restore(folder: Path, pieces: Sequence[Piece], optimizer: Optimizer) -> int:
    """
    Read this rank's pieces back, whatever ranks wrote them.

    Returns:
        The version that was saved.

    Raises:
        RecipeError: there is no checkpoint, or it is of another model.
    """
    version, updates, found = read_index(folder)
    with ExitStack() as files:
        reader = _Reader(files)
        for piece in pieces:
            parts = _parts(found.get(piece.name, []), piece, folder)
            reader.fill(piece.values, piece, parts, "weights")
            steps = parts[0].steps
            if steps:
                moments = torch.empty_like(piece.values), torch.empty_like(piece.values)
                for kind, moment in zip(("exp_avg", "exp_avg_sq"), moments, strict=True):
                    reader.fill(moment, piece, parts, kind)
                optimizer.set_moments(piece, *moments, steps=steps)
    optimizer.updates = updates
    _restore_rng(folder)
    return version


class _Reader:
    """Keeps the files open while pieces are put together."""

    def __init__(self, files: ExitStack) -> None:
        self._files = files
        self._open: dict[Path, Any] = {}

    def fill(self, target: Tensor, piece: Piece, parts: Sequence[SavedPiece], kind: str) -> None:
        for part in parts:
            if part.file not in self._open:
                handle = safe_open(part.file, framework="pt")
                self._open[part.file] = self._files.enter_context(handle)
            start = max(part.first, piece.first)
            end = min(part.first + part.count, piece.first + target.numel())
            stored = self._open[part.file].get_slice(f"{kind}.{part.key}")
            content = stored[start - part.first : end - part.first]
            target[start - piece.first : end - piece.first] = content.to(target.device)


def _parts(saved: Sequence[SavedPiece], piece: Piece, folder: Path) -> list[SavedPiece]:
    """Return what overlaps the piece, having made sure that it covers all of it."""
    if not saved or saved[0].shape != piece.shape:
        has = f"with shape {saved[0].shape}" if saved else "not at all"
        raise RecipeError(
            f"`{folder}` is a checkpoint of another model: it has `{piece.name}` {has}, and "
            f"the model has shape {piece.shape}",
            hint="resume with the recipe that the run was started with",
        )
    end = piece.first + piece.values.numel()
    parts = [part for part in saved if part.first < end and part.first + part.count > piece.first]
    covered = piece.first
    for part in parts:
        if part.first > covered:
            break
        covered = part.first + part.count
    if covered < end:
        raise RecipeError(
            f"`{folder}` lacks elements {covered} to {end} of `{piece.name}`: a rank's file is "
            "absent"
        )
    return parts


def _restore_rng(folder: Path) -> None:
    """Take up this rank's random state; a rank that had none keeps its seed."""
    path = folder / f"rank-{dist.get_rank():05d}.safetensors"
    if not path.is_file():
        return
    with safe_open(path, framework="pt") as tensors:
        torch.set_rng_state(tensors.get_tensor("rng.cpu"))
        if torch.cuda.is_available() and "rng.cuda" in tensors.keys():  # noqa: SIM118
            torch.cuda.set_rng_state(tensors.get_tensor("rng.cuda"))
