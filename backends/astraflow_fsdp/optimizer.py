"""The optimizer: AdamW over flat pieces, its learning rate, steps that all ranks agree on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from astraflow_fsdp.sharding import Piece

__all__ = ["Optimizer", "learning_rate"]


def learning_rate(section: Any, *, update: int, total_updates: int) -> float:
    """
    Return the rate of one optimizer step.

    Args:
        section: ``trainer.optimizer`` of the recipe.
        update: Steps taken before this one (count).
        total_updates: Steps of the whole run (count).
    """
    rate, warmup = float(section.lr), int(section.warmup_updates)
    if update < warmup:
        return rate * (update + 1) / warmup
    if section.schedule == "constant":
        return rate
    progress = min((update - warmup + 1) / max(total_updates - warmup, 1), 1.0)
    if section.schedule == "linear":
        return rate * (1 - progress)
    return rate * 0.5 * (1 + math.cos(math.pi * progress))


class Optimizer:
    """
    AdamW on this rank's pieces; gradients come from the parameters that the pieces belong to.

    Args:
        pieces: What to move.
        section: ``trainer.optimizer`` of the recipe.
        total_updates: Optimizer steps of the whole run (count).
        device: Where collectives run.
    """

    def __init__(
        self, pieces: Sequence[Piece], section: Any, *, total_updates: int, device: torch.device
    ) -> None:
        self._pieces = pieces
        self._section = section
        self._total_updates = total_updates
        self._device = device
        self.updates = 0
        """Optimizer steps tried, skipped ones included: the clock of the schedule (count)."""
        self.adamw = torch.optim.AdamW(
            [piece.values for piece in pieces],
            lr=section.lr,
            betas=section.betas,
            eps=section.eps,
            weight_decay=section.weight_decay,
            fused=True,
        )

    def step(self) -> tuple[float, bool]:
        """
        Clip and step, or leave everything alone when the gradient is not finite on any rank.

        Collective.

        Returns:
            Global L2 norm before clipping; True if the step was skipped.
        """
        rate = learning_rate(self._section, update=self.updates, total_updates=self._total_updates)
        self.updates += 1
        gradients = self._gradients()
        norm = self._global_norm(gradients)
        skipped = not math.isfinite(norm)
        if not skipped:
            limit = self._section.clip_norm
            if limit is not None and norm > limit:
                torch._foreach_mul_(_present(gradients), limit / (norm + 1e-6))
            for piece, gradient in zip(self._pieces, gradients, strict=True):
                piece.values.grad = gradient
            for group in self.adamw.param_groups:
                group["lr"] = rate
            self.adamw.step()
        self._forget_gradients()
        return norm, skipped

    def moments(self, piece: Piece) -> tuple[Tensor, Tensor] | None:
        """Return ``[count]`` first and second moment of a piece; None before its first step."""
        state = self.adamw.state.get(piece.values)
        return (state["exp_avg"], state["exp_avg_sq"]) if state else None

    def steps_of(self, piece: Piece) -> int:
        """Return the AdamW steps that a piece took (count)."""
        state = self.adamw.state.get(piece.values)
        return int(state["step"]) if state else 0

    def set_moments(self, piece: Piece, first: Tensor, second: Tensor, *, steps: int) -> None:
        """Put a piece's state back as a checkpoint had it."""
        self.adamw.state[piece.values] = {
            # fused AdamW wants the count where the piece is
            "step": torch.tensor(float(steps), device=piece.values.device),
            "exp_avg": first,
            "exp_avg_sq": second,
        }

    def _gradients(self) -> list[Tensor | None]:
        gradients = [piece.gradient() for piece in self._pieces]
        world = dist.get_world_size()
        for piece, gradient in zip(self._pieces, gradients, strict=True):
            if piece.replicated and gradient is not None and world > 1:
                # FSDP averages what it shards; what it ignores is averaged here.
                dist.all_reduce(gradient)
                gradient /= world
        return gradients

    def _global_norm(self, gradients: Sequence[Tensor | None]) -> float:
        """Return the L2 norm over all ranks; what all hold counts on the first one only."""
        mine = [
            gradient
            for piece, gradient in zip(self._pieces, gradients, strict=True)
            if gradient is not None and not (piece.replicated and dist.get_rank())
        ]
        square = torch.zeros((), dtype=torch.float64, device=self._device)
        if mine:
            norms = torch._foreach_norm(mine, dtype=torch.float32)
            square += torch.stack([norm.double() for norm in norms]).square().sum().to(self._device)
        dist.all_reduce(square)
        return math.sqrt(value) if math.isfinite(value := float(square)) else value

    def _forget_gradients(self) -> None:
        for piece in self._pieces:
            piece.parameter.grad = None
            piece.values.grad = None


def _present(gradients: Iterable[Tensor | None]) -> list[Tensor]:
    return [gradient for gradient in gradients if gradient is not None]
