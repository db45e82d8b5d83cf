"""`--settings JSON`: an adapter's settings on the command line."""

from __future__ import annotations

import json
from typing import Any

from astraflow.errors import RecipeError

__all__ = ["parse_settings"]


def parse_settings(text: str) -> dict[str, Any]:
    """
    Parse an adapter's settings; the adapter itself checks their names and values.

    Raises:
        RecipeError: the text is no JSON object.
    """
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecipeError(
            f"`--settings` is no JSON: {error}", hint='like `{"mem_fraction_static": 0.4}`'
        ) from error
    if not isinstance(settings, dict):
        raise RecipeError(
            f"`--settings` is {text[:80]}, and it must be an object",
            hint='like `{"mem_fraction_static": 0.4}`',
        )
    return settings
