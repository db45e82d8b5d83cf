"""A bundle's files against the hashes that were taken when it was made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from astraflow import __version__
from astraflow.bundling import MANIFEST, Fault, find_faults, read_manifest
from astraflow.doctor.finding import Finding, Subject, fail, ok, shown_size, skipped, warn
from astraflow.recipe.files import ResolvedRecipe

__all__ = ["BUNDLE_S", "examine_bundle"]

BUNDLE_S = 3600.0
"""Time for all hashes (s): 500 GB at 150 MB/s, what a slow shared disk gives."""

_CURES = {
    "missing": "copy `{path}` again from where the bundle was made",
    "damaged": "copy `{path}` again from where the bundle was made",
    "extra": "remove it: `rm '{path}'`",
}
_EDITED = "copy it again; change values with `--set`, or in a recipe that `extends` this one"


def examine_bundle(subject: Subject) -> Iterator[Finding]:
    """Read every file of the bundle that the recipe comes from, and name those that differ."""
    if subject.recipe is None or not subject.offline:
        return  # hashing a large model takes minutes; online nothing needs the proof
    folders = _bundles(subject.recipe)
    if not folders:
        because = f"no {MANIFEST} beside the recipe, so there are no hashes to compare"
        yield skipped("bundle", because, "`astraflow bundle RECIPE --out DIR` makes one")
    for folder in folders:
        yield from _verify(folder)


def _bundles(resolved: ResolvedRecipe) -> list[Path]:
    """Find the bundles among the folders of the recipe and of those that it extends."""
    files = dict.fromkeys([resolved.file, *(place.file for place in resolved.places.values())])
    folders = dict.fromkeys(Path(file).parent for file in files if not file.startswith("--set "))
    return [folder for folder in folders if (folder / MANIFEST).is_file()]


def _verify(folder: Path) -> Iterator[Finding]:
    manifest = read_manifest(folder)
    faults = list(find_faults(folder, manifest))
    for fault in faults:
        yield fail("bundle", f"`{folder / fault.path}` {fault.what}", _cure(folder, fault))
    if not faults:
        size = shown_size(manifest.size_bytes)
        yield ok("bundle", f"{len(manifest.files)} files, {size}, every hash agrees")
    if manifest.astraflow != __version__:
        found = f"made with AstraFlow {manifest.astraflow}, and this is {__version__}"
        yield warn("bundle", found, f"`pip install astraflow-rl=={manifest.astraflow}`")


def _cure(folder: Path, fault: Fault) -> str:
    if fault.kind == "damaged" and fault.path.endswith(".yaml"):
        return _EDITED
    return _CURES[fault.kind].format(path=folder / fault.path)
