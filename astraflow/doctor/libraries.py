"""Installed versions against what our own metadata asks for, and the adapters' libraries."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator

from packaging.requirements import Requirement

from astraflow.doctor.finding import Finding, Subject, fail, ok, skipped, warn
from astraflow.errors import PluginError
from astraflow.plugins import Kind, Plugin, installed, load_plugin
from astraflow.recipe.schema import Recipe

__all__ = ["examine_adapters", "examine_antlr", "examine_libraries"]

_US = "astraflow-rl"
_ANTLR = "antlr4-python3-runtime"
# math-verify's declared range is wider; the versions between raise at import.
_USABLE_ANTLR = ("4.9.3", "4.11.0", "4.13.2")
_ALWAYS_NEEDED = ("", "train")
_KINDS: tuple[Kind, ...] = ("inference_backends", "trainer_backends", "workflows", "rewards")


def examine_libraries(subject: Subject) -> Iterator[Finding]:
    """Compare versions extra by extra; what the recipe needs must be there and right."""
    by_extra: dict[str, list[Requirement]] = {}
    for text in importlib.metadata.requires(_US) or []:
        requirement = Requirement(text)
        if requirement.name != _US:
            by_extra.setdefault(_extra_of(requirement), []).append(requirement)
    needed = {*_ALWAYS_NEEDED, *_extras_of(subject)}
    for extra, wanted in by_extra.items():
        yield _compare(extra, wanted, needed=extra in needed)


def examine_antlr(subject: Subject) -> Iterator[Finding]:
    """Look at the one library whose declared range holds versions that do not import."""
    version = _version(_ANTLR)
    if version is None:
        return  # already said by the libraries
    if version in _USABLE_ANTLR:
        yield ok("antlr runtime", version)
        return
    found = f"{version}, and math-verify imports only with {', '.join(_USABLE_ANTLR)}"
    yield fail("antlr runtime", found, f"`pip install {_ANTLR}=={_USABLE_ANTLR[-1]}`")


def examine_adapters(subject: Subject) -> Iterator[Finding]:
    """Load each plug-in's record and look for the libraries that it will import."""
    recipe = subject.recipe.recipe if subject.recipe else None
    for kind in _KINDS:
        for name in installed(kind):
            label = f"{kind.removesuffix('s').replace('_', ' ')} {name}"
            try:
                plugin = load_plugin(kind, name)
            except PluginError as error:
                yield fail(label, error.what, error.hint)
                continue
            yield _adapter(label, plugin, needed=_names(recipe, kind, name))


def _adapter(label: str, plugin: Plugin[object], *, needed: bool) -> Finding:
    absent = [module for module in plugin.needs if importlib.util.find_spec(module) is None]
    if not absent and not plugin.unavailable:
        return ok(label, "its libraries are there")
    found = plugin.unavailable or f"no {', '.join(absent)}"
    other = "name another adapter in the recipe, or try it with `--smoke`"
    cure = other if plugin.unavailable else f"`pip install '{_US}[{plugin.extra}]'`"
    return fail(label, found, cure) if needed else skipped(label, found, cure)


def _compare(extra: str, wanted: list[Requirement], *, needed: bool) -> Finding:
    label = f"libraries [{extra}]" if extra else "libraries"
    missing: list[str] = []
    wrong: list[tuple[Requirement, str]] = []
    for requirement in wanted:
        version = _version(requirement.name)
        if version is None:
            missing.append(requirement.name)
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append((requirement, version))
    if not missing and not wrong:
        return ok(label, f"{len(wanted)} requirements met")
    there = [f"{item.name} is {version}, wanted {item.specifier}" for item, version in wrong]
    found = "; ".join([*(f"no {name}" for name in missing), *there])
    exact = " ".join(f"'{item.name}{item.specifier}'" for item, _ in wrong)
    whole = f"'{_US}[{extra}]'" if extra else f"'{_US}'"
    cure = f"`pip install {whole if missing else exact}`"
    if needed:
        return fail(label, found, cure)
    return skipped(label, f"not installed: {found}", cure) if missing else warn(label, found, cure)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _extras_of(subject: Subject) -> set[str]:
    """Return the extras that bring the adapters of the recipe."""
    recipe = subject.recipe.recipe if subject.recipe else None
    named = [(k, n) for k in _KINDS for n in installed(k) if _names(recipe, k, n)]
    return {load_plugin(kind, name).extra for kind, name in named}


def _names(recipe: Recipe | None, kind: Kind, name: str) -> bool:
    if recipe is None:
        return False
    chosen = {
        "inference_backends": recipe.rollout.backend,
        "trainer_backends": recipe.trainer.backend,
        "workflows": recipe.workflow.name,
        "rewards": recipe.workflow.reward,
    }
    return chosen[kind] == name


def _extra_of(requirement: Requirement) -> str:
    marker = str(requirement.marker or "")
    return marker.split("==")[1].strip().strip("\"'") if "extra" in marker else ""
