"""Pack groups into one batch: plain arrays in safetensors bytes, no padding, no pickle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from safetensors.numpy import save

from astraflow.dataflow.buffer import BufferedGroup
from astraflow.records import FinishReason, GradedSample

__all__ = ["lags", "pack"]


def pack(groups: Sequence[BufferedGroup], *, step: int) -> bytes:
    """
    Lay whole groups end to end.

    Returns:
        Safetensors with, over T tokens and N sequences: ``token_ids [T]`` int32,
        ``behavior_logprobs [T]`` float32 (0 on prompts), ``cu_seqlens [N+1]`` int32,
        ``prompt_tokens [N]`` int32, ``rewards [N]`` float32, ``group_ids [N]`` int32,
        ``min_versions [N]`` int32, ``truncated [N]`` uint8.
    """
    rows = [
        (index, group.group.prompt_ids, sample)
        for index, group in enumerate(groups)
        for sample in group.group.samples
    ]
    lengths = [len(prompt) + len(sample.token_ids) for _, prompt, sample in rows]
    tokens = np.concatenate([_ids(prompt, sample) for _, prompt, sample in rows])
    logprobs = np.concatenate([_logprobs(prompt, sample) for _, prompt, sample in rows])
    return bytes(
        save(
            {
                "token_ids": tokens,
                "behavior_logprobs": logprobs,
                "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
                "prompt_tokens": np.array([len(p) for _, p, _ in rows], np.int32),
                "rewards": np.array([s.reward for _, _, s in rows], np.float32),
                "group_ids": np.array([index for index, _, _ in rows], np.int32),
                "min_versions": np.array([min(s.versions) for _, _, s in rows], np.int32),
                "truncated": np.array(
                    [s.finish is FinishReason.LENGTH for _, _, s in rows], np.uint8
                ),
            },
            metadata={"step": str(step)},
        )
    )


def lags(groups: Sequence[BufferedGroup], *, version: int) -> dict[int, int]:
    """Count samples by lag: versions between their oldest token and the trainer."""
    counts: dict[int, int] = {}
    for group in groups:
        for sample in group.group.samples:
            lag = version - min(sample.versions)
            counts[lag] = counts.get(lag, 0) + 1
    return dict(sorted(counts.items()))


def _ids(prompt: Sequence[int], sample: GradedSample) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([*prompt, *sample.token_ids], np.int32)


def _logprobs(
    prompt: Sequence[int], sample: GradedSample
) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array([*([0.0] * len(prompt)), *sample.logprobs], np.float32)
