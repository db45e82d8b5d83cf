"""
SlotCache: keys and values of many sequences at different lengths, one slot a sequence.

The slots in use are always the first ones: when a sequence ends, the last one moves into its
slot. So attention reads a view of the buffers, never a gathered copy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

__all__ = ["SlotCache"]


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc] # transformers ships no types
    """One layer's buffers: ``[slots, heads, length, head_dim]``."""

    is_sliding = False
    is_compileable = False

    def __init__(self) -> None:
        super().__init__()
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.rows: Tensor = torch.zeros(0, dtype=torch.int64)
        self.positions: Tensor = torch.zeros(0, dtype=torch.int64)
        self.length = 0
        self.prefill: tuple[Tensor, Tensor] | None = None
        self.prefilling = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the cache makes the buffers when it knows the slots."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write one token a row at its own position, or keep a prefill's states aside."""
        if self.prefilling:
            self.prefill = (key_states, value_states)
            return key_states, value_states
        assert self.keys is not None
        assert self.values is not None
        self.keys[self.rows, :, self.positions] = key_states[:, :, 0]
        self.values[self.rows, :, self.positions] = value_states[:, :, 0]
        count = len(self.rows)
        return self.keys[:count, :, : self.length], self.values[:count, :, : self.length]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks are made by the batch and passed whole."""
        return self.length, 0

    def get_seq_length(self) -> int:
        """Positions are passed with every call."""
        return 0

    def get_max_cache_shape(self) -> int:
        """No fixed bound."""
        return -1


class SlotCache(Cache):  # type: ignore[misc] # transformers ships no types
    """
    The cache of one batch.

    Args:
        num_layers: Decoder layers (count).
        slots: Sequences at once (count).
    """

    def __init__(self, num_layers: int, *, slots: int) -> None:
        self._slot_layers = [_SlotLayer() for _ in range(num_layers)]
        super().__init__(layers=self._slot_layers)
        self._slots = slots

    def start_prefill(self) -> None:
        """Have the next forward pass kept aside, for :meth:`place`."""
        for layer in self._slot_layers:
            layer.prefilling = True

    def place(self, source: Tensor, slots: Tensor, lengths: int) -> None:
        """
        Copy prefilled sequences into slots.

        Args:
            source: ``[count]`` int64, row of the prefill that each slot takes.
            slots: ``[count]`` int64.
            lengths: Tokens of the prefill, padding included (tokens).
        """
        for layer in self._slot_layers:
            assert layer.prefill is not None
            keys, values = layer.prefill
            self._grow(layer, keys, lengths)
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys[slots, :, :lengths] = keys[source]
            layer.values[slots, :, :lengths] = values[source]
            layer.prefill = None
            layer.prefilling = False

    def start_step(self, rows: Tensor, positions: Tensor, length: int) -> None:
        """
        Say where the next forward pass writes.

        Args:
            rows: ``[rows]`` int64, the slots in use from 0 on.
            positions: ``[rows]`` int64, where each row's token goes.
            length: Positions that attention reads, at least the largest plus 1 (tokens).
        """
        for layer in self._slot_layers:
            self._grow(layer, layer.keys, length)
            layer.rows, layer.positions, layer.length = rows, positions, length

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy whole slots, ``source[i]`` to ``target[i]``."""
        for layer in self._slot_layers:
            assert layer.keys is not None
            assert layer.values is not None
            layer.keys[target] = layer.keys[source]
            layer.values[target] = layer.values[source]

    def _grow(self, layer: _SlotLayer, like: Tensor | None, length: int) -> None:
        assert like is not None
        old = 0 if layer.keys is None else layer.keys.shape[2]
        if old >= length:
            return
        # Doubling, so that growing costs no more than the tokens that made it necessary.
        new = max(length, 2 * old, 64)
        shape = (self._slots, like.shape[1], new, like.shape[3])
        for name in ("keys", "values"):
            # Zeros, not empty: masked positions must not hold NaN, which 0 weight does not hide.
            buffer = torch.zeros(shape, dtype=like.dtype, device=like.device)
            before = getattr(layer, name)
            if before is not None:
                buffer[:, :, :old] = before
            setattr(layer, name, buffer)
