"""The GPUs that a process started here may use, asked of the driver; no CUDA library is loaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from astraflow.planning.gpus import Gpu, known_gpu

__all__ = ["Device", "read_devices", "visible_devices"]

_QUERY = "index,uuid,memory.total,name"
_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU of this host."""

    index: str
    uuid: str
    gpu: Gpu


def visible_devices() -> list[Device]:
    """List them in the order that CUDA numbers them; empty where the driver does not say."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    if answer.returncode != 0:
        return []
    return read_devices(answer.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))


def read_devices(answer: str, restricted: str | None) -> list[Device]:
    """
    Read the driver's table.

    Args:
        answer: Lines of ``index, uuid, memory in MiB, name``.
        restricted: CUDA_VISIBLE_DEVICES; None when it is not set.
    """
    devices = [device for line in answer.splitlines() if (device := _read_line(line))]
    if restricted is None:
        return devices
    # As CUDA reads it: indices or beginnings of UUIDs, and the first unknown one ends the list.
    chosen: list[Device] = []
    for word in (part.strip() for part in restricted.split(",")):
        found = [d for d in devices if word in (d.index, d.uuid) or _begins(d.uuid, word)]
        if not found:
            break
        chosen.append(found[0])
    return chosen


def _begins(uuid: str, word: str) -> bool:
    return word.startswith("GPU-") and uuid.startswith(word)


def _read_line(line: str) -> Device | None:
    index, uuid, memory, name = ([part.strip() for part in line.split(",", 3)] + [""] * 4)[:4]
    if not memory.isdigit():
        return None  # a device whose memory the driver does not tell cannot be planned for
    return Device(index=index, uuid=uuid, gpu=known_gpu(name, int(memory) * _MIB))
