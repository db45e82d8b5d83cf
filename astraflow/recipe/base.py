"""RecipeModel: frozen, closed to unknown keys, described by the strings under its fields."""

from pydantic import BaseModel, ConfigDict

__all__ = ["RecipeModel"]


class RecipeModel(BaseModel):
    """Base of every recipe section; the string under a field is its documentation."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        validate_default=True,
    )
