"""Export: a checkpoint of this trainer as a folder in Hugging Face format; needs no ranks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from astraflow.learning.policy import checkpoint_folder, stored_tensors
from astraflow_fsdp.checkpoint import SavedPiece, read_index

__all__ = ["export"]

# What the hub and every loader are used to; also bounds the memory that an export takes.
_FILE_BYTES = 4 << 30


def export(
    folder: Path, out: Path, *, model_path: str, dtype: str, file_bytes: int = _FILE_BYTES
) -> None:
    """
    Write the trained weights beside the starting checkpoint's configuration and tokenizer.

    Tensors that were not trained, such as a vision tower, are copied from the start.

    Args:
        folder: What :meth:`TrainerBackend.save` wrote.
        out: New folder.
        model_path: The starting checkpoint.
        dtype: ``bfloat16`` or ``float32``; tensors that the start keeps in float32 stay so.
        file_bytes: Largest size of one file of weights.

    Raises:
        RecipeError: either checkpoint is absent or incomplete.
    """
    start = checkpoint_folder(model_path)
    _, _, trained = read_index(folder)
    out.mkdir(parents=True, exist_ok=True)
    _copy_companions(start, out, dtype)
    writer = _Writer(out, file_bytes)
    for name, tensor in _tensors(start, trained, getattr(torch, dtype)):
        writer.add(name, tensor)
    writer.finish()


def _tensors(
    start: Path, trained: dict[str, list[SavedPiece]], dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    stored = stored_tensors(start)
    narrower = any(kind in ("BF16", "F16") for _, kind in stored.values())
    for name in sorted({*stored, *trained}):
        keeps_float32 = narrower and name in stored and stored[name][1] == "F32"
        if name in trained:
            whole = _assemble(trained[name])
            yield name, whole.to(torch.float32 if keeps_float32 else dtype)
        else:
            with safe_open(stored[name][0], framework="pt") as tensors:
                yield name, tensors.get_tensor(name)


def _assemble(pieces: Sequence[SavedPiece]) -> Tensor:
    parts = []
    for piece in pieces:
        with safe_open(piece.file, framework="pt") as tensors:
            parts.append(tensors.get_tensor(f"weights.{piece.key}"))
    return torch.cat(parts).reshape(pieces[0].shape)


def _copy_companions(start: Path, out: Path, dtype: str) -> None:
    """Copy configuration, tokenizer and template; note the type of the new weights."""
    for path in start.iterdir():
        wanted = path.suffix in (".json", ".jinja", ".txt", ".model")
        if wanted and path.is_file() and path.name != "model.safetensors.index.json":
            shutil.copyfile(path, out / path.name)
    config = json.loads((start / "config.json").read_text(encoding="utf-8"))
    for section in (config, config.get("text_config", {})):
        for key in ("dtype", "torch_dtype"):
            if key in section:
                section[key] = dtype
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


class _Writer:
    """Collects tensors and writes a file whenever enough are there."""

    def __init__(self, out: Path, file_bytes: int) -> None:
        self._out = out
        self._file_bytes = file_bytes
        self._waiting: dict[str, Tensor] = {}
        self._waiting_bytes = 0
        self._files: list[tuple[Path, list[str]]] = []
        self._total_bytes = 0

    def add(self, name: str, tensor: Tensor) -> None:
        if self._waiting and self._waiting_bytes + tensor.nbytes > self._file_bytes:
            self._flush()
        self._waiting[name] = tensor.contiguous()
        self._waiting_bytes += tensor.nbytes

    def finish(self) -> None:
        """Write what is left, name the files, and write an index if there are several."""
        self._flush()
        if len(self._files) == 1:
            self._files[0][0].rename(self._out / "model.safetensors")
            return
        weight_map: dict[str, str] = {}
        for number, (path, names) in enumerate(self._files, start=1):
            final = f"model-{number:05d}-of-{len(self._files):05d}.safetensors"
            path.rename(self._out / final)
            weight_map |= dict.fromkeys(names, final)
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}
        (self._out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))

    def _flush(self) -> None:
        path = self._out / f"part-{len(self._files)}.safetensors"
        save_file(self._waiting, path, metadata={"format": "pt"})
        self._files.append((path, list(self._waiting)))
        self._total_bytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = {}, 0
