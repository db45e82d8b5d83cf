"""Finding: what one check found, with the cure as something that can be typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from astraflow.recipe.files import ResolvedRecipe

__all__ = ["Check", "Finding", "Subject", "Verdict", "fail", "ok", "shown_size", "skipped", "warn"]

Verdict: TypeAlias = Literal["ok", "warn", "fail", "skipped"]
"""``skipped`` was not examined, and ``found`` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    name: str
    """What was looked at."""

    verdict: Verdict
    """``fail`` means that a run would break."""

    found: str
    """Measured values with their units; for ``skipped`` the reason."""

    cure: str = ""
    """A command, an option or a setting; empty when there is nothing to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is examined."""

    recipe: ResolvedRecipe | None
    """The run that this machine is to be fit for; None looks at the machine alone."""

    offline: bool
    """True if everything must be on this machine already."""

    runs: Path
    """Where run folders are made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One entry of the list of checks."""

    name: str
    """For the finding that says that the check itself broke."""

    run: Callable[[Subject], Iterable[Finding]]
    """Yields what it finds."""

    within_s: float = 20.0
    """Time after which it counts as hung (s)."""


def ok(name: str, found: str) -> Finding:
    """Say that all is well."""
    return Finding(name=name, verdict="ok", found=found)


def warn(name: str, found: str, cure: str) -> Finding:
    """Say what a run survives, but a person should know."""
    return Finding(name=name, verdict="warn", found=found, cure=cure)


def fail(name: str, found: str, cure: str) -> Finding:
    """Say what would break a run."""
    return Finding(name=name, verdict="fail", found=found, cure=cure)


def skipped(name: str, because: str, cure: str = "") -> Finding:
    """Say why nothing was examined."""
    return Finding(name=name, verdict="skipped", found=because, cure=cure)


def shown_size(size_bytes: float) -> str:
    """Write a size in the unit that suits it, such as ``1.5 GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes:.0f} bytes"
