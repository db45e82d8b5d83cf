"""Copy what a recipe reads into one folder, which is whole or absent."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from astraflow import __version__
from astraflow.bundling.manifest import (
    CHUNK_BYTES,
    DATA,
    MANIFEST,
    MODEL,
    RECIPE,
    FileRecord,
    Manifest,
)
from astraflow.bundling.sources import DatasetSource, ModelSource, find_datasets, find_model
from astraflow.data.fetching import write_prompts
from astraflow.errors import HardwareError, RecipeError
from astraflow.logs import hide_secrets
from astraflow.recipe.anchors import HERE
from astraflow.recipe.files import ResolvedRecipe
from astraflow.recipe.located import Place
from astraflow.recipe.origins import explain_values

__all__ = ["make_bundle"]

# For recipe, list, and the file system's own blocks.
_SPARE_BYTES = 16 * 2**20


def make_bundle(
    resolved: ResolvedRecipe, out: Path, *, announce: Callable[[str], None] = lambda _: None
) -> Manifest:
    """
    Collect model, tokenizer and datasets of a recipe.

    Everything is written into a hidden folder beside ``out`` that gets its name at the very end.

    Args:
        resolved: A recipe without errors.
        out: Absent, or an empty folder.
        announce: Told what is being done.

    Raises:
        RecipeError: ``out`` is in use, or something that the recipe names cannot be had.
        HardwareError: the disk is too small, or cannot be written to.
    """
    _refuse_used(out)
    announce(f"looking for the model `{resolved.recipe.model.path}`")
    model = find_model(resolved.recipe.model.path)
    announce("reading the datasets")
    datasets = tuple(find_datasets(resolved.recipe))
    try:
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        _require_space(out, model, datasets)
        return _write(resolved, out.absolute(), model, datasets, announce)
    except OSError as error:
        raise HardwareError(
            f"the bundle cannot be written: {error}", hint="another `--out DIR`, on another disk"
        ) from error


def _refuse_used(out: Path) -> None:
    if os.path.lexists(out) and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(
            f"`{out}` exists and is not an empty folder",
            hint="name another folder, or remove it first: a bundle is never added to",
        )


def _require_space(out: Path, model: ModelSource, datasets: Sequence[DatasetSource]) -> None:
    files = [*model.files, *(dataset.file for dataset in datasets if dataset.file)]
    needed = sum(file.stat().st_size for file in files) + _SPARE_BYTES
    for dataset in datasets:
        if dataset.file is None and not dataset.built_in:
            texts = (p.problem + p.answer + p.id for p in dataset.loaded.prompts)
            # Four bytes are the longest character of UTF-8.
            needed += sum(4 * len(text) + 64 for text in texts)
    free = shutil.disk_usage(out.absolute().parent).free
    if needed > free:
        raise HardwareError(
            f"the bundle needs {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free at `{out}`",
            hint="another `--out DIR`, on another disk",
        )


def _write(
    resolved: ResolvedRecipe,
    out: Path,
    model: ModelSource,
    datasets: Sequence[DatasetSource],
    announce: Callable[[str], None],
) -> Manifest:
    scratch = out.parent / f".{out.name}.partial-{os.getpid()}"
    scratch.mkdir()
    try:
        files = {}
        for file in model.files:
            announce(f"copying {file.name}")
            files[f"{MODEL}/{file.name}"] = _copy(file, scratch / MODEL / file.name)
        moved = {}
        for dataset in datasets:
            if not dataset.built_in:
                announce(f"writing the dataset {dataset.name}")
                moved[dataset.name] = _add_dataset(dataset, scratch, files)
        text = _recipe_text(resolved, moved, own_model=bool(model.files))
        (scratch / RECIPE).write_text(text, encoding="utf-8")
        files[RECIPE] = _record((scratch / RECIPE).read_bytes())
        manifest = _manifest(resolved, model, datasets, files)
        # The last file: without it no folder passes for a bundle.
        (scratch / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        scratch.rename(out)
        return manifest
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _add_dataset(dataset: DatasetSource, scratch: Path, files: dict[str, FileRecord]) -> str:
    """Bring one dataset into the bundle; return what the recipe calls it from now on."""
    folder = scratch / DATA
    folder.mkdir(exist_ok=True)
    if dataset.file is None:
        path = write_prompts(dataset.loaded, folder)
        for written in (path, folder / f"{dataset.name}.source.json"):
            files[f"{DATA}/{written.name}"] = _record(written.read_bytes())
        return dataset.name
    target, number = f"{DATA}/{dataset.file.name}", 1
    while target in files:
        # Two folders may hold a file of the same name; the stem stays, since ids come from it.
        number += 1
        target = f"{DATA}/{number}/{dataset.file.name}"
    files[target] = _copy(dataset.file, scratch / target)
    return f"{HERE}/{target}" if dataset.typed_path else dataset.name


def _recipe_text(resolved: ResolvedRecipe, moved: dict[str, str], *, own_model: bool) -> str:
    """Write the recipe with paths that start where its own file lies."""
    recipe = resolved.recipe
    here = Place("astraflow bundle")
    places = {path: _harmless(place) for path, place in resolved.places.items()}
    places["data.root"] = here
    data = recipe.data.model_copy(
        update={
            "root": f"{HERE}/{DATA}" if moved else None,
            "train": moved.get(recipe.data.train, recipe.data.train),
        }
    )
    names = tuple(moved.get(name, name) for name in recipe.evaluation.datasets)
    update = {
        "data": data,
        "evaluation": recipe.evaluation.model_copy(update={"datasets": names}),
    }
    if own_model:
        update["model"] = recipe.model.model_copy(update={"path": f"{HERE}/{MODEL}"})
    text = explain_values(replace(resolved, recipe=recipe.model_copy(update=update), places=places))
    if hide_secrets(text) != text:
        raise RecipeError(
            f"recipe `{resolved.name}` holds what looks like a key, and a bundle is passed around",
            hint="take it out of the recipe; keys belong into the environment",
        )
    return text


def _harmless(place: Place) -> Place:
    """Take out of a comment what is no value: an option's text, a folder named like a key."""
    file = "--set" if place.file.startswith("--set ") else hide_secrets(place.file)
    return replace(place, file=file)


def _manifest(
    resolved: ResolvedRecipe,
    model: ModelSource,
    datasets: Sequence[DatasetSource],
    files: dict[str, FileRecord],
) -> Manifest:
    origin = {"path": resolved.recipe.model.path}
    return Manifest(
        name=resolved.name,
        astraflow=__version__,
        python=platform.python_version(),
        versions=_versions(),
        model={**origin, "revision": model.revision} if model.revision else origin,
        datasets={
            dataset.name: {
                "source": dataset.loaded.source,
                "rows": len(dataset.loaded.prompts),
                "sha256": dataset.loaded.sha256,
            }
            for dataset in datasets
        },
        files=files,
    )


def _versions() -> dict[str, str]:
    found = {
        distribution.name: distribution.version
        for distribution in importlib.metadata.distributions()
        # A damaged installation leaves folders without a name behind.
        if distribution.metadata["Name"]
    }
    return dict(sorted(found.items(), key=lambda pair: pair[0].lower()))


def _copy(source: Path, target: Path) -> FileRecord:
    """Copy a file's content, following links, and hash what was written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size_bytes = hashlib.sha256(), 0
    with source.open("rb") as reading, target.open("wb") as writing:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            writing.write(chunk)
            size_bytes += len(chunk)
    return FileRecord(size_bytes=size_bytes, sha256=digest.hexdigest())


def _record(content: bytes) -> FileRecord:
    return FileRecord(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
