"""What a recipe reads: checkpoint, tokenizer, datasets; whole, readable, and on this machine."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from astraflow.data import load_prompts
from astraflow.data.chat import load_tokenizer
from astraflow.doctor.finding import Finding, Subject, fail, ok, shown_size, skipped, warn
from astraflow.recipe.model_folder import folder_problem
from astraflow.recipe.models import local_path
from astraflow.recipe.schema import ColumnsSection, Recipe

__all__ = ["examine_datasets", "examine_model", "examine_tokenizer"]

_AGAIN = "download the checkpoint again, whole: `hf download {path} --local-dir DIR`"
_GATED = ("meta-llama/", "google/gemma", "mistralai/")
_LENGTH_BYTES = 8
_LONGEST_HEADER_BYTES = 100 * 2**20


def examine_model(subject: Subject) -> Iterator[Finding]:
    """Read the header of every weight file and hold it against the file's length."""
    recipe = _recipe(subject)
    if recipe is None:
        yield skipped("model", "no recipe was named", "`astraflow doctor RECIPE`")
        return
    path = recipe.model.path
    folder = Path(local_path(path)).expanduser()
    if not folder.is_dir():
        yield _on_hub(path, offline=subject.offline)
        return
    what, hint = folder_problem(path)
    if what:
        yield fail("model", what, hint)
        return
    yield _weights(path, folder)


def examine_tokenizer(subject: Subject) -> Iterator[Finding]:
    """Load the tokenizer and render one prompt's text."""
    recipe = _recipe(subject)
    if recipe is None:
        yield skipped("tokenizer", "no recipe was named", "`astraflow doctor RECIPE`")
        return
    path = local_path(recipe.model.path)
    if not Path(path).expanduser().is_dir() and not subject.offline:
        yield skipped("tokenizer", f"`{path}` is on a hub", "`--offline` looks into the cache")
        return
    what, hint = folder_problem(path) if Path(path).expanduser().is_dir() else ("", "")
    if what:
        yield fail("tokenizer", what, hint)
        return
    tokenizer = load_tokenizer(path)
    if recipe.workflow.chat and not getattr(tokenizer, "chat_template", None):
        cure = "name the -Instruct sibling, or `--set workflow.chat=false`"
        yield fail("tokenizer", "it has no chat template", cure)
        return
    template = "with a chat template" if recipe.workflow.chat else "asked in plain text"
    yield ok("tokenizer", f"loads, {template}")


def examine_datasets(subject: Subject) -> Iterator[Finding]:
    """Load every dataset that the run will load, and count."""
    recipe = _recipe(subject)
    if recipe is None:
        yield skipped("datasets", "no recipe was named", "`astraflow doctor RECIPE`")
        return
    root = Path(recipe.data.root) if recipe.data.root else None
    for name in dict.fromkeys((recipe.data.train, *recipe.evaluation.datasets)):
        columns = recipe.data.columns if name == recipe.data.train else ColumnsSection()
        loaded = load_prompts(name, root=root, columns=columns)
        dropped = sum(loaded.dropped.values())
        found = f"{len(loaded.prompts)} problems from {loaded.source}, {dropped} left out"
        if loaded.prompts:
            yield ok(f"dataset {name}", found)
        else:
            yield fail(f"dataset {name}", found, f"`astraflow data check {name}` says why")


def _recipe(subject: Subject) -> Recipe | None:
    return subject.recipe.recipe if subject.recipe is not None else None


def _on_hub(path: str, *, offline: bool) -> Finding:
    from huggingface_hub import try_to_load_from_cache

    if isinstance(try_to_load_from_cache(path, "config.json"), str):
        return ok("model", f"`{path}` is in the hub's cache")
    cure = f"`hf download {path}` on a machine with network, then carry the folder"
    if offline:
        return fail("model", f"`{path}` is neither a folder nor in the hub's cache", cure)
    if path.startswith(_GATED) and not os.environ.get("HF_TOKEN"):
        found = f"`{path}` is gated, and HF_TOKEN is not set"
        return warn("model", found, "accept its licence on the hub, then `export HF_TOKEN=...`")
    return skipped("model", f"`{path}` is fetched from the hub when the run starts")


def _weights(path: str, folder: Path) -> Finding:
    """Read the weight files' headers; a cut or damaged file has another length than it says."""
    again = _AGAIN.format(path=path)
    index = folder / "model.safetensors.index.json"
    files = sorted(folder.glob("*.safetensors"))
    if index.is_file():
        try:
            named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            return fail("model", f"`{index.name}` cannot be read: {error!r}", again)
        missing = sorted(named - {file.name for file in files})
        if missing:
            return fail("model", f"the index names `{missing[0]}`, which is not there", again)
    for file in files:
        why = _header_problem(file)
        if why:
            return fail("model", f"`{file}` {why}", again)
    size = sum(file.stat().st_size for file in files)
    return ok("model", f"{len(files)} weight file(s), {shown_size(size)}, headers and lengths fit")


def _header_problem(file: Path) -> str:
    size = file.stat().st_size
    with file.open("rb") as opened:
        head = opened.read(_LENGTH_BYTES)
        length = struct.unpack("<Q", head)[0] if len(head) == _LENGTH_BYTES else size
        if length > min(size - _LENGTH_BYTES, _LONGEST_HEADER_BYTES):
            return "is cut short or no safetensors file"
        try:
            header = json.loads(opened.read(length))
            ends = [t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            return f"has a damaged header: {type(error).__name__}"
    wanted = _LENGTH_BYTES + length + max(ends, default=0)
    if wanted != size:
        return f"has {size} bytes, and its header describes {wanted}"
    return ""
