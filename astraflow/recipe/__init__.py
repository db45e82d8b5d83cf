"""What a run is, written down: schema, files, rules."""

from astraflow.recipe.files import (
    ResolvedRecipe,
    find_recipe,
    list_recipes,
    load_recipe,
    read_resolved,
)
from astraflow.recipe.schema import Recipe

__all__ = [
    "Recipe",
    "ResolvedRecipe",
    "find_recipe",
    "list_recipes",
    "load_recipe",
    "read_resolved",
]
