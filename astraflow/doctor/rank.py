"""One rank of an all-reduce: `python -m astraflow.doctor.rank BACKEND RANK RANKS STORE`."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta

from astraflow.wire.events import die_with_parent

__all__ = ["main"]

_ELEMENTS = {"gloo": 1 << 20, "nccl": 1 << 26}  # float32: 4 MiB and 256 MiB
_ROUNDS = 4
_TIMEOUT_S = 25


def main() -> None:
    """Sum what every rank holds, and say how fast it went."""
    die_with_parent()
    backend, rank, ranks, path = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    store = dist.FileStore(path, ranks)  # type: ignore[attr-defined]
    timeout = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    # Small whole numbers, which float32 adds exactly in any order.
    own = torch.arange(_ELEMENTS[backend], device=device) % 1024
    took_s = 0.0
    for turn in range(_ROUNDS):
        values = (own + rank).float()
        started = time.perf_counter()
        dist.all_reduce(values)
        right = torch.equal(values, (own * ranks + ranks * (ranks - 1) // 2).float())
        if turn:  # the first one also opens the connections
            took_s += time.perf_counter() - started
        if not right:
            raise ArithmeticError(f"rank {rank} holds a wrong sum of {ranks} ranks")
    size_mib = _ELEMENTS[backend] * 4 / 2**20
    sys.stdout.write(json.dumps({"mib_per_s": size_mib * (_ROUNDS - 1) / took_s}) + "\n")
    sys.stdout.flush()
    dist.barrier()
    # The group's own end waits for peers that may be gone.
    os._exit(0)


if __name__ == "__main__":
    main()
