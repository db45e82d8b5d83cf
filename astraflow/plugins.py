"""Find adapters, workflows and rewards by entry point; refuse two with one name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Literal, TypeVar

from pydantic import create_model
from pydantic.fields import FieldInfo

from astraflow.errors import PluginError
from astraflow.recipe.base import RecipeModel
from astraflow.recipe.schema import Recipe, RolloutSection, TrainerSection

__all__ = [
    "Kind",
    "Plugin",
    "adapter_settings",
    "build_plugin",
    "installed",
    "load_plugin",
    "recipe_type",
]

Kind = Literal["inference_backends", "trainer_backends", "workflows", "rewards"]
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Plugin(Generic[T_co]):
    """What an entry point names: light to import, heavy only when built."""

    name: str
    """The word a recipe uses."""

    settings: type[RecipeModel]
    """Model of the adapter's own section in the recipe."""

    build: Callable[..., T_co]
    """Make the adapter from its context record; heavy imports happen in here."""

    extra: str = ""
    """The extra of astraflow-rl that brings the adapter's libraries."""

    needs: tuple[str, ...] = ()
    """Modules that ``build`` imports; a run is refused before it starts when one is absent."""

    refuses: Callable[[Any], str] | None = None
    """Given the whole recipe, says why the adapter cannot run it; empty when it can."""

    export: Callable[..., None] | None = None
    """Trainer adapters: ``(saved folder, out folder, *, model_path, dtype)`` writes the weights
    in Hugging Face format."""

    unavailable: str = ""
    """Why the adapter cannot run anything yet; empty when it can."""


@cache
def installed(kind: Kind) -> dict[str, EntryPoint]:
    """
    List plug-ins by name, without importing any.

    Raises:
        PluginError: two distributions offer one name.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=f"astraflow.{kind}"), key=lambda p: p.value):
        if point.name in found and point.value != found[point.name].value:
            raise PluginError(
                f"two {kind} are called `{point.name}`: "
                f"`{found[point.name].value}` and `{point.value}`",
                hint="uninstall one of them",
            )
        found[point.name] = point
    return found


def load_plugin(kind: Kind, name: str) -> Plugin[Any]:
    """
    Import one plug-in's record.

    Raises:
        PluginError: there is none of that name, it does not import, or it is not a Plugin.
    """
    known = installed(kind)
    if name not in known:
        raise PluginError(
            f"no {kind} called `{name}`",
            hint=f"installed: {', '.join(sorted(known)) or 'none'}",
        )
    try:
        plugin = known[name].load()
    except (ImportError, AttributeError) as error:
        raise PluginError(
            f"`{known[name].value}`, named by the entry point `{name}`, does not import: {error}",
            hint="reinstall the package that offers it, or fix its import",
        ) from error
    if not isinstance(plugin, Plugin):
        raise PluginError(f"`{known[name].value}` is a {type(plugin).__name__}, not a Plugin")
    return plugin


def build_plugin(plugin: Plugin[T_co], *args: object, **kwargs: object) -> T_co:
    """
    Call ``plugin.build`` and turn a missing library into the command that installs it.

    Raises:
        PluginError: a library of the adapter's extra is absent.
    """
    try:
        return plugin.build(*args, **kwargs)
    except ModuleNotFoundError as error:
        extra = f"[{plugin.extra}]" if plugin.extra else ""
        raise PluginError(
            f"`{plugin.name}` needs the module `{error.name}`, which is not installed",
            hint=f"`pip install 'astraflow-rl{extra}'`",
        ) from error


@cache
def recipe_type() -> type[Recipe]:
    """
    Return the recipe schema with one optional section for each installed adapter.

    `rollout.NAME` and `trainer.NAME` hold the settings of the adapter `NAME`.
    """
    rollout = _with_sections(RolloutSection, "inference_backends")
    trainer = _with_sections(TrainerSection, "trainer_backends")
    return create_model(
        "Recipe",
        __base__=Recipe,
        __doc__=Recipe.__doc__,
        rollout=(rollout, FieldInfo(description=Recipe.model_fields["rollout"].description)),
        trainer=(trainer, FieldInfo(description=Recipe.model_fields["trainer"].description)),
    )


def adapter_settings(section: RolloutSection | TrainerSection, plugin: Plugin[Any]) -> Any:
    """Return the adapter's own settings from a section, its defaults when none are written."""
    written = getattr(section, plugin.name, None)
    return plugin.settings() if written is None else written


def _with_sections(section: type[RecipeModel], kind: Kind) -> type[RecipeModel]:
    fields: dict[str, Any] = {
        name: (
            load_plugin(kind, name).settings | None,
            FieldInfo(default=None, description=f"Settings of the `{name}` adapter."),
        )
        for name in installed(kind)
    }
    model: type[RecipeModel] = create_model(
        section.__name__, __base__=section, __doc__=section.__doc__, **fields
    )
    return model
