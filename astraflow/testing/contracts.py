"""
Contracts: what every inference adapter must keep, as functions that raise AssertionError.

Each takes a *started* backend and requests that suit its model, so that an adapter outside this
repository can be tried the same way:

    async with started(MyBackend(context)) as backend:
        await check_seeds(backend, request)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from astraflow.interfaces import InferenceBackend
from astraflow.records import FinishReason, Sample, SampleRequest

__all__ = [
    "Score",
    "check_cancelling_frees",
    "check_holding",
    "check_length_finish",
    "check_logprobs",
    "check_seeds",
    "check_stop_finish",
    "group_of",
    "sample_all",
    "started",
]

Score = Callable[[Sequence[int], Sequence[int], float], Sequence[float]]
"""``(prompt ids, answer ids, temperature) -> [answer] log-probabilities`` of a full forward."""

_WITHIN_S = 60.0


@asynccontextmanager
async def started(backend: InferenceBackend) -> AsyncIterator[InferenceBackend]:
    """Start a backend, and close it at the end, twice: that must be harmless."""
    await backend.start(within_s=_WITHIN_S)
    try:
        yield backend
    finally:
        await backend.close()
        await backend.close()


def group_of(request: SampleRequest, size: int) -> list[SampleRequest]:
    """Return ``size`` requests of one group with different seeds, made from one request."""
    return [
        replace(
            request,
            request_id=f"{request.request_id}.{index}",
            group_size=size,
            seed=request.seed + index,
        )
        for index in range(size)
    ]


async def sample_all(backend: InferenceBackend, requests: Sequence[SampleRequest]) -> list[Sample]:
    """Sample every request at the same time, within a minute."""
    async with asyncio.timeout(_WITHIN_S):
        return list(await asyncio.gather(*(backend.sample(request) for request in requests)))


async def check_logprobs(
    backend: InferenceBackend, request: SampleRequest, score: Score, *, tolerance: float
) -> None:
    """Reported log-probabilities are those of a full forward at the request's temperature."""
    for sample in await sample_all(backend, group_of(request, 8)):
        expected = score(request.prompt_ids, sample.token_ids, request.temperature)
        gaps = [abs(a - b) for a, b in zip(sample.logprobs, expected, strict=True)]
        assert max(gaps) <= tolerance, f"log-probabilities are off by {max(gaps)}"
        assert len(sample.versions) == len(sample.token_ids)
        assert set(sample.versions) == {backend.version}


async def check_seeds(backend: InferenceBackend, request: SampleRequest) -> None:
    """Samples of a group differ, and the same seeds give the same answers again."""
    first = await sample_all(backend, group_of(request, 8))
    again = await sample_all(backend, group_of(request, 8))
    answers = [sample.token_ids for sample in first]
    assert len(set(answers)) > 1, "eight seeds gave one answer"
    assert answers == [sample.token_ids for sample in again], "the same seeds, other answers"


async def check_stop_finish(backend: InferenceBackend, request: SampleRequest) -> None:
    """A stop token ends an answer, is its last token, and comes nowhere else in it."""
    samples = await sample_all(backend, group_of(request, 16))
    stopped = [sample for sample in samples if sample.finish is FinishReason.STOP]
    assert stopped, "no answer met a stop token"
    for sample in stopped:
        assert sample.token_ids[-1] in request.stop_ids
        assert not set(sample.token_ids[:-1]) & set(request.stop_ids)


async def check_length_finish(backend: InferenceBackend, request: SampleRequest) -> None:
    """Without a stop token an answer has exactly as many tokens as it may."""
    endless = replace(request, stop_ids=(), max_new_tokens=7)
    for sample in await sample_all(backend, group_of(endless, 4)):
        assert sample.finish is FinishReason.LENGTH
        assert len(sample.token_ids) == len(sample.logprobs) == 7


async def check_holding(backend: InferenceBackend, request: SampleRequest) -> None:
    """No answer ends while decoding is held, and every one ends after it."""
    endless = replace(request, stop_ids=())
    tasks = [asyncio.create_task(backend.sample(one)) for one in group_of(endless, 4)]
    async with asyncio.timeout(_WITHIN_S):
        while (await backend.read_load()).running == 0:
            await asyncio.sleep(0)
        async with backend.held():
            before = [task.done() for task in tasks]
            done, _ = await asyncio.wait(tasks, timeout=0.2)
            assert [task.done() for task in tasks] == before, "an answer ended while held"
        samples = await asyncio.gather(*tasks)
    assert all(len(sample.token_ids) == request.max_new_tokens for sample in samples)


async def check_cancelling_frees(backend: InferenceBackend, request: SampleRequest) -> None:
    """A cancelled call leaves nothing running, and its neighbors are not disturbed."""
    endless = [replace(one, stop_ids=()) for one in group_of(request, 4)]
    tasks = [asyncio.create_task(backend.sample(one)) for one in endless]
    async with asyncio.timeout(_WITHIN_S):
        while (await backend.read_load()).running == 0:
            await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[:2])
        assert all(isinstance(result, Sample) for result in results[2:])
        load = await backend.read_load()
        while load.running or load.waiting:
            await asyncio.sleep(0)
            load = await backend.read_load()
