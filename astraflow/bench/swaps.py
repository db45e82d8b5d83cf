"""New versions into an engine that is sampling: how long it stands still, and what it loses."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from astraflow.bench.models import model_folder
from astraflow.bench.weights import Trained
from astraflow.errors import AstraFlowError
from astraflow.interfaces import InferenceBackend, InferenceContext
from astraflow.plugins import build_plugin, load_plugin
from astraflow.records import PolicyVersion, SampleRequest
from astraflow.weights import TcpPublisher, TcpReceiver

__all__ = ["Load", "measure_swaps", "run_swaps"]


@dataclass
class Load:
    """
    A number of requests that is kept constant.

    Args:
        engine: Where they go.
        concurrent: Requests in flight (count).
        prompt_tokens: Of each (tokens).
        answer_tokens: Of each on average, from half to one and a half of it (tokens).
        vocabulary: Token ids to draw prompts from (count).
    """

    engine: InferenceBackend
    concurrent: int
    prompt_tokens: int
    answer_tokens: int
    vocabulary: int
    tokens: int = 0
    answers: int = 0
    mixed: int = 0
    failures: list[str] = field(default_factory=list)
    _number: int = 0

    async def run(self, *, until: asyncio.Event) -> None:
        """Keep requests in flight until told to stop; cancel those that are left."""
        tasks = [asyncio.create_task(self._loop()) for _ in range(self.concurrent)]
        await until.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _loop(self) -> None:
        while True:
            self._number += 1
            number = self._number
            request = SampleRequest(
                request_id=f"bench-{number}",
                group_id=f"bench-{number}",
                group_size=1,
                prompt_ids=tuple(
                    (number * 7919 + k * 104729) % self.vocabulary
                    for k in range(self.prompt_tokens)
                ),
                max_new_tokens=self.answer_tokens // 2 + number * 7919 % self.answer_tokens,
                temperature=1.0,
                seed=number,
                stop_ids=(),
            )
            try:
                sample = await self.engine.sample(request)
            except AstraFlowError as error:
                self.failures.append(str(error))
                continue
            self.tokens += len(sample.token_ids)
            self.answers += 1
            self.mixed += len(set(sample.versions)) > 1


async def measure_swaps(
    engine: InferenceBackend,
    load: Load,
    trained: Trained,
    *,
    swaps: int,
    every_s: float,
    mode: str,
) -> dict[str, Any]:
    """
    Swap versions under load and return every figure.

    Args:
        engine: Started.
        load: What it samples meanwhile.
        trained: Weights at the version that the engine holds.
        swaps: Versions to install (count).
        every_s: From one publication to the next (s).
        mode: ``delta`` or ``full``.
    """
    publisher = TcpPublisher(
        run_id="bench", token="bench", rank=0, keep_deltas=2 if mode == "delta" else 0
    )
    receiver = TcpReceiver([publisher.address], run_id="bench", token="bench", name="bench")
    stop = asyncio.Event()
    quiet_s = max(swaps * every_s / 2, 1.0)
    start_version = int(engine.version)
    checksum = await _checksum(engine)
    await asyncio.to_thread(publisher.publish, PolicyVersion(start_version), list(trained.shards()))
    runner = asyncio.create_task(load.run(until=stop))
    rows = []
    try:
        await _until_tokens(load, 4 * load.concurrent)
        quiet = await _throughput(load, quiet_s)
        busy_started, busy_tokens = time.perf_counter(), load.tokens
        for number in range(1, swaps + 1):
            began = time.perf_counter()
            rows.append(await _swap(engine, publisher, receiver, trained, start_version + number))
            await asyncio.sleep(max(every_s - (time.perf_counter() - began), 0.0))
        busy = (load.tokens - busy_tokens) / (time.perf_counter() - busy_started)
        quiet_after = await _throughput(load, quiet_s)
        last_checksum = await _checksum(engine)
    finally:
        stop.set()
        await runner
        receiver.close()
        publisher.close()
    held = sorted(row["held_ms"] for row in rows)
    serving = sorted(row["publish_to_serving_ms"] for row in rows)
    return {
        "mode": mode,
        "swaps": swaps,
        "held_ms_median": statistics.median(held),
        "held_ms_p95": held[min(int(0.95 * len(held)), len(held) - 1)],
        "held_ms_max": held[-1],
        "publish_to_serving_ms_median": statistics.median(serving),
        "publish_to_serving_ms_p95": serving[min(int(0.95 * len(serving)), len(serving) - 1)],
        "publish_to_serving_ms_max": serving[-1],
        "trainer_blocked_ms_median": statistics.median(row["blocked_ms"] for row in rows),
        "wire_bytes_median": statistics.median(row["wire_bytes"] for row in rows),
        # Two versions take turns, so an even number of swaps ends where it began.
        "checksum_is_the_first": (
            None if checksum is None or swaps % 2 else last_checksum == checksum
        ),
        "answers": load.answers,
        "answers_of_mixed_versions": load.mixed,
        "failures": len(load.failures),
        "first_failure": load.failures[0] if load.failures else "",
        "tokens_per_s_without": (quiet + quiet_after) / 2,
        "tokens_per_s_with": busy,
        "throughput_frac": busy / ((quiet + quiet_after) / 2),
        "rows": rows,
    }


async def _swap(
    engine: InferenceBackend,
    publisher: TcpPublisher,
    receiver: TcpReceiver,
    trained: Trained,
    version: int,
) -> dict[str, float]:
    await asyncio.to_thread(trained.train)
    started = time.perf_counter()
    report = await asyncio.to_thread(
        publisher.publish, PolicyVersion(version), list(trained.shards())
    )
    update = await receiver.newest(held=PolicyVersion(version - 1))
    fetched = time.perf_counter()
    await engine.prepare(update)
    prepared = time.perf_counter()
    async with engine.held():
        paused = time.perf_counter()
        await engine.install(update)
        installed = time.perf_counter()
    serving = time.perf_counter()
    await receiver.confirm(PolicyVersion(version))
    return {
        "blocked_ms": report.blocked_s * 1000,
        "fetch_ms": (fetched - started) * 1000,
        "prepare_ms": (prepared - fetched) * 1000,
        "pause_ms": (paused - prepared) * 1000,
        "install_ms": (installed - paused) * 1000,
        "resume_ms": (serving - installed) * 1000,
        "held_ms": (serving - prepared) * 1000,
        "publish_to_serving_ms": (serving - started) * 1000,
        "wire_bytes": float(update.wire_bytes),
    }


async def _checksum(engine: InferenceBackend) -> Any:
    """Return the engine's own checksum of its weights; None from one that has none."""
    ask = getattr(engine, "checksums", None)
    return None if ask is None else await ask()


async def _throughput(load: Load, seconds: float) -> float:
    """Count whole answers' tokens over some time (tokens/s)."""
    started, before = time.perf_counter(), load.tokens
    await asyncio.sleep(seconds)
    return (load.tokens - before) / (time.perf_counter() - started)


async def _until_tokens(load: Load, tokens: int) -> None:
    while load.tokens < tokens:
        if load.failures:
            raise AstraFlowError(f"the engine does not sample: {load.failures[0]}")
        await asyncio.sleep(0.05)


def run_swaps(
    *,
    model: str,
    backend: str,
    settings: dict[str, Any],
    concurrent: int,
    answer_tokens: int,
    swaps: int,
    every_s: float,
    changed: float,
    mode: str,
) -> dict[str, Any]:
    """
    Start an engine and swap versions under load.

    Args:
        model: A folder with weights, or a known hub id, which gets random ones.
        backend: Name of an inference adapter.
        settings: Its settings.
        concurrent: Requests in flight (count).
        answer_tokens: Of each (tokens).
        swaps: Versions to install (count).
        every_s: From one publication to the next (s).
        changed: Share of weights that a version changes, 0 to 1.
        mode: ``delta`` or ``full``.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, facts = model_folder(model, Path(scratch))
        plugin = load_plugin("inference_backends", backend)
        gpus = (0,) if torch.cuda.is_available() else ()
        context = InferenceContext(
            model_path=str(folder),
            dtype="bfloat16",
            context_length=2 * answer_tokens + 256,
            settings=plugin.settings.model_validate(settings),
            gpus=gpus,
            tensor_parallel=1,
            data_parallel=1,
            reproducible=False,
            log_folder=Path(scratch),
            run_id="bench",
        )
        engine: InferenceBackend = build_plugin(plugin, context)
        load = Load(
            engine,
            concurrent=concurrent,
            prompt_tokens=64,
            answer_tokens=answer_tokens,
            vocabulary=facts.vocab - 8,
        )
        trained = _load_trained(folder, changed=changed, device="cuda" if gpus else "cpu")
        return asyncio.run(_run(engine, load, trained, swaps=swaps, every_s=every_s, mode=mode))


async def _run(
    engine: InferenceBackend,
    load: Load,
    trained: Trained,
    *,
    swaps: int,
    every_s: float,
    mode: str,
) -> dict[str, Any]:
    try:
        await engine.start(within_s=600.0)
        return await measure_swaps(engine, load, trained, swaps=swaps, every_s=every_s, mode=mode)
    finally:
        await engine.close()


def _load_trained(folder: Path, *, changed: float, device: str) -> Trained:
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file, device=device)
    return Trained({n: t.bfloat16() for n, t in tensors.items()}, changed=changed, seed=1)
