"""All-reduces between processes: gloo on the CPU, NCCL between the GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from astraflow.doctor.finding import Finding, fail, ok, skipped

__all__ = ["all_reduce", "examine_collectives"]

_RANKS_S = 30.0
_CURES = {
    "gloo": "name this host's loopback: `export GLOO_SOCKET_IFNAME=lo`; the host's own name must "
    "resolve: `getent hosts $(hostname)`",
    "nccl": "`NCCL_DEBUG=INFO astraflow doctor` shows where; in a container `--shm-size=16g`; try "
    "`export NCCL_NVLS_ENABLE=0`, then `export NCCL_P2P_DISABLE=1`",
}


def examine_collectives(*, num_gpus: int) -> Iterator[Finding | str]:
    """Sum over two ranks on the CPU, and over all GPUs."""
    yield "all-reduce gloo"
    yield all_reduce("gloo", ranks=2)
    if num_gpus < 2:
        yield skipped("all-reduce nccl", f"it takes two GPUs, and this machine shows {num_gpus}")
        return
    yield "all-reduce nccl"
    yield all_reduce("nccl", ranks=num_gpus)


def all_reduce(backend: str, *, ranks: int, within_s: float = _RANKS_S) -> Finding:
    """
    Start ranks, let them sum a tensor exactly, and end them all.

    Args:
        backend: ``gloo`` or ``nccl``.
        ranks: Processes (count).
        within_s: Time for all of it (s).
    """
    label, give_up = f"all-reduce {backend}", time.monotonic() + within_s
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        module = [sys.executable, "-m", "astraflow.doctor.rank", backend]
        processes = [
            subprocess.Popen(
                [*module, str(rank), str(ranks), str(Path(folder) / "store")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
            for rank in range(ranks)
        ]
        try:
            said = [
                process.communicate(timeout=max(give_up - time.monotonic(), 0.1))[0]
                for process in processes
            ]
        except subprocess.TimeoutExpired:
            found = f"{ranks} processes did not meet within {within_s:g} s"
            return fail(label, found, _CURES[backend])
        finally:
            for process in processes:
                process.kill()
                process.communicate()
        if any(process.returncode for process in processes):
            errors.seek(0)
            lines = [line for line in errors.read().splitlines() if line.strip()]
            return fail(
                label, f"a rank ended: {lines[-1] if lines else 'no word'}", _CURES[backend]
            )
    speeds = [json.loads(line)["mib_per_s"] for line in said]
    return ok(label, f"{ranks} processes, exact sums, {min(speeds):.0f} MiB/s")
