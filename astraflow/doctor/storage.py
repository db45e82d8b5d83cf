"""Where a run writes: /dev/shm, and space, speed and permission of the folder of runs."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from astraflow.doctor.finding import Finding, Subject, fail, ok, shown_size, warn
from astraflow.planning import plan_host
from astraflow.recipe.models import find_facts

__all__ = ["examine_run_folder", "examine_shared_memory"]

_MIB, _GIB = 2**20, 2**30
_SHM_BYTES = 256 * _MIB  # what torch's own workers and a small NCCL group take
_DISK_BYTES = 2 * _GIB  # a quickstart with its checkpoints takes a tenth of that
_PROBE_BYTES = 64 * _MIB
_PROBE_S = 5.0
_SLOW_MIB_PER_S = 20.0
# Master weights and two moments; AdamW keeps nothing else.
_TENSORS_PER_WEIGHT = 3

StatVfs = Callable[[str], os.statvfs_result]


def examine_shared_memory(
    subject: Subject, folder: Path = Path("/dev/shm"), statvfs: StatVfs = os.statvfs
) -> Iterator[Finding]:
    """Compare the space of shared memory with what the run needs, and write there."""
    cure = "in a container `docker run --shm-size=16g`; else `mount -o remount,size=16g /dev/shm`"
    if not folder.is_dir():
        yield fail("/dev/shm", "absent: NCCL and torch share memory there", cure)
        return
    free = _free_bytes(statvfs(str(folder)))
    planned = _planned_shm_bytes(subject)
    needed = max(planned, _SHM_BYTES)
    found = f"{shown_size(free)} free, {shown_size(needed)} needed"
    if free < needed:
        # Only a run of several GPUs is known to need it; others may.
        yield fail("/dev/shm", found, cure) if free < planned else warn("/dev/shm", found, cure)
        return
    try:
        _write(folder, 64 * 1024)
    except OSError as error:
        yield fail("/dev/shm", f"{found}; writing there: {_reason(error)}", cure)
    else:
        yield ok("/dev/shm", found)


def examine_run_folder(subject: Subject, statvfs: StatVfs = os.statvfs) -> Iterator[Finding]:
    """Compare the space for runs with what checkpoints take, then write and measure."""
    wanted = subject.runs.expanduser().absolute()
    folder = next(path for path in (wanted, *wanted.parents) if path.exists())
    elsewhere = "name a folder that you may write to: `--runs DIR`, or `export ASTRAFLOW_RUNS=DIR`"
    if not folder.is_dir():
        yield fail("run folder", f"`{wanted}` lies below the file `{folder}`", elsewhere)
        return
    yield _space(subject, folder, statvfs(str(folder)))
    try:
        speed = _write(folder, _PROBE_BYTES)
    except OSError as error:
        yield fail("run folder", f"`{folder}` cannot be written to: {_reason(error)}", elsewhere)
        return
    yield ok("run folder", f"`{wanted}` can be written to")
    found = f"{speed:.0f} MiB/s written and synced"
    if speed < _SLOW_MIB_PER_S:
        yield warn("disk speed", f"{found}: checkpoints hold training up", elsewhere)
    else:
        yield ok("disk speed", found)


def _space(subject: Subject, folder: Path, there: os.statvfs_result) -> Finding:
    free, needed = _free_bytes(there), _checkpoint_bytes(subject)
    found = f"{shown_size(free)} free in `{folder}`, {shown_size(needed)} needed"
    cure = (
        f"free some (`du -xh {folder} | sort -h | tail`), put runs elsewhere with `--runs DIR`, or "
        "keep fewer checkpoints: `--set checkpoint.keep=1`"
    )
    if there.f_files and not there.f_favail:
        what = f"no file can be made in `{folder}`: all {there.f_files} inodes are used"
        return fail("disk space", what, cure)
    return fail("disk space", found, cure) if free < needed else ok("disk space", found)


def _checkpoint_bytes(subject: Subject) -> int:
    """Estimate what all kept checkpoints take, and the one being written."""
    recipe = subject.recipe.recipe if subject.recipe else None
    facts = find_facts(recipe.model.path) if recipe else None
    if recipe is None or facts is None:
        return _DISK_BYTES
    item = 4 if recipe.trainer.master_dtype == "float32" else 2
    one = facts.num_parameters * item * _TENSORS_PER_WEIGHT
    return max(_DISK_BYTES, one * (recipe.checkpoint.keep + 1))


def _planned_shm_bytes(subject: Subject) -> int:
    recipe = subject.recipe.recipe if subject.recipe else None
    facts = find_facts(recipe.model.path) if recipe else None
    return plan_host(recipe, facts).shm_bytes if recipe and facts else 0


def _free_bytes(there: os.statvfs_result) -> int:
    return there.f_bavail * there.f_frsize


def _write(folder: Path, size_bytes: int) -> float:
    """
    Write and sync a file that has no name, and read its beginning back.

    Returns:
        MiB/s.

    Raises:
        OSError: it cannot be written, or reads back otherwise.
    """
    piece, written, started = os.urandom(64 * 1024), 0, time.perf_counter()
    with tempfile.TemporaryFile(dir=folder) as file:
        while written < size_bytes and time.perf_counter() < started + _PROBE_S:
            file.write(piece)
            written += len(piece)
        file.flush()
        os.fsync(file.fileno())
        speed = written / _MIB / (time.perf_counter() - started)
        file.seek(0)
        if file.read(len(piece)) != piece:
            raise OSError(errno.EIO, "it read back other bytes than were written")
    return speed


def _reason(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{error.strerror}, so it is full" if full else str(error.strerror)
