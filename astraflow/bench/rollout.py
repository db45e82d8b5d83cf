"""Sampling through a rollout instance against the bare engine, in one run."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astraflow.interfaces import InferenceBackend
from astraflow.raas.service import build_engine, build_workflow
from astraflow.recipe.models import local_path
from astraflow.recipe.schema import Recipe
from astraflow.records import Prompt, Sample, SampleRequest
from astraflow.wire.messages import Lease

__all__ = ["measure_rollout"]


def measure_rollout(recipe: Recipe, *, concurrent: int, answers: int) -> dict[str, Any]:
    """
    Sample the same number of answers both ways, twice in turns.

    Args:
        recipe: Says which engine, workflow and reward; answers have its longest length.
        concurrent: Answers in flight (count).
        answers: Answers of each turn (count).
    """
    model = recipe.model.model_copy(update={"path": local_path(recipe.model.path)})
    located = recipe.model_copy(update={"model": model})
    return asyncio.run(_measure(located, concurrent, answers))


async def _measure(recipe: Recipe, concurrent: int, answers: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "logs").mkdir()
        gpus = tuple(range(recipe.rollout.gpus))
        engine = build_engine(recipe, gpus=gpus, run_folder=Path(folder), run_id="bench")
        try:
            await engine.start(within_s=recipe.limits.ready_s)
            turns = []
            # The first turn warms up.
            for _ in range(3):
                recorder = _Recorder(engine)
                through = await _through_raas(recorder, recipe, concurrent, answers)
                turns.append((await _bare(engine, recorder.requests, concurrent), through))
        finally:
            await engine.close()
    bare = sum(a for a, _ in turns[1:]) / 2
    through = sum(b for _, b in turns[1:]) / 2
    return {
        "backend": recipe.rollout.backend,
        "concurrent": concurrent,
        "answer_tokens": recipe.rollout.max_new_tokens,
        "bare_tokens_per_s": bare,
        "raas_tokens_per_s": through,
        "raas_frac": through / bare,
        "turns": turns,
    }


class _Recorder:
    """
    An engine that also keeps what it was asked for.

    Args:
        engine: What samples.
    """

    def __init__(self, engine: InferenceBackend) -> None:
        self._engine = engine
        self.requests: list[SampleRequest] = []

    async def sample(self, request: SampleRequest) -> Sample:
        """Sample one answer."""
        self.requests.append(request)
        return await self._engine.sample(request)


async def _bare(
    engine: InferenceBackend, requests: Sequence[SampleRequest], concurrent: int
) -> float:
    """Ask the engine alone for the same answers."""

    async def sample(number: int) -> int:
        request = replace(requests[number], request_id=f"bare-{requests[number].request_id}")
        return len((await engine.sample(request)).token_ids)

    return await _rate(sample, range(len(requests)), concurrent)


async def _through_raas(
    recorder: _Recorder, recipe: Recipe, concurrent: int, answers: int
) -> float:
    group = recipe.rollout.samples_per_prompt
    async with build_workflow(recipe, recorder) as workflow:

        async def run(number: int) -> int:
            lease = Lease(
                lease_id=f"lease-{number}-{time.monotonic_ns()}",
                prompt=Prompt(
                    id=str(number), problem=f"{number} + {number} = ?", answer=str(2 * number)
                ),
                purpose="train",
                position=number,
                samples=group,
                seed=number,
                max_new_tokens=recipe.rollout.max_new_tokens,
                temperature=recipe.rollout.temperature,
            )
            finished = await workflow.run(lease)
            return sum(len(sample.token_ids) for sample in finished.samples)

        return await _rate(run, range(answers // group), max(concurrent // group, 1))


async def _rate(work: Callable[[int], Awaitable[int]], numbers: range, concurrent: int) -> float:
    """Work on all numbers, some at a time; return tokens a second."""
    slots = asyncio.Semaphore(concurrent)

    async def one(number: int) -> int:
        async with slots:
            return await work(number)

    started = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(one, numbers)))
    return tokens / (time.perf_counter() - started)
