"""
Grade many answers at once: quick ones here, formulas in processes that can be killed.

        grade() ──▶ quick? ──▶ result
                      │ no
                      ▼
                 one queue ──▶ thread 1 ──▶ worker process 1
                           ──▶ thread 2 ──▶ worker process 2     (killed and replaced at timeout_s)

Each thread owns one process and holds one request at a time, so a formula that hangs costs one
process and one answer. The limit is a SIGKILL from outside: sympy can hold the interpreter
inside one call for hours, where neither a signal handler nor a thread gets a turn.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import resource
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

from astraflow.errors import AstraFlowError, RecipeError, StoppedError
from astraflow.grading.boxes import AnswerPlace, find_answer
from astraflow.grading.math_answers import check_gold_quickly, grade_at_once
from astraflow.grading.process import GradingProcess, WorkerDiedError, WorkerHungError
from astraflow.grading.reward import GoldCheck, GradeRequest, GradeResult
from astraflow.records import Outcome

__all__ = ["GradingPool"]

_log = logging.getLogger(__name__)

_RECYCLE_ANSWERS = 20_000
"""Answers after which a worker is replaced, so that no leak of a library can add up."""

_QUICK_IN_A_ROW = 32
"""Quick answers before the event loop gets a turn; about 10 ms."""

_HUNG_KEPT = 256
"""Answers that hung and are remembered: a collapsed policy writes one bomb again and again."""

_WINDOW = 256
"""Requests in flight in :meth:`GradingPool.grade_many`."""


@dataclass(frozen=True, slots=True)
class _Job:
    request: GradeRequest | GoldCheck
    future: Future[GradeResult]


class GradingPool:
    """
    Grades with :func:`astraflow.grading.grade` under a hard time limit per answer.

    Workers start with the first formula, or with :meth:`warm_up`. May be used from any thread
    and any event loop, also from several at once.

    Args:
        workers: Processes for formulas (count).
        timeout_s: Hard limit for one answer, start-up excluded (s).
        answer: Where an answer may stand, for requests that do not say.

    Raises:
        RecipeError: ``workers`` is below 1 or ``timeout_s`` is not above 0.
    """

    def __init__(
        self, *, workers: int, timeout_s: float = 3.0, answer: AnswerPlace = "boxed"
    ) -> None:
        if workers < 1:
            raise RecipeError(f"grading wants at least 1 worker, not {workers}")
        if not timeout_s > 0:
            raise RecipeError(
                f"a grading limit of {timeout_s} s would fail every formula",
                hint="workflow.grading_timeout_s: 3.0",
            )
        self._num_workers = workers
        self._timeout_s = timeout_s
        self._answer: AnswerPlace = answer
        self._jobs: queue.Queue[_Job | None] = queue.Queue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._processes: list[GradingProcess] = []
        self._closed = False
        self._hung: deque[GradeRequest | GoldCheck] = deque(maxlen=_HUNG_KEPT)

    async def grade(self, requests: Sequence[GradeRequest]) -> list[GradeResult]:
        """
        Grade all requests; results come in the same order.

        Raises:
            StoppedError: the pool is closed, or was closed meanwhile.
            NotReadyError: no worker could be started.
        """
        results: list[GradeResult | Future[GradeResult]] = []
        for index, request in enumerate(requests):
            results.append(self._quick(request) or self._submit(request))
            if index % _QUICK_IN_A_ROW == _QUICK_IN_A_ROW - 1:
                await asyncio.sleep(0)
        return [
            await asyncio.wrap_future(result) if isinstance(result, Future) else result
            for result in results
        ]

    def grade_many(self, requests: Iterable[GradeRequest]) -> Iterator[GradeResult]:
        """
        Grade a stream of requests without an event loop; results come in order.

        Raises:
            StoppedError: the pool is closed, or was closed meanwhile.
            NotReadyError: no worker could be started.
        """
        pending: deque[GradeResult | Future[GradeResult]] = deque()
        for request in requests:
            pending.append(self._quick(request) or self._submit(request))
            while len(pending) >= _WINDOW:
                yield _result_of(pending.popleft())
        while pending:
            yield _result_of(pending.popleft())

    def check_golds(self, golds: Iterable[str]) -> Iterator[Outcome]:
        """
        Verify golds against themselves, in order: right, unparsable or timed out.

        Raises:
            StoppedError: the pool is closed, or was closed meanwhile.
            NotReadyError: no worker could be started.
        """
        pending: deque[Outcome | Future[GradeResult]] = deque()
        for gold in golds:
            quick = check_gold_quickly(gold)
            pending.append(quick or self._hand_over(GoldCheck(gold=gold)))
            while len(pending) >= _WINDOW:
                yield _outcome_of(pending.popleft())
        while pending:
            yield _outcome_of(pending.popleft())

    def warm_up(self) -> None:
        """Start the workers now, so that the first formula does not wait for them."""
        with self._lock:
            if self._closed:
                raise StoppedError("the grading pool is closed")
            while len(self._threads) < self._num_workers:
                process = GradingProcess()
                thread = threading.Thread(
                    target=self._serve, args=(process,), name="grading", daemon=True
                )
                self._processes.append(process)
                self._threads.append(thread)
                thread.start()

    def memory_bytes(self) -> int:
        """Return the resident memory of this process and the workers; 0 where nobody tells."""
        pids = [os.getpid(), *(process.pid for process in self._processes if process.pid)]
        return sum(map(_resident_bytes, pids))

    async def close(self) -> None:
        """Kill all workers, also hung ones; takes well under 2 s, twice is harmless."""
        await asyncio.to_thread(self.shut_down)

    def shut_down(self) -> None:
        """Do what :meth:`close` does, without an event loop."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
        for _ in threads:
            self._jobs.put(None)
        deadline = time.monotonic() + 2.0
        for thread in threads:
            while thread.is_alive() and time.monotonic() < deadline:
                for process in self._processes:
                    process.interrupt()
                thread.join(0.05)
        self._fail_waiting(StoppedError("the grading pool was closed"))

    def _quick(self, request: GradeRequest) -> GradeResult | None:
        started_s = time.perf_counter()
        quick = grade_at_once(
            gold=request.gold,
            completion=request.completion,
            answer=request.answer or self._answer,
            truncated=request.truncated,
        )
        if quick is None:
            return None
        return GradeResult(
            outcome=quick[0], reward=quick[1], graded_s=time.perf_counter() - started_s
        )

    def _submit(self, request: GradeRequest) -> Future[GradeResult]:
        return self._hand_over(replace(request, answer=request.answer or self._answer))

    def _hand_over(self, task: GradeRequest | GoldCheck) -> Future[GradeResult]:
        self.warm_up()
        future: Future[GradeResult] = Future()
        self._jobs.put(_Job(task, future))
        return future

    def _serve(self, process: GradingProcess) -> None:
        """Own one process: hand it one job at a time until the pool closes."""
        try:
            process.start()
            while not self._closed and (job := self._jobs.get()) is not None:
                if not job.future.set_running_or_notify_cancel():
                    continue
                self._answer_job(process, job)
        except AstraFlowError as error:
            if not self._closed:
                _log.error("a grading worker is gone: %s", error)
                self._fail_waiting(error)
        finally:
            process.kill()

    def _answer_job(self, process: GradingProcess, job: _Job) -> None:
        started_s = time.perf_counter()
        lost = False
        bare = _bare(job.request)
        try:
            if bare in self._hung:
                outcome = Outcome.TIMED_OUT
            else:
                outcome = process.ask(job.request, timeout_s=self._timeout_s)
        except WorkerHungError:
            outcome, lost = Outcome.TIMED_OUT, True
            self._hung.append(bare)
        except WorkerDiedError:
            outcome, lost = Outcome.UNPARSABLE, True
        if lost:
            process.kill()
        if lost and self._closed:
            job.future.set_exception(StoppedError("the grading pool was closed"))
            return
        job.future.set_result(
            GradeResult(
                outcome=outcome,
                reward=1.0 if outcome is Outcome.RIGHT else 0.0,
                graded_s=time.perf_counter() - started_s,
            )
        )
        if lost or process.num_answers >= _RECYCLE_ANSWERS:
            process.kill()
            process.start()

    def _fail_waiting(self, error: AstraFlowError) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)


def _resident_bytes(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except OSError:  # not Linux, or the worker was just replaced
        return 0
    return int(pages) * resource.getpagesize()


def _bare(task: GradeRequest | GoldCheck) -> GradeRequest | GoldCheck:
    """Keep of a completion only its answer, so that one answer in two texts is one task."""
    if isinstance(task, GoldCheck):
        return task
    place: AnswerPlace = task.answer or "boxed"
    found = find_answer(task.completion, place=place, truncated=task.truncated)
    return replace(task, completion=found or "")


def _result_of(result: GradeResult | Future[GradeResult]) -> GradeResult:
    return result.result() if isinstance(result, Future) else result


def _outcome_of(result: Outcome | Future[GradeResult]) -> Outcome:
    return result.result().outcome if isinstance(result, Future) else result
