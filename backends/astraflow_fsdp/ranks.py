"""Ranks: joining the process group, this rank's device and threads, sums over all ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["join_ranks", "sum_over_ranks"]


def join_ranks(device: str, *, threads: int | None) -> torch.device:
    """
    Join the group that torch.distributed.run describes in the environment; alone without one.

    Args:
        device: ``cpu`` or ``cuda``.
        threads: CPU threads of this rank; None shares all cores among the ranks.

    Returns:
        This rank's device.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    own = torch.device("cpu")
    if device == "cuda":
        own = torch.device("cuda", local_rank)
        torch.cuda.set_device(own)
    else:
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = len(os.sched_getaffinity(0))
        torch.set_num_threads(threads or max(1, cores // ranks_here))
    if not dist.is_initialized():
        backend = "nccl" if device == "cuda" else "gloo"
        if "RANK" in os.environ:
            dist.init_process_group(backend)
        else:
            alone = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group(backend, store=alone, rank=0, world_size=1)
    return own


def sum_over_ranks(numbers: Mapping[str, Tensor], device: torch.device) -> dict[str, float]:
    """
    Add up scalars over all ranks.

    Args:
        numbers: Scalars by name, the same names on every rank.
        device: Where the collective runs.
    """
    names = sorted(numbers)
    values = torch.stack([numbers[name].to(device, torch.float64) for name in names])
    dist.all_reduce(values)
    return dict(zip(names, values.tolist(), strict=True))
