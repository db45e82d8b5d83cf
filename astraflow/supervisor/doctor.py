"""Is this machine fit for a run? Each check says ok, warn, fail or skipped, and names the cure."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import Requirement

from astraflow.errors import PluginError
from astraflow.plugins import installed, load_plugin
from astraflow.supervisor.preflight import visible_gpus

__all__ = ["Finding", "examine"]

Verdict = Literal["ok", "warn", "fail", "skipped"]

_GIB = 2**30
_USABLE_ANTLR = ("4.9.3", "4.11.0", "4.13.2")
_ENOUGH_FILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    name: str
    verdict: Verdict
    found: str
    cure: str = ""


def examine() -> list[Finding]:
    """Run every check; a check that cannot be made says why."""
    return [finding for check in _CHECKS for finding in check()]


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    fits = sys.version_info >= (3, 11)
    yield Finding(
        name="python",
        verdict="ok" if fits else "fail",
        found=f"{version} at {sys.executable}",
        cure="" if fits else "install Python 3.11 or newer and make the environment anew",
    )


def _libraries() -> Iterator[Finding]:
    """Compare installed versions with what our own metadata asks for, extra by extra."""
    requirements = importlib.metadata.requires("astraflow-rl") or []
    by_extra: dict[str, list[Requirement]] = {}
    for text in requirements:
        requirement = Requirement(text)
        by_extra.setdefault(_extra_of(requirement), []).append(requirement)
    for extra, wanted in by_extra.items():
        yield _library_finding(extra, wanted)


def _library_finding(extra: str, wanted: list[Requirement]) -> Finding:
    label = f"libraries [{extra}]" if extra else "libraries"
    missing, wrong = [], []
    for requirement in wanted:
        if requirement.name == "astraflow-rl":
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(requirement.name)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version}, wanted {requirement.specifier}")
    bracket = f"[{extra}]" if extra else ""
    cure = f"pip install 'astraflow-rl{bracket}'"
    if not missing and not wrong:
        return Finding(name=label, verdict="ok", found=f"{len(wanted)} requirements met")
    needed = extra in ("", "train")
    verdict: Verdict = "fail" if needed else "skipped"
    if wrong and not missing:
        verdict = "fail" if needed else "warn"
    found = "; ".join([*(f"no {name}" for name in missing), *wrong])
    return Finding(name=label, verdict=verdict, found=found, cure=cure)


def _antlr() -> Iterator[Finding]:
    try:
        version = importlib.metadata.version("antlr4-python3-runtime")
    except importlib.metadata.PackageNotFoundError:
        return  # already said by the libraries check
    usable = version in _USABLE_ANTLR
    yield Finding(
        name="antlr runtime",
        verdict="ok" if usable else "fail",
        found=version,
        cure=""
        if usable
        else f"math-verify imports only with {', '.join(_USABLE_ANTLR)}: "
        "pip install antlr4-python3-runtime==4.13.2",
    )


def _adapters() -> Iterator[Finding]:
    for kind in ("inference_backends", "trainer_backends", "workflows", "rewards"):
        for name in installed(kind):
            label = f"{kind.removesuffix('s').replace('_', ' ')} {name}"
            try:
                plugin = load_plugin(kind, name)
            except PluginError as error:
                yield Finding(name=label, verdict="fail", found=error.what, cure=error.hint)
                continue
            absent = [m for m in plugin.needs if importlib.util.find_spec(m) is None]
            if plugin.unavailable:
                yield Finding(name=label, verdict="skipped", found=plugin.unavailable)
            elif absent:
                cure = f"pip install 'astraflow-rl[{plugin.extra}]'"
                found = f"no {', '.join(absent)}"
                yield Finding(name=label, verdict="skipped", found=found, cure=cure)
            else:
                yield Finding(name=label, verdict="ok", found="its libraries are there")


def _processor() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding(
        name="processors",
        verdict="ok" if cores >= 2 else "warn",
        found=f"{cores} usable",
        cure="" if cores >= 2 else "sampling and training share one core and run one after another",
    )


def _memory() -> Iterator[Finding]:
    available = psutil.virtual_memory().available
    enough = available >= 4 * _GIB
    yield Finding(
        name="memory",
        verdict="ok" if enough else "warn",
        found=f"{available / _GIB:.1f} GiB available",
        cure="" if enough else "the quickstart takes about 3 GiB; end other programs",
    )


def _shared_memory() -> Iterator[Finding]:
    path = Path("/dev/shm")
    if not path.is_dir():
        yield Finding(name="/dev/shm", verdict="warn", found="absent", cure="mount a tmpfs there")
        return
    free = shutil.disk_usage(path).free
    enough = free >= _GIB // 4
    yield Finding(
        name="/dev/shm",
        verdict="ok" if enough else "warn",
        found=f"{free / _GIB:.2f} GiB free",
        cure="" if enough else "in a container: --shm-size=16g",
    )


def _disk() -> Iterator[Finding]:
    free = shutil.disk_usage(Path.cwd()).free
    enough = free >= 2 * _GIB
    yield Finding(
        name="disk",
        verdict="ok" if enough else "fail",
        found=f"{free / _GIB:.1f} GiB free in {Path.cwd()}",
        cure="" if enough else "free some space, or run from another folder",
    )
    try:
        with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file:
            started = time.perf_counter()
            file.write(b"0" * 2**25)
            file.flush()
            os.fsync(file.fileno())
            speed = 32 / (time.perf_counter() - started)
    except OSError as error:
        cure = "run from a folder that you may write to"
        yield Finding(name="disk write", verdict="fail", found=str(error), cure=cure)
        return
    yield Finding(name="disk write", verdict="ok", found=f"{speed:.0f} MiB/s with fsync")


def _ports() -> Iterator[Finding]:
    """Bind a port, connect to it and send a byte: what every role does on loopback."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5) as client,
        ):
            peer, _ = server.accept()
            with peer:
                client.sendall(b"x")
                arrived = peer.recv(1) == b"x"
    except OSError as error:
        cure = "loopback must accept connections; look at firewall rules"
        yield Finding(name="loopback", verdict="fail", found=str(error), cure=cure)
        return
    yield Finding(
        name="loopback",
        verdict="ok" if arrived else "fail",
        found="a free port was bound and used",
    )


def _open_files() -> Iterator[Finding]:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= 1024
    yield Finding(
        name="open files",
        verdict="ok" if enough else "warn",
        found=f"limit {soft}",
        cure="" if enough else f"ulimit -n {_ENOUGH_FILES}",
    )


def _grader() -> Iterator[Finding]:
    """Grade one easy pair the slow way, so that a broken parser shows now."""
    if importlib.util.find_spec("math_verify") is None:
        cure = "pip install 'astraflow-rl[train]'"
        yield Finding(name="grader", verdict="skipped", found="no math_verify", cure=cure)
        return
    from astraflow.grading import grade

    outcome, reward = grade(gold=r"\frac{1}{2}", completion=r"so \boxed{0.5}")
    right = reward == 1.0
    yield Finding(
        name="grader",
        verdict="ok" if right else "fail",
        found=f"1/2 against 0.5 is {outcome.value}",
        cure="" if right else "pip install 'astraflow-rl[train]' into a fresh environment",
    )


def _gpus() -> Iterator[Finding]:
    gpus = visible_gpus()
    if gpus:
        yield Finding(name="GPUs", verdict="ok", found=f"{len(gpus)}: {', '.join(gpus)}")
        return
    yield Finding(
        name="GPUs",
        verdict="skipped",
        found="none visible; the quickstart and `--smoke` need none",
        cure="nvidia-smi must list them, and CUDA_VISIBLE_DEVICES must not be empty",
    )


def _extra_of(requirement: Requirement) -> str:
    marker = str(requirement.marker or "")
    return marker.split("==")[1].strip().strip("\"'") if "extra" in marker else ""


_CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python,
    _libraries,
    _antlr,
    _adapters,
    _processor,
    _memory,
    _shared_memory,
    _disk,
    _ports,
    _open_files,
    _grader,
    _gpus,
)
