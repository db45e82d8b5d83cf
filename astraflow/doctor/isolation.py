"""
A process for checks that may crash or hang: torch, kernels, collectives.

Two libraries built against different ABIs end a process with a signal that nothing can catch, so
what touches them runs in a child, `child.py`, and its end is a finding like any other.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

from astraflow.doctor.finding import Finding, fail

__all__ = ["ask_child"]

_TAIL_CHARACTERS = 400


def ask_child(
    function: str,
    argument: Mapping[str, Any],
    *,
    within_s: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Finding]:
    """
    Run a generator of findings in a process of its own, and yield them as they come.

    Args:
        function: ``module:function``; it takes ``argument`` and yields a :class:`Finding`, or the
            name of the step that it begins, which is what a crash is then named after.
        argument: What can be written as JSON.
        within_s: Time for all of it (s); the process and what it started are killed after it.
        environment: Variables to set for it.
    """
    command = [sys.executable, "-m", "astraflow.doctor.child", function]
    step = function.partition(":")[0].rpartition(".")[2]
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as errors:
        asked.write(json.dumps(argument).encode())
        asked.seek(0)
        process = subprocess.Popen(
            command,
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        try:
            for line in _lines(process, time.monotonic() + within_s):
                body = json.loads(line)
                step = body.get("step", step)
                if "finding" in body:
                    yield Finding(**body["finding"])
            hung = not _ended(process)
        finally:
            # Before it is reaped, so that the number still names this group and no other.
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if hung:
            yield fail(
                step,
                f"gave no answer within {within_s:g} s, and was killed",
                "look for a device that hangs: `nvidia-smi`, `dmesg | tail`",
            )
        elif code:
            yield _crash(step, code, _tail(errors))


def _lines(process: subprocess.Popen[bytes], give_up: float) -> Iterator[bytes]:
    """Yield whole lines until the child closes its pipe, or time is up."""
    assert process.stdout is not None
    descriptor, held = process.stdout.fileno(), b""
    while True:
        wait_s = give_up - time.monotonic()
        if wait_s <= 0 or not select.select([descriptor], [], [], wait_s)[0]:
            return
        piece = os.read(descriptor, 65536)
        if not piece:
            return
        *whole, held = (held + piece).split(b"\n")
        yield from whole


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Tell a child that closed its pipe, and is about to be gone, from one that hangs."""
    # WNOWAIT leaves it to be reaped later, so that its number stays its own until then.
    give_up = time.monotonic() + 2.0
    while time.monotonic() < give_up:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, process.pid, flags) is not None:
            return True
        select.select([], [], [], 0.01)
    return False


def _crash(step: str, code: int, tail: str) -> Finding:
    if code < 0:
        cure = (
            "libraries built for different versions of each other do this: make a fresh "
            "environment with `pip install 'astraflow-rl[train]'`"
        )
        return fail(step, f"the process ended with {signal.Signals(-code).name}. {tail}", cure)
    cure = "report it with the output of `astraflow doctor --json`"
    return fail(step, f"the check itself broke with exit code {code}. {tail}", cure)


def _tail(errors: IO[bytes]) -> str:
    """Return the last thing that was said on stderr, on one line."""
    size = errors.seek(0, os.SEEK_END)
    errors.seek(max(0, size - 4 * _TAIL_CHARACTERS))
    text = errors.read().decode(errors="replace").strip()
    return " ".join(text.rsplit("\n", 1)[-1].split())[-_TAIL_CHARACTERS:]
