"""
GroupedBatch: the samples of one prompt are one batch, decoded to the end before the next.

All prompts of a group are the same, so there is no padding and any architecture works, layers
that carry a recurrent state included. And a sample depends on its request and the weights only,
never on what else happens to run: this is the mode that reproduces bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from astraflow_transformers.sampling import draw
from astraflow_transformers.sequences import Sequence

__all__ = ["GroupedBatch"]


class GroupedBatch:
    """
    One group at a time.

    Args:
        model: A causal LM of transformers, of any architecture.
        max_batch: Sequences of one group at most (count).
    """

    def __init__(self, model: Any, *, max_batch: int) -> None:
        self._model = model
        self._device = model.device
        self._max_batch = max_batch
        self._sequences: list[Sequence] = []
        self._cache: Any = None
        self._tokens: Tensor = torch.zeros(0, dtype=torch.int64)

    @property
    def running(self) -> int:
        """Sequences in the batch (count)."""
        return len(self._sequences)

    @property
    def cache_used_frac(self) -> float:
        """Share of the batch in use."""
        return self.running / self._max_batch

    def admit(self, waiting: list[Sequence], version: int) -> list[Sequence]:
        """Take the next whole group when the last one is done; return what was taken."""
        if self._sequences or not waiting:
            return []
        group = _first_whole_group(waiting)
        if not group:
            return []
        prompt = torch.tensor([group[0].request.prompt_ids], device=self._device)
        self._cache = DynamicCache(config=self._model.config)
        output = self._model(
            input_ids=prompt, past_key_values=self._cache, use_cache=True, logits_to_keep=1
        )
        # In the order of their requests, whatever order they arrived in.
        self._sequences = sorted(group, key=lambda sequence: sequence.request.request_id)
        self._cache.batch_repeat_interleave(len(group))
        self._draw(output.logits[:, -1].expand(len(group), -1), version)
        return group

    def step(self, version: int) -> None:
        """Decode one token of every sequence; the group leaves when all are done."""
        if all(sequence.cancelled for sequence in self._sequences):
            self._sequences = []
            return
        output = self._model(
            input_ids=self._tokens[:, None], past_key_values=self._cache, use_cache=True
        )
        self._draw(output.logits[:, -1], version)

    def drain(self) -> list[Sequence]:
        """Take every sequence out, for an engine that failed."""
        taken, self._sequences = self._sequences, []
        return taken

    def _draw(self, logits: Tensor, version: int) -> None:
        """Draw for every row, finished ones too: the batch's shape must not depend on luck."""
        sequences = self._sequences
        at = [min(len(s.token_ids), len(s.uniform) - 1) for s in sequences]
        uniform = torch.stack([s.uniform[i] for s, i in zip(sequences, at, strict=True)])
        top_ps = torch.tensor([s.request.top_p for s in sequences], device=self._device)
        temperatures = torch.tensor([s.request.temperature for s in sequences])
        tokens, logprobs = draw(
            logits,
            temperatures.to(self._device),
            top_ps if bool((top_ps < 1).any()) else None,
            uniform.to(self._device),
        )
        self._tokens = tokens
        rows = zip(sequences, tokens.tolist(), logprobs.tolist(), strict=True)
        for sequence, token, logprob in rows:
            if not sequence.cancelled and sequence.take(token, logprob, version):
                sequence.finish()
                sequence.cancelled = True


def _first_whole_group(waiting: list[Sequence]) -> list[Sequence]:
    """Return the samples of the first group of which all have arrived."""
    groups: dict[str, list[Sequence]] = {}
    for sequence in waiting:
        groups.setdefault(sequence.request.group_id, []).append(sequence)
    for group in groups.values():
        if len(group) >= group[0].request.group_size:
            return group
    return []
