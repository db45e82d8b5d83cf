"""One trainer rank's speed: tokens a second, share of peak, peak memory."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from astraflow.bench.models import model_folder
from astraflow.interfaces import TrainerBackend, TrainerContext
from astraflow.plugins import build_plugin, load_plugin
from astraflow.recipe.schema import OptimizerSection
from astraflow.records import TrainBatch

__all__ = ["measure_trainer", "peak_flops"]

# Dense bfloat16, as the makers state it (FLOP/s).
_PEAKS = {"H100": 989e12, "H200": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12}


def peak_flops(name: str) -> float | None:
    """Return a GPU's stated dense bfloat16 rate (FLOP/s); None for an unknown one."""
    return next((peak for key, peak in _PEAKS.items() if key in name), None)


def measure_trainer(
    *,
    model: str,
    settings: dict[str, Any],
    tokens: int,
    longest: int,
    steps: int,
    master_dtype: str,
    device: str,
) -> dict[str, Any]:
    """
    Measure whole optimizer steps on one packed micro-batch.

    Args:
        model: A folder with weights, or a known hub id, which gets random ones.
        settings: The fsdp adapter's settings.
        tokens: Tokens of the micro-batch (tokens).
        longest: Longest sequence in it (tokens).
        steps: Steps measured after three that warm up (count).
        master_dtype: ``float32`` or ``bfloat16``.
        device: ``cpu`` or ``cuda``.

    Raises:
        RecipeError: the model is unknown.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, facts = model_folder(model, Path(scratch))
        plugin = load_plugin("trainer_backends", "fsdp")
        context = TrainerContext(
            model_path=str(folder),
            dtype="bfloat16" if device == "cuda" else "float32",
            master_dtype=master_dtype,
            optimizer=OptimizerSection(lr=1e-6),
            total_updates=1000,
            tokens_per_microbatch=tokens,
            temperature=1.0,
            needs_reference=False,
            settings=plugin.settings.model_validate(settings),
            seed=1,
            device=device,
        )
        backend: TrainerBackend = build_plugin(plugin, context)
    batch = _batch(tokens, longest, facts.vocab)
    seconds = []
    try:
        for number in range(steps + 3):
            if device == "cuda" and number == 3:  # noqa: PLR2004 - after the warm-up
                torch.cuda.reset_peak_memory_stats()
            seconds.append(_step(backend, batch))
    finally:
        backend.close()
    step_s = statistics.median(seconds[3:])
    parameters = facts.num_parameters
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    peak = peak_flops(name)
    flops = 6 * parameters * tokens / step_s
    return {
        "model": model,
        "params": parameters,
        "device": name,
        "settings": settings,
        "master_dtype": master_dtype,
        "tokens": tokens,
        "longest_tokens": longest,
        "step_s": step_s,
        "first_step_s": seconds[0],
        "tokens_per_s": tokens / step_s,
        "model_flops_per_s": flops,
        "peak_frac": flops / peak if peak else None,
        "formula": "6 x params x tokens / step_s / peak, optimizer step included",
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if device == "cuda" else None,
    }


def _step(backend: TrainerBackend, batch: TrainBatch) -> float:
    total = int(batch.answer_mask.sum())

    def loss(logprobs: torch.Tensor, micro: TrainBatch) -> tuple[torch.Tensor, dict[str, Any]]:
        return -(logprobs * micro.advantages).sum() / total, {}

    started = time.perf_counter()
    report = backend.step(batch, loss)
    assert not report.skipped
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _batch(tokens: int, longest: int, vocabulary: int) -> TrainBatch:
    """Pack sequences from a quarter of the longest length up, an eighth of each a prompt."""
    generator = torch.Generator().manual_seed(0)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        drawn = int(torch.randint(longest // 4, longest + 1, (1,), generator=generator))
        lengths.append(min(drawn, tokens - sum(lengths)))
    ends = torch.tensor([0, *lengths]).cumsum(0)
    answers = torch.ones(tokens, dtype=torch.bool)
    for start, length in zip(ends[:-1].tolist(), lengths, strict=True):
        answers[start : start + max(length // 8, 1)] = False
    return TrainBatch(
        token_ids=torch.randint(0, vocabulary, (tokens,), generator=generator),
        cu_seqlens=ends.to(torch.int32),
        answer_mask=answers,
        behavior_logprobs=torch.zeros(tokens),
        advantages=torch.randn(tokens, generator=generator) * answers,
    )
