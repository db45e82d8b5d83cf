"""
Checkpoints: complete or absent, verified before an older one goes.

    checkpoints/.step-000100.tmp/   being written; ignored and removed on the next start
    checkpoints/step-000100/
        trainer/                    what the trainer backend saved, one set of files a rank
        dataflow.msgpack            position, buffer and counters of the dataflow at this step
        checkpoint.json             step, ranks, and the hash of every file: written last
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import xxhash

from astraflow.errors import RecipeError

__all__ = ["Checkpoint", "begin", "commit", "find_checkpoint", "prune", "verify"]

log = logging.getLogger(__name__)

_META = "checkpoint.json"
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint."""

    step: int
    """Batches trained on; also the version of its weights."""

    folder: Path
    """Where it lies."""


def begin(folder: Path, *, step: int) -> Path:
    """Make an empty folder to write into, beside where the checkpoint will be."""
    scratch = folder / f".step-{step:06d}.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    (scratch / "trainer").mkdir(parents=True)
    return scratch


def commit(scratch: Path, *, step: int, ranks: int) -> Checkpoint:
    """Sync every file to disk, write the hashes, and move the folder to its name in one step."""
    files = sorted(path for path in scratch.rglob("*") if path.is_file())
    hashes = {str(path.relative_to(scratch)): _hash(path) for path in files}
    meta = scratch / _META
    meta.write_text(json.dumps({"step": step, "ranks": ranks, "files": hashes}, indent=1))
    for path in [*files, meta, scratch / "trainer", scratch]:
        _sync(path)
    final = scratch.parent / f"step-{step:06d}"
    shutil.rmtree(final, ignore_errors=True)
    scratch.rename(final)
    _sync(final.parent)
    return Checkpoint(step=step, folder=final)


def prune(folder: Path, *, keep: int) -> list[Path]:
    """Remove all but the newest ``keep`` checkpoints, once the newest has been verified."""
    complete = _complete(folder)
    if not complete or verify(complete[-1]):
        return []
    old = [checkpoint.folder for checkpoint in complete[:-keep]]
    for path in old:
        shutil.rmtree(path)
    return old


def verify(checkpoint: Checkpoint) -> str:
    """Compare every file with its hash; return what is wrong, empty when all is well."""
    try:
        meta = json.loads((checkpoint.folder / _META).read_text())
        for name, expected in meta["files"].items():
            if _hash(checkpoint.folder / name) != expected:
                return f"`{name}` does not match its hash"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # A damaged list is bad UTF-8, bad JSON, or JSON of another shape.
        return f"{type(error).__name__}: {error}"
    return ""


def find_checkpoint(folder: Path, *, step: int | None = None) -> Checkpoint:
    """
    Return the newest whole checkpoint, or the one of ``step``.

    Half-written and damaged ones are skipped with a word in the log.

    Raises:
        RecipeError: there is none.
    """
    for checkpoint in reversed(_complete(folder)):
        if step is not None and checkpoint.step != step:
            continue
        why = verify(checkpoint)
        if not why:
            return checkpoint
        log.warning("checkpoint `%s` is damaged and skipped: %s", checkpoint.folder, why)
    steps = ", ".join(str(checkpoint.step) for checkpoint in _complete(folder))
    what = "no whole checkpoint" if step is None else f"no whole checkpoint of step {step}"
    raise RecipeError(
        f"{what} in `{folder}`",
        hint=f"steps there: {steps}" if steps else "start the run without `--resume`",
    )


def _complete(folder: Path) -> list[Checkpoint]:
    found = []
    for path in folder.glob("step-*"):
        number = path.name.removeprefix("step-")
        if number.isdigit() and (path / _META).is_file():
            found.append(Checkpoint(step=int(number), folder=path))
        elif path.is_dir():
            log.warning("`%s` is no whole checkpoint and is skipped", path)
    return sorted(found, key=lambda checkpoint: checkpoint.step)


def _hash(path: Path) -> str:
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
