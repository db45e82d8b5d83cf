"""`{here}` in a recipe's paths: the folder of the file that it is written in."""

from __future__ import annotations

from pathlib import Path

from astraflow.recipe.located import Located

__all__ = ["HERE", "anchor"]

HERE = "{here}"
"""Stands for the folder of the recipe's own file, so that both can be moved together."""

_PATHS = (("model", "path"), ("data", "root"), ("data", "train"), ("evaluation", "datasets"))


def anchor(tree: Located, folder: Path) -> None:
    """Put a folder in the place of `{here}`, in the fields that are paths and in no other."""
    for section, name in _PATHS:
        node = _below(_below(tree, section), name)
        for item in node.value if node and isinstance(node.value, list) else [node]:
            if item is not None and isinstance(item.value, str):
                item.value = _replace(item.value, folder)


def _below(node: Located | None, key: str) -> Located | None:
    return node.value.get(key) if node is not None and isinstance(node.value, dict) else None


def _replace(text: str, folder: Path) -> str:
    if text == HERE or text.startswith(f"{HERE}/"):
        return f"{folder}{text.removeprefix(HERE)}"
    return text
