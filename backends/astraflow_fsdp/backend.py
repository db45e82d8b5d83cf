"""FsdpBackend: one rank of the policy under FSDP2, from batches to steps and shards."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.interfaces import Shard, StepReport, TensorSpec, TokenLoss, TrainerContext
from astraflow.learning.policy import load_policy, safetensors_name
from astraflow.records import PolicyVersion, TrainBatch
from astraflow_fsdp import FsdpSettings, checkpoint
from astraflow_fsdp.attention import choose_attention, knows_sequence_ends
from astraflow_fsdp.microbatches import MicroBatch, cut, idle_microbatch, take
from astraflow_fsdp.optimizer import Optimizer
from astraflow_fsdp.ranks import join_ranks, sum_over_ranks
from astraflow_fsdp.scoring import Scorer
from astraflow_fsdp.selfcheck import check_isolation
from astraflow_fsdp.sharding import free_gathered, local_pieces, shard

__all__ = ["FsdpBackend"]

log = logging.getLogger(__name__)


class FsdpBackend:
    """
    One rank's part of the policy.

    Args:
        context: What the recipe says.

    Raises:
        RecipeError: the checkpoint cannot be loaded.
        HardwareError: kernels are absent, or sequences in one forward pass are not kept apart.
    """

    def __init__(self, context: TrainerContext) -> None:
        self._context = context
        self._settings: FsdpSettings = context.settings
        self._device = join_ranks(context.device, threads=self._settings.threads)
        self._attention = choose_attention(self._settings.attention, self._device)
        self._dtype: torch.dtype = getattr(torch, context.dtype)
        torch.manual_seed(context.seed)
        self.version = PolicyVersion(0)
        self._policy = load_policy(
            context.model_path,
            dtype=getattr(torch, context.master_dtype),
            attention=self._attention,
        )
        self._padded = self._chooses_padding()
        self._scorer = self._build_scorer(train=True)
        self._reference = self._build_scorer(train=False) if context.needs_reference else None
        self._pieces = local_pieces(self._policy, dtype=self._dtype)
        self._optimizer = Optimizer(
            self._pieces,
            context.optimizer,
            total_updates=context.total_updates,
            device=self._device,
        )
        self._check()

    # --- scoring

    def logprobs(
        self, batch: TrainBatch, *, of: Literal["policy", "reference"] = "policy"
    ) -> Tensor:
        """
        Score the answer tokens of this rank's sequences without gradient.

        Collective.

        Returns:
            ``[tokens]`` float32 (nats) on the CPU; 0 outside the answers.
        """
        scorer = self._scorer if of == "policy" else self._reference
        assert scorer is not None, "the reference is kept only when the recipe has a KL term"
        return self._score(scorer, batch, self._plan(batch))

    def _score(self, scorer: Scorer, batch: TrainBatch, groups: Sequence[Sequence[int]]) -> Tensor:
        result = torch.zeros(batch.num_tokens)
        with torch.no_grad():
            for micro in self._microbatches(batch, groups):
                scored = micro.index[micro.inputs.scored.cpu()]
                result[scored] = scorer(micro.inputs)[: len(scored)].cpu()
        free_gathered(scorer)
        return result

    # --- one optimizer step

    def step(self, batch: TrainBatch, loss: TokenLoss) -> StepReport:
        """
        Forward and backward in micro-batches, then one optimizer step.

        Collective. The gradient is that of the *sum* of all micro-batches' losses on all ranks.
        """
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        sums: dict[str, Tensor] = {}
        for micro in self._microbatches(batch, self._plan(batch)):
            value, numbers = self._backward(micro, loss)
            total += value
            for name, number in numbers.items():
                sums[name] = sums.get(name, 0) + number.detach().double()
        norm, skipped = self._optimizer.step()
        summed = sum_over_ranks({"loss": total, **sums}, self._device)
        if skipped:
            log.warning(
                "update %d skipped: the gradient's norm is %s", self._optimizer.updates, norm
            )
        return StepReport(loss=summed.pop("loss"), grad_norm=norm, skipped=skipped, sums=summed)

    def _backward(self, micro: MicroBatch, loss: TokenLoss) -> tuple[Tensor, dict[str, Tensor]]:
        picked = self._scorer(micro.inputs)
        scored = micro.inputs.scored
        logprobs = torch.zeros(micro.batch.num_tokens, device=self._device)
        if scored.numel():
            logprobs = logprobs.index_put((scored,), picked)
        value, sums = loss(logprobs, micro.batch)
        if not scored.numel():
            value = picked.sum() * 0.0
        # FSDP averages gradients over the ranks, and the loss is to be summed over them.
        (value * dist.get_world_size()).backward()  # type: ignore[no-untyped-call]
        return value.detach().double(), dict(sums)

    def _plan(self, batch: TrainBatch) -> list[list[int]]:
        return cut(
            batch.cu_seqlens.diff().tolist(),
            limit_tokens=self._context.tokens_per_microbatch,
            padded=self._padded,
        )

    def _microbatches(
        self, batch: TrainBatch, groups: Sequence[Sequence[int]]
    ) -> Iterator[MicroBatch]:
        """Yield the groups, then idle ones until every rank has had as many."""
        most = torch.tensor(len(groups), device=self._device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        for number in range(int(most)):
            if number < len(groups):
                yield take(batch, groups[number], padded=self._padded, device=self._device)
            else:
                yield idle_microbatch(batch, padded=self._padded, device=self._device)

    # --- weights out

    def shards(self) -> Iterator[Shard]:
        """Yield this rank's pieces in the published type; a replicated one on rank 0 only."""
        for piece in self._pieces:
            if piece.replicated and dist.get_rank():
                continue
            spec = TensorSpec(
                name=piece.name,
                dtype=safetensors_name(piece.published_dtype),
                shape=piece.shape,
            )
            values = piece.values.to(piece.published_dtype)
            yield Shard(spec=spec, first=piece.first, values=values)

    def save(self, folder: Path) -> None:
        """Write this rank's weights, moments and random state into ``folder``."""
        checkpoint.save(folder, self._pieces, self._optimizer, version=int(self.version))

    def restore(self, folder: Path) -> None:
        """
        Read what ``save`` wrote, on any number of ranks.

        Raises:
            RecipeError: the folder holds no checkpoint, or one of another model.
        """
        version = checkpoint.restore(folder, self._pieces, self._optimizer)
        self.version = PolicyVersion(version)

    def close(self) -> None:
        """Leave the process group, if this backend joined it."""
        if dist.is_initialized():
            dist.destroy_process_group()

    # --- at the start

    def _chooses_padding(self) -> bool:
        if self._settings.layout == "auto":
            linear = self._policy.has_linear_attention
            return linear or not knows_sequence_ends(self._attention)
        return self._settings.layout == "padded"

    def _build_scorer(self, *, train: bool) -> Scorer:
        policy = self._policy
        if not train:
            policy = load_policy(
                self._context.model_path,
                dtype=self._dtype,
                attention=self._attention,
            )
        policy.model.train(train)
        policy.model.requires_grad_(train)
        recompute = self._settings.gradient_checkpointing
        if train and (self._device.type == "cuda" if recompute is None else recompute):
            policy.model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={
                    "use_reentrant": False,
                    "preserve_rng_state": False,
                }
            )
            if recompute == "half":
                for layer in policy.model.model.layers[1::2]:
                    layer.gradient_checkpointing = False
        if self._settings.compile:
            for layer in policy.model.model.layers:
                # Not the module: FSDP's hooks and checkpointing stay outside.
                layer.forward = torch.compile(layer.forward)
        scorer = Scorer(
            policy.model,
            temperature=self._context.temperature,
            chunk_tokens=self._settings.logprob_chunk_tokens,
            compiled=self._settings.compile,
        )
        shard(
            scorer,
            policy,
            dtype=self._dtype,
            device=self._device,
            reshard_after_forward=self._settings.reshard_after_forward,
            offload=self._settings.offload_optimizer and self._device.type == "cuda",
        )
        return scorer

    def _check(self) -> None:
        worst = check_isolation(
            lambda batch, groups: self._score(self._scorer, batch, groups),
            vocabulary=self._policy.model.config.get_text_config().vocab_size,
            dtype=self._dtype,
        )
        log.info(
            "rank %s on %s: %s attention, %s micro-batches, sequences kept apart to %.2g nats",
            os.environ.get("RANK", "0"),
            self._device,
            self._attention,
            "padded" if self._padded else "packed",
            worst,
        )
