"""Perform one check within its time; one that breaks or hangs becomes a finding."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

from astraflow.doctor.finding import Check, Finding, Subject, fail
from astraflow.errors import AstraFlowError

__all__ = ["perform"]

_END = None


def perform(check: Check, subject: Subject) -> Iterator[Finding]:
    """
    Yield what a check finds, as it finds it.

    It runs in a thread that is left behind when its time is up: nothing can stop a system call
    that waits for a dead file server, and the program can still end.
    """
    found: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    threading.Thread(target=_fill, args=(check, subject, found), daemon=True).start()
    give_up = time.monotonic() + check.within_s
    while True:
        try:
            finding = found.get(timeout=max(give_up - time.monotonic(), 0.0))
        except queue.Empty:
            yield fail(
                check.name,
                f"gave no answer within {check.within_s:g} s",
                "look for a file server or a device that hangs: `dmesg | tail`, `df`, `nvidia-smi`",
            )
            return
        if finding is _END:
            return
        yield finding


def _fill(check: Check, subject: Subject, found: queue.SimpleQueue[Finding | None]) -> None:
    try:
        for finding in check.run(subject):
            found.put(finding)
    except AstraFlowError as error:
        found.put(fail(check.name, error.what, error.hint))
    except Exception as error:  # noqa: BLE001 - the edge of a check: what breaks it is a finding
        what = f"the check itself broke: {type(error).__name__}: {error}"
        found.put(fail(check.name, what, "report it with the output of `astraflow doctor --json`"))
    finally:
        found.put(_END)
