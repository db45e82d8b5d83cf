"""RecipeModel: frozen, closed to unknown keys, described by the strings under its fields."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Count", "Positive", "RecipeModel", "Seconds"]

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=604800)]  # a week


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
