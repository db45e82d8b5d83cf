"""What the machine has: Python, processors, memory, GPUs, limits, the clock."""

from __future__ import annotations

import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from astraflow.doctor.finding import Finding, Subject, fail, ok, shown_size, skipped, warn
from astraflow.planning import plan_host
from astraflow.recipe.models import find_facts
from astraflow.supervisor.preflight import visible_gpus

__all__ = [
    "examine_clock",
    "examine_gpus",
    "examine_limits",
    "examine_memory",
    "examine_processors",
    "examine_python",
]

_GIB = 2**30
_OLDEST_PYTHON = (3, 11)
_QUICKSTART_BYTES = 3 * _GIB  # four processes with torch, as measured
# A role holds a socket for each connection, SQLite's files and one pipe a child.
_FEWEST_FILES = 1024
_ENOUGH_FILES = 65536
_CLOCK_WAIT_S = 0.1
_CLOCK_DRIFT_S = 0.05
_CGROUP = Path("/sys/fs/cgroup")
_INFINIBAND = Path("/sys/class/infiniband")


def examine_python(subject: Subject) -> Iterator[Finding]:
    """Say which Python runs, and whether it is new enough."""
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] >= _OLDEST_PYTHON:
        yield ok("python", found)
    else:
        yield fail("python", found, "install Python 3.11 or newer and make the environment anew")


def examine_processors(subject: Subject, cgroup: Path = _CGROUP) -> Iterator[Finding]:
    """Count the cores that this process may use; a container may have less time than cores."""
    cores = float(len(os.sched_getaffinity(0)))
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        cores = min(cores, int(quota) / int(period))
    found = f"{cores:g} usable"
    if cores >= 2:
        yield ok("processors", found)
    else:
        cure = "give the container two cores or more, such as `docker run --cpus=4`"
        yield warn("processors", f"{found}: sampling and training take turns", cure)


def examine_memory(subject: Subject, cgroup: Path = _CGROUP) -> Iterator[Finding]:
    """Compare free memory, of the host or of the container, with what the run needs."""
    free = psutil.virtual_memory().available
    limit, used = _read(cgroup / "memory.max"), _read(cgroup / "memory.current")
    if limit.isdigit() and used.isdigit():
        free = min(free, int(limit) - int(used))
    needed = _needed_bytes(subject)
    found = f"{shown_size(free)} free, {shown_size(needed)} needed"
    if free >= needed:
        yield ok("host memory", found)
    else:
        cure = (
            "end other programs (`ps aux --sort=-rss | head`), or give the container more, such "
            "as `docker run --memory=64g`"
        )
        # Pages of files that other programs hold count as used, and a plan is an estimate.
        yield warn("host memory", found, cure)


def examine_gpus(subject: Subject) -> Iterator[Finding]:
    """List the GPUs that a run started here would see."""
    gpus = visible_gpus()
    if gpus:
        yield ok("GPUs", f"{len(gpus)}: {', '.join(gpus)}")
        return
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = "nvidia-smi lists none" if hidden is None else f"CUDA_VISIBLE_DEVICES is `{hidden}`"
    cure = "" if hidden is None else "`unset CUDA_VISIBLE_DEVICES`"
    yield skipped("GPUs", f"{why}; the quickstart and `--smoke` need none", cure)


def examine_limits(subject: Subject, infiniband: Path = _INFINIBAND) -> Iterator[Finding]:
    """Look at the limits of open files and of locked memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _FEWEST_FILES:
        yield ok("open files", f"limit {_shown_limit(soft)}")
    else:
        best = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
        yield warn("open files", f"limit {soft}", f"`ulimit -n {best}`")
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = locked == resource.RLIM_INFINITY
    found = f"limit {'none' if unlimited else shown_size(locked)}"
    if unlimited or not infiniband.is_dir() or not any(infiniband.iterdir()):
        # CUDA pins memory without this limit; only network cards count against it.
        yield ok("locked memory", found if unlimited else f"{found}, and no InfiniBand here")
    else:
        cure = "`ulimit -l unlimited`, or `docker run --ulimit memlock=-1`"
        yield warn("locked memory", f"{found}: NCCL over InfiniBand registers more", cure)


def examine_clock(subject: Subject, now_s: float | None = None) -> Iterator[Finding]:
    """
    Hold the wall clock against a clock that only goes forward, and against our own files.

    Args:
        subject: Not used.
        now_s: What the wall clock says; None asks it (s since 1970).
    """
    cure = "`timedatectl set-ntp true`, or set the host's clock"
    now = time.time() if now_s is None else now_s
    written = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))
    # A day of grace: file servers and time zones of archives.
    if now < written - 86400:
        year = time.gmtime(now).tm_year
        what = f"it is {year} here, before this program was installed: TLS certificates fail"
        yield fail("clock", what, cure)
        return
    wall, steady = time.time(), time.monotonic()
    threading.Event().wait(_CLOCK_WAIT_S)
    drift = (time.time() - wall) - (time.monotonic() - steady)
    found = f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime(now))} UTC"
    if abs(drift) > _CLOCK_DRIFT_S:
        what = f"{found}, and it moved by {drift:+.3f} s within {_CLOCK_WAIT_S:g} s"
        yield warn("clock", what, cure)
    else:
        yield ok("clock", found)


def _needed_bytes(subject: Subject) -> int:
    recipe = subject.recipe.recipe if subject.recipe else None
    facts = find_facts(recipe.model.path) if recipe else None
    if recipe is None or facts is None:
        return _QUICKSTART_BYTES
    return plan_host(recipe, facts).memory_bytes


def _shown_limit(limit: int) -> str:
    return "none" if limit == resource.RLIM_INFINITY else str(limit)


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.is_file() else ""
