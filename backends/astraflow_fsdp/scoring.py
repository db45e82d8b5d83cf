"""Scoring: the policy as a module from tokens to log-probabilities, without full logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from astraflow_fsdp.head import HeadLogprobs
from astraflow_fsdp.microbatches import Inputs

__all__ = ["Scorer"]


class Scorer(nn.Module):
    """
    Log-probabilities of answer tokens under a causal language model.

    The head is applied here, a chunk of rows at a time, inside this module's own forward: this
    is the module that FSDP gathers the head's weight for. Calling the head from outside would
    meet a shard of it.

    Args:
        model: A causal language model of transformers, with ``model`` and ``lm_head``.
        temperature: Log-probabilities are of ``logits / temperature``.
        chunk_tokens: Rows whose logits exist at one time.
        compiled: Compile what follows the head, which then reads the logits once.
    """

    def __init__(
        self, model: Any, *, temperature: float, chunk_tokens: int, compiled: bool = False
    ) -> None:
        super().__init__()
        self.policy = model
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens
        self._compiled = compiled

    def forward(self, inputs: Inputs) -> Tensor:
        """
        Score.

        Returns:
            ``[answer]`` float32 (nats). With no answer token, one row of no meaning: a backward
            pass must visit every parameter on every rank.
        """
        hidden = self._hidden(inputs)
        rows, targets = inputs.hidden_rows, inputs.targets
        if rows.numel() == 0:
            rows = targets = torch.zeros(1, dtype=torch.int64, device=hidden.device)
        hidden = hidden.flatten(0, 1)[rows]
        weight = self.policy.lm_head.weight
        score: Callable[..., Tensor] = HeadLogprobs.apply
        chunks = [
            score(some, weight, ids, self._temperature, self._compiled)
            for some, ids in zip(
                torch.split(hidden, self._chunk_tokens),
                torch.split(targets, self._chunk_tokens),
                strict=True,
            )
        ]
        return torch.cat(chunks)

    def _hidden(self, inputs: Inputs) -> Tensor:
        """Return ``[rows, columns, width]``, the last hidden states."""
        bounds: dict[str, Any] = {}
        if inputs.cu_seqlens is not None:
            # A bound, not the length: each new value would compile the layers anew.
            longest = 1 << (inputs.longest_tokens - 1).bit_length()
            bounds = {
                "cu_seq_lens_q": inputs.cu_seqlens,
                "cu_seq_lens_k": inputs.cu_seqlens,
                "max_length_q": longest,
                "max_length_k": longest,
            }
        # With a cache, packed sequences would see each other; without a mask, right pads are
        # hidden by causality alone and the fast kernels apply.
        out = self.policy.model(
            input_ids=inputs.token_ids,
            position_ids=inputs.position_ids,
            attention_mask=None,
            use_cache=False,
            **bounds,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden
