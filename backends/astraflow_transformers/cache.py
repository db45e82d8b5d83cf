"""SlotCache: keys and values of many answers of different lengths, in one buffer a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache

__all__ = ["SlotCache"]

_MORE_TOKENS = 64


class SlotCache(Cache):
    """
    A cache in which each row has its own length.

    Buffers are ``[rows, kv_heads, tokens, width]`` and grow in steps. Rows in use are always
    the first ones, so what attention reads is a view.

    Args:
        num_layers: Decoder layers (count).
        max_rows: Most rows (count).
    """

    def __init__(self, num_layers: int, *, max_rows: int) -> None:
        super().__init__(layers=[])
        self._max_rows = max_rows
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._num_layers = num_layers
        self._row = torch.zeros(0, dtype=torch.int64)
        self._position = torch.zeros(0, dtype=torch.int64)
        self._longest = 0

    def begin(self, positions: Tensor, longest: int) -> None:
        """
        Say where the next pass writes.

        Args:
            positions: ``[rows]`` int64, position of the token that each row adds.
            longest: Tokens of the longest row after it (tokens).
        """
        if longest > self._keys[0].shape[2]:
            self._reserve(self._keys[0].shape[0], longest)
        if len(self._row) != len(positions):
            self._row = torch.arange(len(positions), device=positions.device)
        self._position = positions
        self._longest = longest

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor]:
        """
        Add one token to each row and return all of them.

        Args:
            key_states: ``[rows, kv_heads, 1, width]``.
            value_states: The same.
            layer_idx: The layer.
            args: Not used.
            kwargs: Not used.

        Returns:
            ``[rows, kv_heads, longest, width]`` keys and values; a mask must hide what lies
            behind a row's own end.
        """
        rows = key_states.shape[0]
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._row, :, self._position] = key_states[:, :, 0]
        values[self._row, :, self._position] = value_states[:, :, 0]
        return keys[:rows, :, : self._longest], values[:rows, :, : self._longest]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens before this pass in the longest row (tokens)."""
        return self._longest - 1

    def write(self, rows: Tensor, prefilled: Any, prompts: Tensor) -> None:
        """
        Copy prefilled prompts into rows.

        Args:
            rows: ``[n]`` int64, where to.
            prefilled: A cache with one prompt a row, all of one length.
            prompts: ``[n]`` int64, which prompt each row gets.
        """
        length = prefilled.layers[0].keys.shape[2]
        if not self._keys:
            self._allocate(prefilled)
        needed = int(rows.max()) + 1
        if needed > self._keys[0].shape[0] or length > self._keys[0].shape[2]:
            self._reserve(needed, length)
        for index in range(self._num_layers):
            layer = prefilled.layers[index]
            self._keys[index][rows, :, :length] = layer.keys[prompts]
            self._values[index][rows, :, :length] = layer.values[prompts]

    def move(self, source: int, target: int) -> None:
        """Copy one row over another."""
        for buffer in (*self._keys, *self._values):
            buffer[target, :, : self._longest] = buffer[source, :, : self._longest]

    def _allocate(self, prefilled: Any) -> None:
        for layer in prefilled.layers:
            _, heads, _, width = layer.keys.shape
            self._keys.append(layer.keys.new_zeros((0, heads, 0, width)))
            self._values.append(layer.values.new_zeros((0, heads, 0, layer.values.shape[-1])))

    def _reserve(self, rows: int, tokens: int) -> None:
        """Grow to at least ``rows`` by ``tokens``: rows double, tokens grow by whole steps."""
        old_rows, _, old_tokens, _ = self._keys[0].shape
        if rows > old_rows:
            rows = min(max(rows, 2 * old_rows, 16), self._max_rows)
        rows = max(rows, old_rows)
        tokens = max(-(-tokens // _MORE_TOKENS) * _MORE_TOKENS, old_tokens)
        for buffers in (self._keys, self._values):
            for index, old in enumerate(buffers):
                grown = old.new_zeros((rows, old.shape[1], tokens, old.shape[3]))
                grown[:old_rows, :, :old_tokens] = old
                buffers[index] = grown
