"""What each rank holds of a parameter: its range in the flat tensor, and the values there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from astraflow.interfaces import Shard, TensorSpec

__all__ = ["local_range", "local_values", "published_shards"]

_NAMES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def local_values(parameter: Tensor) -> Tensor:
    """Return this rank's part of a parameter, sharing memory; whole when it is not sharded."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def local_range(parameter: Tensor) -> tuple[int, int]:
    """Return the flat index of the first element that this rank holds, and how many it holds."""
    count = local_values(parameter).numel()
    if not isinstance(parameter, DTensor):
        return 0, count
    # FSDP2 shards dimension 0 in equal chunks, rounded up; the last ones may be short or empty.
    mesh = parameter.device_mesh
    rows = -(-parameter.shape[0] // mesh.size())
    width = parameter.numel() // max(parameter.shape[0], 1)
    return min(mesh.get_local_rank() * rows * width, parameter.numel()), count


def published_shards(
    parameters: dict[str, Tensor], dtypes: dict[str, torch.dtype]
) -> Iterator[Shard]:
    """Yield this rank's pieces in the types that serve; parameters it holds nothing of are left out."""
    for name, parameter in parameters.items():
        first, count = local_range(parameter)
        if not count:
            continue
        dtype = dtypes[name]
        values: Any = local_values(parameter).detach().to(dtype).reshape(-1).contiguous()
        spec = TensorSpec(name=name, dtype=_NAMES[dtype], shape=tuple(parameter.shape))
        yield Shard(spec=spec, first=first, values=values)
