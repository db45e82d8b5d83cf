"""Where a recipe's model and datasets are now: local files, or what a hub has to give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from astraflow.data import PromptSet, load_prompts
from astraflow.data.load import find_file
from astraflow.errors import RecipeError
from astraflow.recipe.model_folder import folder_problem
from astraflow.recipe.models import local_path
from astraflow.recipe.paths import expand_path, is_folder
from astraflow.recipe.schema import ColumnsSection, Recipe

__all__ = ["DatasetSource", "ModelSource", "find_datasets", "find_model"]

# Weights as safetensors, configuration, tokenizer, licence; no pickle, no optimizer, no second
# copy of the weights in a folder below.
_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "LICENSE*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """The files of a model."""

    files: tuple[Path, ...]
    """All in one folder; none for a model that ships with the package."""

    revision: str = ""
    """The hub's commit; empty for a local folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """One dataset of a recipe."""

    name: str
    """As the recipe names it."""

    loaded: PromptSet
    """What a run would read of it."""

    file: Path | None
    """Its local file; None where it is built in or comes from a hub."""

    @property
    def built_in(self) -> bool:
        """True if it ships with the package."""
        return self.loaded.source == "built in"

    @property
    def typed_path(self) -> bool:
        """True if the recipe names a file and not a known set."""
        return self.file is not None and self.file == Path(self.name).expanduser()


def find_model(path: str) -> ModelSource:
    """
    Find a model's files; a hub id is downloaded into the hub's cache.

    Raises:
        RecipeError: it cannot be had, or is no whole model with safetensors.
    """
    if local_path(path) != path:
        return ModelSource(files=())
    folder, revision = expand_path(path), ""
    if not is_folder(folder):
        folder = _download(path)
        revision = folder.name
    what, hint = folder_problem(str(folder))
    if what:
        raise RecipeError(what, hint=hint)
    files = tuple(
        file
        for file in sorted(folder.iterdir())
        if file.is_file() and any(fnmatch(file.name, pattern) for pattern in _PATTERNS)
    )
    if not any(file.suffix == ".safetensors" for file in files):
        raise RecipeError(
            f"`{path}` has no weights as *.safetensors, and a bundle carries no pickle",
            hint="save the model with `save_pretrained(..., safe_serialization=True)` first",
        )
    return ModelSource(files=files, revision=revision)


def find_datasets(recipe: Recipe) -> Iterator[DatasetSource]:
    """
    Load every dataset that a run would load.

    Raises:
        DataError: one is absent or cannot be used.
    """
    root = Path(recipe.data.root) if recipe.data.root else None
    for name in dict.fromkeys((recipe.data.train, *recipe.evaluation.datasets)):
        columns = recipe.data.columns if name == recipe.data.train else ColumnsSection()
        loaded = load_prompts(name, root=root, columns=columns)
        file = None if loaded.source == "built in" else find_file(name, root=root)
        yield DatasetSource(name=name, loaded=loaded, file=file)


def _download(path: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(path, allow_patterns=list(_PATTERNS), ignore_patterns=["*/*"])
    except (OSError, ValueError) as error:
        # What the hub's library raises over a network is an OSError, over a name a ValueError.
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise RecipeError(
            f"the model `{path}` cannot be had from the hub: {reason}",
            hint="make the bundle on a machine with network and without HF_HUB_OFFLINE; a gated "
            "model needs `hf auth login`",
        ) from error
    return Path(folder)
