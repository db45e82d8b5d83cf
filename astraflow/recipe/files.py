"""Find a recipe, follow `extends`, apply `--set`, validate, write and read the resolved copy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from astraflow.errors import RecipeError
from astraflow.recipe.anchors import anchor
from astraflow.recipe.explain import explain, written_path
from astraflow.recipe.located import Located, Place, merge
from astraflow.recipe.paths import expand_path, is_file
from astraflow.recipe.reading import parse_override, read_yaml
from astraflow.recipe.schema import Recipe

__all__ = [
    "Reading",
    "ResolvedRecipe",
    "find_recipe",
    "list_recipes",
    "load_recipe",
    "read_recipe",
    "read_resolved",
    "recipe_root",
    "summary",
]

_PACKAGE = Path(__file__).resolve().parents[1]
_MAX_PARENTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedRecipe:
    """A validated recipe and where each of its values was written."""

    name: str
    """Stem of the recipe's file."""

    recipe: Recipe
    """The values."""

    places: Mapping[str, Place] = field(default_factory=dict)
    """Dotted path of each value that somebody wrote, and where; defaults are absent."""

    file: str = ""
    """The recipe's own file, as its places name it; the others are its parents'."""

    @property
    def digest(self) -> str:
        """SHA-256 of the values, in hex, the same however they were written down."""
        text = json.dumps(self.recipe.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self, **facts: object) -> str:
        """Write the resolved copy that goes into the run folder."""
        body = {
            "name": self.name,
            "hash": self.digest,
            "recipe": self.recipe.model_dump(mode="json"),
            "written_at": {path: str(place) for path, place in self.places.items()},
            **facts,
        }
        return json.dumps(body, indent=2) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What could be read of a recipe, and every problem found on the way."""

    name: str
    """Stem of the recipe's file."""

    resolved: ResolvedRecipe | None
    """The recipe; where ``problems`` is not empty, broken values stand at their defaults, so
    that the rules across sections can be checked in the same go. None when that is impossible."""

    problems: tuple[RecipeError, ...]
    """What the schema refuses."""

    dropped: tuple[str, ...] = ()
    """Dotted paths of the broken values that stand at their defaults."""


def recipe_root() -> Path:
    """
    Return the folder of shipped recipes: inside a wheel, or beside a checkout.

    Raises:
        RecipeError: neither exists, so the installation is damaged.
    """
    for folder in (_PACKAGE / "_recipes", _PACKAGE.parent / "recipes"):
        if folder.is_dir():
            return folder
    raise RecipeError(f"no shipped recipes beside `{_PACKAGE}`", hint="reinstall astraflow-rl")


def list_recipes() -> list[Path]:
    """Return the shipped recipes' files, quickstart first."""
    files = [*recipe_root().glob("*.yaml"), *recipe_root().glob("*/*.yaml")]
    return sorted(files, key=lambda path: (path.parent != recipe_root(), path.name))


def find_recipe(name_or_path: str, *, beside: Path | None = None) -> Path:
    """
    Find a recipe by path or by the stem of a shipped file.

    Args:
        name_or_path: What a person typed, or the value of ``extends``.
        beside: Folder that relative paths and bare stems are looked up in first.

    Raises:
        RecipeError: there is none; the hint names the nearest.
    """
    typed = expand_path(name_or_path)
    candidates = [typed] if typed.suffix in (".yaml", ".yml") else []
    if beside is not None:
        candidates += [beside / typed, beside / f"{name_or_path}.yaml"]
    candidates += [path for path in list_recipes() if path.stem == name_or_path]
    for candidate in candidates:
        if is_file(candidate):
            return candidate
    raise RecipeError(f"no recipe called `{name_or_path}`", hint=_near_recipes(name_or_path))


def load_recipe(
    name_or_path: str,
    overrides: Sequence[str] = (),
    *,
    recipe_type: type[Recipe] = Recipe,
) -> ResolvedRecipe:
    """
    Read and validate one recipe.

    Args:
        name_or_path: Stem of a shipped recipe, or a path.
        overrides: ``section.field=value`` each, applied last, in order.
        recipe_type: The schema, with the sections of the installed adapters.

    Raises:
        RecipeError: with every broken rule in ``problems``.
    """
    reading = read_recipe(name_or_path, overrides, recipe_type=recipe_type)
    if reading.problems or reading.resolved is None:
        raise summary(reading.name, reading.problems)
    return reading.resolved


def read_recipe(
    name_or_path: str,
    overrides: Sequence[str] = (),
    *,
    recipe_type: type[Recipe] = Recipe,
) -> Reading:
    """
    Read one recipe and gather what is wrong with it, without raising for its content.

    Raises:
        RecipeError: no such recipe, or a file of its chain is no mapping at all.
    """
    path = find_recipe(name_or_path)
    tree, problems = _read_chain(path, ())
    for override in overrides:
        try:
            tree = merge(tree, _nest(*parse_override(override)))
        except RecipeError as error:
            problems.append(error)
    recipe, dropped = _validate(tree, recipe_type, problems)
    places = {".".join(keys): place for keys, place in tree.walk() if keys}
    resolved = None
    if recipe is not None:
        resolved = ResolvedRecipe(name=path.stem, recipe=recipe, places=places, file=_shown(path))
    return Reading(
        name=path.stem, resolved=resolved, problems=tuple(problems), dropped=tuple(dropped)
    )


def summary(name: str, problems: Sequence[RecipeError]) -> RecipeError:
    """Gather broken rules into the one error that is raised, sorted by place."""
    ordered = sorted(problems, key=lambda problem: _place_key(problem.where))
    count = f"{len(ordered)} problem{'s' if len(ordered) != 1 else ''}"
    return RecipeError(
        f"recipe `{name}` has {count}",
        hint="`astraflow validate` checks a recipe without running it",
        problems=ordered,
    )


def read_resolved(path: Path, *, recipe_type: type[Recipe] = Recipe) -> ResolvedRecipe:
    """
    Read the copy that :meth:`ResolvedRecipe.to_json` wrote.

    Raises:
        RecipeError: the file is absent, damaged or from another schema.
    """
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        recipe = recipe_type.model_validate_json(json.dumps(body["recipe"]))
        return ResolvedRecipe(name=body["name"], recipe=recipe)
    except (OSError, json.JSONDecodeError, KeyError, ValidationError) as error:
        raise RecipeError(
            f"`{path}` is not a resolved recipe of this version: {error}",
            hint="start a new run from the recipe itself",
        ) from error


def _read_chain(path: Path, seen: tuple[Path, ...]) -> tuple[Located, list[RecipeError]]:
    """Read a file laid over its parents; ``seen`` are the files that lead to it."""
    tree, problems = read_yaml(path, shown_as=_shown(path))
    assert isinstance(tree.value, dict)
    anchor(tree, path.resolve().parent)
    parent = tree.value.pop("extends", None)
    if parent is None:
        return tree, problems
    chain = (*seen, path.resolve())
    parent_path = _find_parent(parent, path, chain)
    base, base_problems = _read_chain(parent_path, chain)
    return merge(base, tree), [*base_problems, *problems]


def _find_parent(parent: Located, child: Path, chain: tuple[Path, ...]) -> Path:
    where = str(parent.place)
    if not isinstance(parent.value, str):
        raise RecipeError(
            f"`extends` is {parent.plain()!r}, but it must be one recipe's name or path",
            where=where,
            hint="for example `extends: quickstart`; a chain of parents is written one a file",
        )
    try:
        found = find_recipe(parent.value, beside=child.parent)
    except RecipeError as error:
        raise RecipeError(error.what, where=where, hint=error.hint) from error
    if found.resolve() in chain:
        circle = " -> ".join(path.stem for path in (*chain, found))
        raise RecipeError(
            f"recipes extend each other in a circle: {circle}",
            where=where,
            hint="let one of them stand on its own: delete its `extends`",
        )
    if len(chain) > _MAX_PARENTS:
        raise RecipeError(
            f"more than {_MAX_PARENTS} recipes extend one another",
            where=where,
            hint="write the values of some of them into one file",
        )
    return found


def _validate(
    tree: Located, recipe_type: type[Recipe], problems: list[RecipeError]
) -> tuple[Recipe | None, list[str]]:
    """
    Validate; on findings drop what is broken and try once more, for the other rules' sake.

    Returns:
        The recipe, None where that is impossible, and the paths that were dropped.
    """
    # By way of JSON: in strict mode only JSON arrays become tuples, and no number becomes text.
    dropped: list[str] = []
    try:
        return recipe_type.model_validate_json(json.dumps(tree.plain())), dropped
    except ValidationError as error:
        problems.extend(explain(error, tree, recipe_type))
        broken = {written_path(detail, tree) for detail in error.errors()}
    for path in broken:
        _drop(tree, path)
        dropped.append(".".join(path))
    try:
        return recipe_type.model_validate_json(json.dumps(tree.plain())), dropped
    except ValidationError:
        return None, dropped  # a required value is missing or broken; what was found says so


def _drop(tree: Located, path: tuple[str, ...]) -> None:
    """Take the value at a path out of the nearest mapping: a list goes whole."""
    node, above = tree, (tree, "")
    for part in path:
        if not isinstance(node.value, dict) or part not in node.value:
            break
        above = (node, part)
        node = node.value[part]
    mapping, key = above
    if isinstance(mapping.value, dict):
        mapping.value.pop(key, None)


def _nest(path: tuple[str, ...], value: Located) -> Located:
    for key in reversed(path):
        value = Located({key: value}, value.place, {key: value.place})
    return value


def _shown(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _near_recipes(name: str) -> str:
    import difflib

    known = sorted({path.stem for path in list_recipes()})
    near = difflib.get_close_matches(Path(name).stem, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean `{near[0]}`"
    return f"shipped recipes: {', '.join(known)}; or give the path of a .yaml file"


def _place_key(where: str) -> tuple[str, int, int]:
    parts = where.rsplit(":", 2)
    if len(parts) == 3 and parts[1].isdigit() and parts[2].isdigit():
        return parts[0], int(parts[1]), int(parts[2])
    return where, 0, 0
