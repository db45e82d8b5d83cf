"""`bundle.json`: what a bundle holds, file by file, and what of it no longer agrees."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from astraflow.errors import DataError

__all__ = [
    "CHUNK_BYTES",
    "DATA",
    "MANIFEST",
    "MODEL",
    "RECIPE",
    "Fault",
    "FileRecord",
    "Manifest",
    "find_faults",
    "read_manifest",
]

MANIFEST = "bundle.json"
RECIPE = "recipe.yaml"
MODEL = "model"
DATA = "data"
CHUNK_BYTES = 8 * 2**20
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """One file as it was when the bundle was made."""

    size_bytes: int
    """Its length."""

    sha256: str
    """Hash of its content, in hex."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a bundle holds."""

    name: str
    """The recipe's stem."""

    astraflow: str
    """Version that made the bundle."""

    python: str
    """Version that made the bundle."""

    versions: Mapping[str, str]
    """Every package that was installed there, by name."""

    model: Mapping[str, str]
    """``path`` as the recipe named it; ``revision`` is the hub's commit, where there is one."""

    datasets: Mapping[str, Mapping[str, Any]]
    """For each name in the recipe: ``source``, ``rows`` (count) and ``sha256`` of the prompts."""

    files: Mapping[str, FileRecord]
    """By path below the bundle; all but bundle.json itself."""

    @property
    def size_bytes(self) -> int:
        """Length of all files together."""
        return sum(record.size_bytes for record in self.files.values())

    def to_json(self) -> str:
        """Write the manifest."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A file that is not as the manifest says."""

    path: str
    """Below the bundle."""

    kind: Literal["missing", "damaged", "extra"]
    """``extra`` is in the bundle's folders and not in its list, so it would be read as well."""

    what: str
    """A clause that goes on from the file's name."""


def read_manifest(folder: Path) -> Manifest:
    """
    Read a bundle's list.

    Raises:
        DataError: it is absent, damaged or of another format.
    """
    path = folder / MANIFEST
    again = "carry the bundle over again, whole, or make it again with `astraflow bundle`"
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        number = body.pop("format")
        if number != _FORMAT:
            raise DataError(
                f"`{path}` has format {number!r}, and this version reads {_FORMAT}",
                hint="make the bundle with the version of AstraFlow that is installed here",
            )
        files = {name: FileRecord(**record) for name, record in body.pop("files").items()}
        return Manifest(**body, files=files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"`{path}` cannot be read: {error!r}", hint=again) from error


def find_faults(folder: Path, manifest: Manifest) -> Iterator[Fault]:
    """Hold every file against its size and hash; look for files that are not listed."""
    for name, record in manifest.files.items():
        what = _difference(folder / name, record)
        if what:
            missing = not (folder / name).is_file()
            yield Fault(path=name, kind="missing" if missing else "damaged", what=what)
    # Run folders and recipes of one's own may lie beside these two; inside they would be loaded.
    for part in (MODEL, DATA):
        for path in sorted((folder / part).rglob("*")):
            name = path.relative_to(folder).as_posix()
            if not path.is_dir() and name not in manifest.files:
                yield Fault(path=name, kind="extra", what=f"is not listed in {MANIFEST}")


def _difference(path: Path, record: FileRecord) -> str:
    if not path.is_file():
        return "is missing"
    try:
        size = path.stat().st_size
        if size != record.size_bytes:
            return f"has {size} bytes, and had {record.size_bytes}"
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if digest.hexdigest() != record.sha256:
        return f"has the hash {digest.hexdigest()[:16]}..., and had {record.sha256[:16]}..."
    return ""
