"""FsdpBackend: one rank of the FSDP2 trainer."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from astraflow.interfaces import Shard, StepReport, TokenLoss, TrainerContext
from astraflow.records import PolicyVersion, TrainBatch
from astraflow_fsdp.loading import (
    choose_attention,
    has_recurrent_layers,
    load_sharded,
    published_dtypes,
)
from astraflow_fsdp.microbatches import MicroBatch, arrange, cut, dummy
from astraflow_fsdp.saving import restore, save
from astraflow_fsdp.shards import published_shards

__all__ = ["FsdpBackend"]

log = logging.getLogger(__name__)


class FsdpBackend:
    """
    This rank's shards, optimizer and scoring.

    Args:
        context: The recipe's part; RANK, WORLD_SIZE and LOCAL_RANK come from the environment
            that torch.distributed.run sets.
    """

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._device = _start_process_group(context.device)
        self._ranks = dist.get_world_size()
        self._rank = dist.get_rank()
        mesh = init_device_mesh(context.device, (self._ranks,))
        attention, why = choose_attention(context)
        log.info("attention: %s, because %s", attention, why)
        self._varlen = attention not in ("sdpa",)
        self._model = load_sharded(context, mesh, attention, trainable=True)
        self._padded = has_recurrent_layers(self._model.lm)
        if self._padded:
            log.info("layers carry a state along the sequence: micro-batches are padded, not packed")
        self._reference = (
            load_sharded(context, mesh, attention, trainable=False)
            if context.needs_reference
            else None
        )
        self._parameters: dict[str, Tensor] = dict(self._model.lm.named_parameters())
        self._dtypes = published_dtypes(self._model.lm, getattr(torch, context.dtype))
        self._optimizer = _build_optimizer(context, list(self._parameters.values()))
        self._updates = 0
        self.version = PolicyVersion(0)

    def logprobs(
        self, batch: TrainBatch, *, of: Literal["policy", "reference"] = "policy"
    ) -> Tensor:
        """Score this rank's sequences without gradient: ``[tokens]`` float32 (nats)."""
        model = self._model if of == "policy" else self._reference
        assert model is not None, "no reference model was asked for"
        scored = torch.zeros(batch.num_tokens, device=self._device)
        with torch.no_grad():
            for micro, real in self._microbatches(batch):
                values = _forward(model, micro)
                if real:
                    scored[micro.index] = values
        return scored

    def step(self, batch: TrainBatch, loss: TokenLoss) -> StepReport:
        """Forward and backward in micro-batches, then one optimizer step."""
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        sums: dict[str, Tensor] = {}
        for micro, real in self._microbatches(batch):
            value, parts = loss(_forward(self._model, micro), micro.part)
            # FSDP averages gradients over the ranks; the loss wants their sum.
            (value * (self._ranks if real else 0.0)).backward()
            if real:
                total += value.detach().double()
                for name, part in parts.items():
                    sums[name] = sums.get(name, torch.zeros_like(total)) + part.double()
        norm = self._clip()
        # The norm is the same on every rank, so all of them skip or none does.
        skipped = not math.isfinite(norm)
        if not skipped:
            self._set_rate()
            self._optimizer.step()
        else:
            log.warning("the gradient's norm is %s: weights and optimizer are left alone", norm)
        self._optimizer.zero_grad(set_to_none=True)
        self._updates += 1
        loss_sum, reported = self._add_up(total, sums)
        return StepReport(loss=loss_sum, grad_norm=norm, skipped=skipped, sums=reported)

    def shards(self) -> Iterator[Shard]:
        """Yield this rank's pieces of every tensor, tied ones once, in the types that serve."""
        yield from published_shards(self._parameters, self._dtypes)

    def save(self, folder: Path) -> None:
        """Write this rank's weights, moments and RNG state into ``folder``."""
        save(
            folder,
            self._parameters,
            self._optimizer,
            rank=self._rank,
            ranks=self._ranks,
            version=int(self.version),
            updates=self._updates,
        )

    def restore(self, folder: Path) -> None:
        """Read what ``save`` wrote, on any number of ranks."""
        version, self._updates = restore(
            folder, self._parameters, self._optimizer, rank=self._rank, ranks=self._ranks
        )
        self.version = PolicyVersion(version)

    def close(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _microbatches(self, batch: TrainBatch) -> Iterator[tuple[MicroBatch, bool]]:
        """Yield as many micro-batches as the busiest rank has; False marks one that only fills up."""
        batch = _to(batch, self._device)
        lengths = batch.cu_seqlens.diff().tolist()
        groups = cut(lengths, budget=self._context.tokens_per_microbatch, padded=self._padded)
        most = torch.tensor([len(groups)], device=self._device)
        if self._ranks > 1:
            dist.all_reduce(most, dist.ReduceOp.MAX)
        for micro in arrange(batch, groups, padded=self._padded, varlen=self._varlen):
            yield micro, True
        for _ in range(int(most) - len(groups)):
            yield dummy(self._device, varlen=self._varlen), False

    def _clip(self) -> float:
        gradients = [p.grad for p in self._parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        limit = self._context.optimizer.clip_norm
        if limit is not None and bool(torch.isfinite(norm)):
            torch.nn.utils.clip_grads_with_norm_(
                list(self._parameters.values()), limit, norm.to(self._device)
            )
        return float(norm)

    def _set_rate(self) -> None:
        rate = learning_rate(
            self._context.optimizer, self._updates, total=self._context.total_updates
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate

    def _add_up(self, total: Tensor, sums: dict[str, Tensor]) -> tuple[float, dict[str, float]]:
        """Add over the ranks; a rank that had no real micro-batch lacks names, so agree on them."""
        names = sorted(sums)
        if self._ranks > 1:
            gathered: list[Any] = [None] * self._ranks
            dist.all_gather_object(gathered, names)
            names = sorted({name for part in gathered for name in part})
        zero = torch.zeros_like(total)
        values = torch.stack([total, *(sums.get(name, zero) for name in names)])
        if self._ranks > 1:
            dist.all_reduce(values)
        numbers = values.tolist()
        return numbers[0], dict(zip(names, numbers[1:], strict=True))


def learning_rate(optimizer: Any, update: int, *, total: int) -> float:
    """Return the rate of one optimizer step, counted from 0."""
    rate: float = optimizer.lr
    warmup: int = optimizer.warmup_updates
    if update < warmup:
        return rate * (update + 1) / warmup
    done = (update - warmup) / max(total - warmup, 1)
    if optimizer.schedule == "linear":
        return rate * (1 - done)
    if optimizer.schedule == "cosine":
        return rate * 0.5 * (1 + math.cos(math.pi * done))
    return rate


def _forward(model: Any, micro: MicroBatch) -> Tensor:
    scored: Tensor = model(micro.token_ids, micro.position_ids, **micro.attention)
    return scored.reshape(-1)[micro.flat]


def _start_process_group(device: str) -> torch.device:
    if device == "cuda":
        import os

        local = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(local)
        if not dist.is_initialized():
            dist.init_process_group("nccl", device_id=local)
        return local
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    return torch.device("cpu")


def _build_optimizer(
    context: TrainerContext, parameters: list[Tensor]
) -> torch.optim.Optimizer:
    section = context.optimizer
    on_gpu = context.device == "cuda" and not context.settings.offload_optimizer
    return torch.optim.AdamW(
        parameters,
        lr=section.lr,
        betas=section.betas,
        eps=section.eps,
        weight_decay=section.weight_decay,
        fused=on_gpu,
    )


def _to(batch: TrainBatch, device: torch.device) -> TrainBatch:
    if device.type == "cpu":
        return batch
    return TrainBatch(
        token_ids=batch.token_ids.to(device),
        cu_seqlens=batch.cu_seqlens.to(device),
        answer_mask=batch.answer_mask.to(device),
        behavior_logprobs=batch.behavior_logprobs.to(device),
        advantages=batch.advantages.to(device),
        keep_mask=None if batch.keep_mask is None else batch.keep_mask.to(device),
        reference_logprobs=(
            None if batch.reference_logprobs is None else batch.reference_logprobs.to(device)
        ),
    )
