"""Paths that people typed: asking for them never raises, whatever they hold."""

from __future__ import annotations

from pathlib import Path

__all__ = ["expand_path", "is_file", "is_folder"]


def expand_path(typed: str) -> Path:
    """Return the path with its `~` as a folder; as it is when there is no such user."""
    try:
        return Path(typed).expanduser()
    except RuntimeError:
        return Path(typed)


def is_file(path: Path) -> bool:
    """Tell whether a file is there; no for a path too long or with a character that none has."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Tell whether a folder is there; no for a path too long or with a character that none has."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
