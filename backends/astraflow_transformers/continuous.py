"""ContinuousBatch: sequences join and leave between two decode steps (plain attention only)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from astraflow_transformers.sampling import draw
from astraflow_transformers.sequences import Sequence
from astraflow_transformers.slots import SlotCache

__all__ = ["ContinuousBatch"]

# Attention reads a length that grows in steps, so that masks are rebuilt seldom.
_LENGTH_STEP = 16


class ContinuousBatch:
    """
    Up to ``max_batch`` sequences decoded together.

    Args:
        model: A causal LM of transformers whose layers all attend fully.
        max_batch: Sequences at once (count).
    """

    def __init__(self, model: Any, *, max_batch: int) -> None:
        self._model = model
        self._device = model.device
        self._cache = SlotCache(model.config.get_text_config().num_hidden_layers, slots=max_batch)
        self._max_batch = max_batch
        self._sequences: list[Sequence] = []
        self._tokens = torch.zeros(max_batch, dtype=torch.int64, device=self._device)
        self._positions = torch.zeros(max_batch, dtype=torch.int64, device=self._device)
        self._drawn = torch.zeros(max_batch, dtype=torch.int64)
        self._temperatures = torch.zeros(max_batch, device=self._device)
        self._top_ps = torch.ones(max_batch, device=self._device)
        self._uniform = torch.zeros((max_batch, 1), dtype=torch.float64)

    @property
    def running(self) -> int:
        """Sequences in the batch (count)."""
        return len(self._sequences)

    @property
    def cache_used_frac(self) -> float:
        """Share of the slots in use."""
        return self.running / self._max_batch

    def admit(self, waiting: list[Sequence], version: int) -> list[Sequence]:
        """
        Prefill what fits and draw its first tokens; return the sequences that were taken.

        Samples of one prompt share one prefill.
        """
        free = self._max_batch - self.running
        taken = waiting[:free]
        if not taken:
            return []
        prompts = list(dict.fromkeys(sequence.request.prompt_ids for sequence in taken))
        source = {prompt: row for row, prompt in enumerate(prompts)}
        rows = torch.tensor([source[s.request.prompt_ids] for s in taken], device=self._device)
        logits, length = self._prefill(prompts)
        slots = torch.arange(self.running, self.running + len(taken), device=self._device)
        self._cache.place(rows, slots, length)
        first = slice(self.running, self.running + len(taken))
        self._enter(taken, first)
        self._sequences += taken
        self._draw(logits[rows], first, version)
        return taken

    def step(self, version: int) -> None:
        """Decode one token of every sequence; finished and cancelled ones leave."""
        self._leave()
        count = self.running
        if not count:
            return
        positions = self._positions[:count]
        length = int(positions.max()) + 1
        length += -length % _LENGTH_STEP
        mask = torch.arange(length, device=self._device)[None, :] <= positions[:, None]
        self._cache.start_step(torch.arange(count, device=self._device), positions, length)
        output = self._model(
            input_ids=self._tokens[:count, None],
            attention_mask=mask[:, None, None, :],
            position_ids=positions[:, None],
            past_key_values=self._cache,
            use_cache=True,
        )
        self._positions[:count] += 1
        self._draw(output.logits[:, -1], slice(0, count), version)

    def drain(self) -> list[Sequence]:
        """Take every sequence out, for an engine that failed."""
        taken, self._sequences = self._sequences, []
        return taken

    def _prefill(self, prompts: list[tuple[int, ...]]) -> tuple[Tensor, int]:
        """Return the last token's logits ``[prompts, vocab]`` and the padded length (tokens)."""
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self._device)
        longest = int(lengths.max())
        ids = torch.zeros((len(prompts), longest), dtype=torch.int64, device=self._device)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = torch.tensor(prompt, device=self._device)
        at = torch.arange(longest, device=self._device)
        # Right padding: a causal mask alone keeps the padding out of every real position.
        causal = at[None, :] <= at[:, None]
        self._cache.start_prefill()
        output = self._model.base_model(
            input_ids=ids,
            attention_mask=causal[None, None].expand(len(prompts), 1, longest, longest),
            position_ids=at[None, :].expand(len(prompts), -1),
            past_key_values=self._cache,
            use_cache=True,
        )
        last = output.last_hidden_state[torch.arange(len(prompts)), lengths - 1]
        return self._model.lm_head(last), longest

    def _enter(self, taken: list[Sequence], rows: slice) -> None:
        self._positions[rows] = torch.tensor([len(s.request.prompt_ids) for s in taken])
        self._drawn[rows] = 0
        self._temperatures[rows] = torch.tensor([s.request.temperature for s in taken])
        self._top_ps[rows] = torch.tensor([s.request.top_p for s in taken])
        longest = max(len(sequence.uniform) for sequence in taken)
        if longest > self._uniform.shape[1]:
            grown = torch.zeros((self._max_batch, longest), dtype=torch.float64)
            grown[:, : self._uniform.shape[1]] = self._uniform
            self._uniform = grown
        for row, sequence in enumerate(taken, start=rows.start):
            self._uniform[row, : len(sequence.uniform)] = sequence.uniform

    def _draw(self, logits: Tensor, rows: slice, version: int) -> None:
        count = rows.stop - rows.start
        uniform = self._uniform[rows][torch.arange(count), self._drawn[rows]]
        top_ps = self._top_ps[rows]
        tokens, logprobs = draw(
            logits,
            self._temperatures[rows],
            top_ps if bool((top_ps < 1).any()) else None,
            uniform.to(self._device),
        )
        self._tokens[rows] = tokens
        self._drawn[rows] += 1
        drawn = zip(
            self._sequences[rows], tokens.tolist(), logprobs.tolist(), strict=True
        )
        for sequence, token, logprob in drawn:
            if sequence.take(token, logprob, version):
                sequence.finish()
                sequence.cancelled = True  # leaves before the next step

    def _leave(self) -> None:
        """Take finished rows out and close the gaps with rows from the end."""
        staying = [row for row, s in enumerate(self._sequences) if not s.cancelled]
        if len(staying) == self.running:
            return
        count = len(staying)
        source = [row for row in staying if row >= count]
        target = sorted(set(range(count)) - set(staying))
        if source:
            from_rows, to_rows = torch.tensor(source), torch.tensor(target)
            self._cache.move(from_rows.to(self._device), to_rows.to(self._device))
            for state in (
                self._tokens, self._positions, self._drawn, self._temperatures, self._top_ps,
                self._uniform,
            ):  # fmt: skip
                state[to_rows.to(state.device)] = state[from_rows.to(state.device)]
            for old, new in zip(source, target, strict=True):
                self._sequences[new] = self._sequences[old]
        del self._sequences[count:]
