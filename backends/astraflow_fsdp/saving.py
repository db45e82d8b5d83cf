"""
Save and restore on any number of ranks, without pickle.

    rank-00000-of-00002.safetensors   flat pieces: NAME|weight, NAME|exp_avg, NAME|exp_avg_sq
    rank-00000-of-00002.json          version, updates, and each parameter's shape, first, count
    rank-00000-of-00002.rng           generator state as safetensors

A rank reads the pieces that overlap its own range, whoever wrote them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from astraflow.errors import AstraFlowError
from astraflow_fsdp.shards import local_range, local_values

__all__ = ["read_index", "restore", "save", "stored_pieces"]

_MOMENTS = ("exp_avg", "exp_avg_sq")


def save(
    folder: Path,
    parameters: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    rank: int,
    ranks: int,
    version: int,
    updates: int,
) -> None:
    """Write this rank's part."""
    stem = f"rank-{rank:05d}-of-{ranks:05d}"
    tensors: dict[str, Tensor] = {}
    index: dict[str, Any] = {}
    for name, parameter in parameters.items():
        first, count = local_range(parameter)
        index[name] = {"shape": list(parameter.shape), "first": first, "count": count}
        if not count:
            continue
        tensors[f"{name}|weight"] = _flat(parameter)
        state = optimizer.state.get(parameter, {})
        for moment in _MOMENTS:
            if moment in state:
                tensors[f"{name}|{moment}"] = _flat(state[moment])
    save_file(tensors, folder / f"{stem}.safetensors")
    save_file(_rng_state(), folder / f"{stem}.rng")
    body = {"version": version, "updates": updates, "parameters": index}
    (folder / f"{stem}.json").write_text(json.dumps(body))


def restore(
    folder: Path,
    parameters: dict[str, Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    rank: int,
    ranks: int,
) -> tuple[int, int]:
    """
    Read this rank's part; return the version and the optimizer steps taken.

    Raises:
        AstraFlowError: the checkpoint is of another model or incomplete.
    """
    indices = list(read_index(folder))
    for name, parameter in parameters.items():
        stored = indices[0][1]["parameters"].get(name)
        if stored is None or tuple(stored["shape"]) != tuple(parameter.shape):
            raise AstraFlowError(
                f"the checkpoint has no `{name}` of shape {list(parameter.shape)}",
                hint="it belongs to another model; start a new run",
            )
    for path, index in indices:
        with safe_open(path, framework="pt") as file:
            keys = set(file.keys())
            for name, parameter in parameters.items():
                _copy_overlap(file, keys, name, parameter, index["parameters"][name], optimizer)
    same = folder / f"rank-{rank:05d}-of-{ranks:05d}.rng"
    if same.is_file():
        _restore_rng(load_file(same))
    body = indices[0][1]
    for parameter in parameters.values():
        state = optimizer.state.get(parameter)
        if state:
            state["step"] = torch.tensor(float(body["updates"]))
    return int(body["version"]), int(body["updates"])


def read_index(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """
    Yield each rank's tensor file with its index.

    Raises:
        AstraFlowError: there is none.
    """
    paths = sorted(folder.glob("rank-*.json"))
    if not paths:
        raise AstraFlowError(f"`{folder}` holds no checkpoint of the fsdp trainer")
    for path in paths:
        yield path.with_suffix(".safetensors"), json.loads(path.read_text())


def stored_pieces(folder: Path, name: str) -> Iterator[tuple[int, Tensor]]:
    """Yield the first flat index and the values of each stored piece of one parameter's weights."""
    for path, index in read_index(folder):
        piece = index["parameters"][name]
        if piece["count"]:
            with safe_open(path, framework="pt") as file:
                yield piece["first"], file.get_tensor(f"{name}|weight")


def _copy_overlap(
    file: Any,
    keys: set[str],
    name: str,
    parameter: Tensor,
    piece: dict[str, Any],
    optimizer: torch.optim.Optimizer,
) -> None:
    first, count = local_range(parameter)
    begin = max(first, piece["first"])
    end = min(first + count, piece["first"] + piece["count"])
    if begin >= end:
        return
    source = slice(begin - piece["first"], end - piece["first"])
    target = slice(begin - first, end - first)
    with torch.no_grad():
        weight = file.get_slice(f"{name}|weight")[source]
        local_values(parameter).view(-1)[target] = weight.to(parameter.device)
        for moment in _MOMENTS:
            if f"{name}|{moment}" not in keys:
                continue
            state = optimizer.state[parameter]
            if moment not in state:
                state[moment] = torch.zeros_like(parameter)
            values = file.get_slice(f"{name}|{moment}")[source]
            local_values(state[moment]).view(-1)[target] = values.to(parameter.device)


def _flat(parameter: Tensor) -> Tensor:
    return local_values(parameter).detach().reshape(-1).cpu().contiguous()


def _rng_state() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_rng(states: dict[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
