"""Rows: the answers being decoded, as arrays, so that a step costs no Python loop over them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow.records import FinishReason, PolicyVersion, Sample, SampleRequest
from astraflow_transformers.sampling import draw

__all__ = ["Job", "Rows"]


@dataclass(eq=False, slots=True)
class Job:
    """One request and who waits for it."""

    request: SampleRequest
    future: asyncio.Future[Sample]
    arrived_s: float
    cancelled: bool = field(default=False)


class Rows:
    """
    State of up to ``capacity`` answers.

    Args:
        capacity: Rows (count).
        device: Where logits are.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._device = device
        self.jobs: list[Job | None] = [None] * capacity
        self._columns = 0
        # [capacity, columns]
        self._uniform = np.zeros((capacity, 0), np.float64)
        self._tokens = np.zeros((capacity, 0), np.int64)
        self._logprobs = np.zeros((capacity, 0), np.float32)
        self._versions = np.zeros((capacity, 0), np.int64)
        # [capacity]
        self._produced = np.zeros(capacity, np.int64)
        self._prompt = np.zeros(capacity, np.int64)
        self._limit = np.ones(capacity, np.int64)
        self._temperature = np.ones(capacity, np.float32)
        self._top_p = np.ones(capacity, np.float64)
        self._stop_set = np.zeros(capacity, np.int64)
        self._active = np.zeros(capacity, np.bool_)
        self._stop_sets: dict[tuple[int, ...], int] = {}
        self._stops = np.zeros((0, 0), np.bool_)

    def place(self, row: int, job: Job, *, vocabulary: int) -> None:
        """Start an answer in a row."""
        request = job.request
        self._widen(request.max_new_tokens)
        # Philox by seed: an answer's numbers depend on its request alone.
        numbers = np.random.Generator(np.random.Philox(request.seed))
        self._uniform[row, : request.max_new_tokens] = numbers.random(request.max_new_tokens)
        self.jobs[row] = job
        self._produced[row] = 0
        self._prompt[row] = len(request.prompt_ids)
        self._limit[row] = request.max_new_tokens
        self._temperature[row] = request.temperature
        self._top_p[row] = request.top_p
        self._stop_set[row] = self._stop_index(request.stop_ids, vocabulary)
        self._active[row] = True

    def draw(
        self, rows: NDArray[np.int64], logits: Tensor, version: PolicyVersion
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """
        Draw and note the next token of each row.

        Args:
            rows: ``[n]`` row numbers.
            logits: ``[n, vocabulary]``.
            version: What the logits were computed with.

        Returns:
            ``[n]`` tokens; the row numbers of active rows whose answers ended.
        """
        at = np.minimum(self._produced[rows], self._columns - 1)
        top_p = self._top_p[rows]
        drawn, logprobs = draw(
            logits,
            temperature=self._to_device(self._temperature[rows]),
            uniform=self._to_device(self._uniform[rows, at]),
            top_p=self._to_device(top_p) if (top_p < 1).any() else None,
        )
        tokens: NDArray[np.int64] = drawn.cpu().numpy()
        active = self._active[rows]
        noted, column = rows[active], at[active]
        self._tokens[noted, column] = tokens[active]
        self._logprobs[noted, column] = logprobs.cpu().numpy()[active]
        self._versions[noted, column] = version
        self._produced[noted] += 1
        stopped = self._stops[self._stop_set[noted], tokens[active]]
        ended = stopped | (self._produced[noted] >= self._limit[noted])
        return tokens, noted[ended]

    def positions(self, count: int) -> NDArray[np.int64]:
        """Return ``[count]`` positions of the newest tokens of the first ``count`` rows."""
        newest: NDArray[np.int64] = self._prompt[:count] + self._produced[:count] - 1
        return newest

    def finish(self, row: int) -> tuple[Job, Sample]:
        """Empty a row whose answer ended and return what it holds."""
        job = self.jobs[row]
        assert job is not None
        count = int(self._produced[row])
        tokens = self._tokens[row, :count].tolist()
        stopped = bool(self._stops[self._stop_set[row], tokens[-1]])
        sample = Sample(
            token_ids=tuple(tokens),
            logprobs=tuple(self._logprobs[row, :count].tolist()),
            versions=tuple(map(PolicyVersion, self._versions[row, :count].tolist())),
            finish=FinishReason.STOP if stopped else FinishReason.LENGTH,
        )
        self.drop(row)
        return job, sample

    def drop(self, row: int) -> None:
        """Empty a row."""
        self.jobs[row] = None
        self._active[row] = False

    def move(self, source: int, target: int) -> None:
        """Move an answer to an empty row."""
        self.jobs[target], self.jobs[source] = self.jobs[source], None
        arrays: Sequence[NDArray[Any]] = (
            *(self._uniform, self._tokens, self._logprobs, self._versions, self._produced),
            *(self._prompt, self._limit, self._temperature, self._top_p, self._stop_set),
            self._active,
        )
        for array in arrays:
            array[target] = array[source]
        self._active[source] = False

    def _widen(self, columns: int) -> None:
        if columns <= self._columns:
            return
        extra = ((0, 0), (0, columns - self._columns))
        self._uniform = np.pad(self._uniform, extra)
        self._tokens = np.pad(self._tokens, extra)
        self._logprobs = np.pad(self._logprobs, extra)
        self._versions = np.pad(self._versions, extra)
        self._columns = columns

    def _stop_index(self, stop_ids: tuple[int, ...], vocabulary: int) -> int:
        """Return the line of the table of stop tokens for this set; requests share few sets."""
        if stop_ids not in self._stop_sets:
            line = np.zeros((1, vocabulary), np.bool_)
            line[0, [token for token in stop_ids if token < vocabulary]] = True
            self._stops = np.concatenate([self._stops.reshape(-1, vocabulary), line])
            self._stop_sets[stop_ids] = len(self._stops) - 1
        return self._stop_sets[stop_ids]

    def _to_device(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
