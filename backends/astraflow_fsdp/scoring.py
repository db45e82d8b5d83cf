"""ScoredModel: token ids in, log-probabilities of those tokens out, without a full logits tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

__all__ = ["ScoredModel"]


class ScoredModel(nn.Module):
    """
    A causal LM and its scoring in one module, so that FSDP gathers the head for the forward pass.

    Calling the LM's parts from outside would bypass FSDP's hooks: the head's weight would be a
    shard. Everything that touches a weight happens inside this module's ``forward``.

    Args:
        lm: A causal LM of transformers.
        temperature: Logits are divided by it, as when the tokens were sampled.
        chunk_tokens: Rows that become logits at once (tokens).
    """

    def __init__(self, lm: Any, *, temperature: float, chunk_tokens: int) -> None:
        super().__init__()
        self.lm = lm
        self._temperature = temperature
        self._chunk_tokens = chunk_tokens

    def forward(self, token_ids: Tensor, position_ids: Tensor, **attention: Any) -> Tensor:
        """
        Score each token given those before it in its row or packed sequence.

        Args:
            token_ids: ``[rows, length]`` int64.
            position_ids: ``[rows, length]`` int64, restarting at 0 with each packed sequence.
            attention: Passed to the LM, such as ``cu_seq_lens_q`` for varlen kernels.

        Returns:
            ``[rows, length]`` float32 (nats); 0 where a sequence starts.
        """
        output = self.lm.base_model(
            input_ids=token_ids, position_ids=position_ids, use_cache=False, **attention
        )
        # The hidden state at t predicts the token at t + 1.
        hidden = output.last_hidden_state[:, :-1].reshape(-1, output.last_hidden_state.shape[-1])
        targets = token_ids[:, 1:].reshape(-1)
        weight, bias = self.lm.lm_head.weight, getattr(self.lm.lm_head, "bias", None)
        pieces = [
            self._score(h, t, weight, bias)
            for h, t in zip(
                hidden.split(self._chunk_tokens), targets.split(self._chunk_tokens), strict=True
            )
        ]
        scored = torch.cat(pieces) if pieces else hidden.new_zeros(0, dtype=torch.float32)
        first = scored.new_zeros(token_ids.shape[0], 1)
        logprobs = torch.cat([first, scored.view(token_ids.shape[0], -1)], dim=1)
        # The token before a start belongs to another sequence, or to nobody.
        return torch.where(position_ids == 0, 0.0, logprobs)

    def _score(self, hidden: Tensor, targets: Tensor, weight: Tensor, bias: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return _token_logprobs(hidden, targets, weight, bias, self._temperature)
        # Recomputed in the backward pass: otherwise every chunk's logits would stay alive.
        scored: Tensor = checkpoint(
            _token_logprobs,
            hidden,
            targets,
            weight,
            bias,
            self._temperature,
            use_reentrant=False,
        )
        return scored


def _token_logprobs(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias: Any, temperature: float
) -> Tensor:
    """Return ``[rows]`` float32 for hidden states ``[rows, width]``."""
    logits = nn.functional.linear(hidden, weight, bias).float() / temperature
    chosen = logits.gather(1, targets[:, None]).squeeze(1)
    return chosen - logits.logsumexp(dim=1)
