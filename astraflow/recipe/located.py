"""Values that remember where they were written, so that an error can say so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Located", "Place", "Scalar", "merge"]

Scalar: TypeAlias = "str | int | float | bool | None"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value was written: a file with line and column, or a `--set` option."""

    file: str
    """Path as a person would type it, or the whole `--set` option."""

    line: int = 0
    """From 1; 0 for an option of the command line."""

    column: int = 0
    """From 1; 0 for an option of the command line."""

    def __str__(self) -> str:
        """Write it as editors and terminals link it."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(slots=True)
class Located:
    """A YAML value, the place it was written at, and the places of its keys."""

    value: dict[str, Located] | list[Located] | Scalar
    place: Place
    key_places: dict[str, Place] = field(default_factory=dict)

    def plain(self) -> object:
        """Return the value without its places."""
        if isinstance(self.value, dict):
            return {key: item.plain() for key, item in self.value.items()}
        if isinstance(self.value, list):
            return [item.plain() for item in self.value]
        return self.value

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Place]]:
        """Yield the path and place of each value below, mappings included."""
        yield path, self.place
        if isinstance(self.value, dict):
            for key, item in self.value.items():
                yield from item.walk((*path, key))
        elif isinstance(self.value, list):
            for index, item in enumerate(self.value):
                yield from item.walk((*path, str(index)))


def merge(parent: Located, child: Located) -> Located:
    """Lay a child over its parent: mappings merge key by key, anything else is replaced."""
    if not isinstance(parent.value, dict) or not isinstance(child.value, dict):
        return child
    merged = dict(parent.value)
    for key, item in child.value.items():
        merged[key] = merge(merged[key], item) if key in merged else item
    return Located(merged, child.place, {**parent.key_places, **child.key_places})
