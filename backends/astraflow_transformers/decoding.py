"""
Decoding, in two ways.

Continuous: answers of any group and length share a batch; one that ends makes room at once.
Group by group: the samples of one prompt are one batch of fixed size to their common end, so a
sample depends on its request and the weights only; it also serves architectures whose layers
keep a recurrent state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from astraflow.records import PolicyVersion, Sample
from astraflow_transformers.cache import SlotCache
from astraflow_transformers.rows import Job, Rows

__all__ = ["ContinuousDecoder", "Decoder", "GroupDecoder", "takes_continuous"]

Finished = list[tuple[Job, Sample]]

# Prompt tokens in one prefill pass: bounds its activations.
_PREFILL_TOKENS = 8192


class Decoder(Protocol):
    """What the engine's thread drives; all calls come from that thread."""

    @property
    def running(self) -> int:
        """Answers being decoded (count)."""
        ...

    def choose(self, waiting: Sequence[Job], now_s: float) -> tuple[list[Job], float | None]:
        """Return which of the waiting jobs to start now; else when to ask again (s)."""
        ...

    def start(self, jobs: Sequence[Job], version: PolicyVersion) -> Finished:
        """Prefill and draw first tokens."""
        ...

    def step(self, version: PolicyVersion) -> Finished:
        """Draw one more token for every answer."""
        ...

    def drop_cancelled(self) -> None:
        """Free what cancelled jobs hold."""
        ...


def takes_continuous(config: Any) -> bool:
    """True if every layer is plain attention over the whole past."""
    kinds = getattr(config, "layer_types", None) or ("full_attention",)
    return all(kind == "full_attention" for kind in kinds)


class ContinuousDecoder:
    """
    One batch that answers join and leave at every step.

    Args:
        model: A causal language model with plain attention only.
        max_batch: Most answers at once (count).
        device: Where the model is.
    """

    def __init__(self, model: Any, *, max_batch: int, device: torch.device) -> None:
        self._model = model
        self._device = device
        self._max_batch = max_batch
        self._vocabulary = int(model.config.vocab_size)
        self._rows = Rows(max_batch, device)
        self._cache = SlotCache(model.config.num_hidden_layers, max_rows=max_batch)
        self._newest = np.zeros(max_batch, np.int64)
        self._columns = torch.arange(0, device=device)
        self.running = 0

    def choose(self, waiting: Sequence[Job], now_s: float) -> tuple[list[Job], float | None]:
        """Take what fits."""
        return list(waiting[: self._max_batch - self.running]), None

    def start(self, jobs: Sequence[Job], version: PolicyVersion) -> Finished:
        """Prefill each distinct prompt once, those of one length together."""
        by_length: dict[int, dict[tuple[int, ...], list[Job]]] = {}
        for job in jobs:
            prompt = job.request.prompt_ids
            by_length.setdefault(len(prompt), {}).setdefault(prompt, []).append(job)
        finished: Finished = []
        for length, prompts in by_length.items():
            items = list(prompts.items())
            size = max(1, _PREFILL_TOKENS // length)
            for at in range(0, len(items), size):
                finished += self._prefill(items[at : at + size], version)
        return finished

    def step(self, version: PolicyVersion) -> Finished:
        """Add one token to every row."""
        count = self.running
        positions = self._rows.positions(count)
        longest = int(positions.max()) + 1
        if longest > len(self._columns):
            self._columns = torch.arange(2 * longest, device=self._device)
        position = torch.from_numpy(positions).to(self._device)
        self._cache.begin(position, longest)
        mask = self._columns[:longest] <= position[:, None]
        logits = self._model(
            input_ids=torch.from_numpy(self._newest[:count, None]).to(self._device),
            position_ids=position[:, None],
            attention_mask=mask[:, None, None, :],
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]
        return self._note(np.arange(count), logits, version)

    def drop_cancelled(self) -> None:
        """Free the rows of cancelled jobs."""
        gone = [
            row
            for row, job in enumerate(self._rows.jobs[: self.running])
            if job is not None and job.cancelled
        ]
        for row in sorted(gone, reverse=True):
            self._rows.drop(row)
            self._close_gap(row)

    def _prefill(
        self, prompts: Sequence[tuple[tuple[int, ...], list[Job]]], version: PolicyVersion
    ) -> Finished:
        out = self._model(
            input_ids=torch.tensor([prompt for prompt, _ in prompts], device=self._device),
            use_cache=True,
            logits_to_keep=1,
        )
        rows: list[int] = []
        which: list[int] = []
        for index, (_, jobs) in enumerate(prompts):
            for job in jobs:
                self._rows.place(self.running, job, vocabulary=self._vocabulary)
                rows.append(self.running)
                which.append(index)
                self.running += 1
        chosen = torch.tensor(which, device=self._device)
        at = torch.tensor(rows, device=self._device)
        self._cache.write(at, out.past_key_values, chosen)
        return self._note(np.array(rows), out.logits[:, -1][chosen], version)

    def _note(self, rows: NDArray[np.int64], logits: Tensor, version: PolicyVersion) -> Finished:
        tokens, ended = self._rows.draw(rows, logits, version)
        self._newest[rows] = tokens
        finished = []
        for row in sorted(ended.tolist(), reverse=True):
            finished.append(self._rows.finish(row))
            self._close_gap(row)
        return finished

    def _close_gap(self, row: int) -> None:
        """Move the last row into an emptied one: rows in use stay the first ones."""
        self.running -= 1
        if row != self.running:
            self._rows.move(self.running, row)
            self._cache.move(self.running, row)
            self._newest[row] = self._newest[self.running]


class GroupDecoder:
    """
    Whole groups to their common end, the batch never shrinking.

    With ``max_batch`` 1 that is one group at a time: the shapes of every pass depend on the group
    alone, so the same request under the same weights gives the same bits, whatever else waits. A
    larger ``max_batch`` joins groups whose prompts have the same length, so that there is still no
    padding. A group of which only some requests come, as when one is tried again, is filled up
    with copies.

    Args:
        model: Any causal language model.
        device: Where it is.
        max_batch: Answers that groups may be joined up to; a single group may have more (count).
    """

    def __init__(self, model: Any, *, device: torch.device, max_batch: int) -> None:
        self._model = model
        self._device = device
        self._max_batch = max_batch
        self._vocabulary = int(model.config.vocab_size)
        self._rows = Rows(0, device)
        self._cache: Any = None
        self._position = 0
        self._newest = np.zeros(0, np.int64)
        self.running = 0

    # Requests of a group are sent together; a lone one does not wait longer for the rest.
    _GRACE_S = 0.05

    def choose(self, waiting: Sequence[Job], now_s: float) -> tuple[list[Job], float | None]:
        """Take the oldest group that is whole, or has waited for its rest, and what may join."""
        if self.running or not waiting:
            return [], None
        groups: dict[str, list[Job]] = {}
        for job in waiting:
            groups.setdefault(job.request.group_id, []).append(job)
        chosen: list[Job] = []
        for jobs in groups.values():
            whole = len(jobs) >= jobs[0].request.group_size
            if not whole and now_s - jobs[0].arrived_s < self._GRACE_S:
                continue
            if not chosen or self._may_join(chosen, jobs):
                chosen += jobs
        if chosen:
            return chosen, None
        oldest = min(jobs[0].arrived_s for jobs in groups.values())
        return [], max(oldest + self._GRACE_S - now_s, 0.001)

    def start(self, jobs: Sequence[Job], version: PolicyVersion) -> Finished:
        """Prefill each group's prompt once and give every sample a copy of its state."""
        groups: dict[str, list[Job]] = {}
        # In the order of their seeds, so that the order of arrival does not matter.
        for job in sorted(jobs, key=lambda job: job.request.seed):
            groups.setdefault(job.request.group_id, []).append(job)
        prompts = [group[0].request.prompt_ids for group in groups.values()]
        sizes = [max(len(g), g[0].request.group_size) for g in groups.values()]
        out = self._model(
            input_ids=torch.tensor(prompts, device=self._device),
            use_cache=True,
            logits_to_keep=1,
        )
        owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        owner = owner.to(self._device)
        self._cache = out.past_key_values
        self._cache.reorder_cache(owner)
        self._position = len(prompts[0])
        self._rows = Rows(sum(sizes), self._device)
        first = 0
        for group, size in zip(groups.values(), sizes, strict=True):
            for row, job in enumerate(group, start=first):
                self._rows.place(row, job, vocabulary=self._vocabulary)
            first += size
        self.running = len(jobs)
        return self._note(out.logits[:, -1][owner], version)

    def step(self, version: PolicyVersion) -> Finished:
        """Add one token to every sample of the group."""
        size = len(self._newest)
        logits = self._model(
            input_ids=torch.from_numpy(self._newest[:, None]).to(self._device),
            position_ids=torch.full((size, 1), self._position, device=self._device),
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]
        self._position += 1
        return self._note(logits, version)

    def _may_join(self, chosen: Sequence[Job], jobs: Sequence[Job]) -> bool:
        fits = len(chosen) + jobs[0].request.group_size <= self._max_batch
        return fits and len(jobs[0].request.prompt_ids) == len(chosen[0].request.prompt_ids)

    def drop_cancelled(self) -> None:
        """Forget cancelled jobs; the batch keeps its shape."""
        for row, job in enumerate(self._rows.jobs):
            if job is not None and job.cancelled:
                self._rows.drop(row)
                self.running -= 1

    def _note(self, logits: Tensor, version: PolicyVersion) -> Finished:
        rows = np.arange(len(self._rows.jobs))
        self._newest, ended = self._rows.draw(rows, logits, version)
        finished = [self._rows.finish(row) for row in ended.tolist()]
        self.running -= len(finished)
        if not self.running:
            self._cache = None
        return finished
