"""One grading process as its owner sees it: start, ask with a deadline, kill."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

from astraflow.errors import NotReadyError
from astraflow.grading.reward import GoldCheck, GradeRequest
from astraflow.grading.worker import FRAME_HEADER, encode_frame, encode_task
from astraflow.records import Outcome

__all__ = ["GradingProcess", "WorkerDiedError", "WorkerHungError"]

START_S = 120.0
"""Bound on loading computer algebra; takes 1 s idle, more on a machine that is busy starting."""


class WorkerHungError(Exception):
    """A worker did not answer within its limit."""


class WorkerDiedError(Exception):
    """A worker ended without an answer, for example at its memory bound."""


class GradingProcess:
    """
    Owns one worker process; one thread at a time may use it.

    The thread that calls :meth:`start` must outlive the process: the kernel kills a worker
    when the thread that started it ends.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.num_answers = 0

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None while there is none."""
        process = self._process
        return process.pid if process is not None else None

    def start(self) -> None:
        """
        Start a worker and wait until computer algebra is loaded.

        Raises:
            NotReadyError: it ended or took more than ``START_S``.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-m", "astraflow.grading.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        self.num_answers = 0
        try:
            self._read_frame(time.monotonic() + START_S)
        except (WorkerDiedError, WorkerHungError) as error:
            self.kill()
            raise NotReadyError(
                f"a grading worker did not start within {START_S:.0f} s",
                hint=f"run `{sys.executable} -m astraflow.grading.worker` to see why",
            ) from error

    def ask(self, request: GradeRequest | GoldCheck, *, timeout_s: float) -> Outcome:
        """
        Grade one request, or check one gold.

        Raises:
            WorkerHungError: no answer came within ``timeout_s``; kill the worker.
            WorkerDiedError: the worker ended; start another.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        deadline = time.monotonic() + timeout_s
        frame = encode_frame(encode_task(request))
        try:
            self._process.stdin.write(frame)
        except BrokenPipeError as error:
            raise WorkerDiedError("the pipe to the worker is closed") from error
        body = self._read_frame(deadline)
        self.num_answers += 1
        return Outcome(body.decode())

    def kill(self) -> None:
        """Kill the worker and reap it; harmless if there is none."""
        process = self._process
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def interrupt(self) -> None:
        """Kill from another thread; the owner then sees WorkerDiedError and reaps it."""
        process = self._process
        if process is not None:
            process.kill()

    def _read_frame(self, deadline: float) -> bytes:
        size = FRAME_HEADER.unpack(self._read(FRAME_HEADER.size, deadline))[0]
        return self._read(size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        data = b""
        while len(data) < size:
            wait_s = deadline - time.monotonic()
            if wait_s <= 0 or not select.select([descriptor], [], [], wait_s)[0]:
                raise WorkerHungError
            chunk = os.read(descriptor, size - len(data))
            if not chunk:
                raise WorkerDiedError("the worker closed its pipe")
            data += chunk
        return data
