"""The training loop of one rank: batch in, optimizer steps, version out."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from astraflow.errors import LossInputError, NotReadyError
from astraflow.interfaces import StepReport, TrainerBackend
from astraflow.learning import MinibatchTotals, build_objective
from astraflow.recipe.schema import Recipe
from astraflow.records import PolicyVersion, TrainBatch
from astraflow.trainer import checkpoints
from astraflow.trainer.minibatches import (
    Batch,
    read_batch,
    select,
    split_over_ranks,
    split_over_updates,
    token_index,
)
from astraflow.trainer.service import STOP_FILE
from astraflow.trainer.tally import StepTally, gpu_memory
from astraflow.weights import TcpPublisher
from astraflow.wire import messages as m
from astraflow.wire.auth import run_id_of
from astraflow.wire.client import ServiceClient
from astraflow.wire.events import Events
from astraflow.wire.waits import Waits

__all__ = ["TrainingLoop"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_S = 5.0
_EVALUATION_INSTALL_S = 120.0
_BEAT_S = 1.0


class TrainingLoop:
    """
    One rank of the trainer.

    Every rank runs the same code on the same batch; rank 0 alone talks about the run: it asks
    for leave to publish, reports versions, starts evaluations, commits checkpoints.
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        backend: TrainerBackend,
        run_folder: Path,
        dataflow: str,
        token: str,
        rank: int,
        ranks: int,
        events: Events,
        waits: Waits,
    ) -> None:
        self._recipe = recipe
        self._backend = backend
        self._folder = run_folder
        self._rank = rank
        self._ranks = ranks
        self._events = events
        self._waits = waits
        self._objective = build_objective(recipe.algorithm)
        self._calls = asyncio.new_event_loop()
        self._client = ServiceClient(dataflow, token, patience_s=recipe.limits.ready_s)
        delta = recipe.weights.mode == "delta"
        self._publisher = TcpPublisher(
            run_id=run_id_of(run_folder),
            token=token,
            rank=rank,
            keep_deltas=recipe.weights.keep_deltas if delta else 0,
            full_sync_interval=recipe.weights.full_sync_interval if delta else None,
            memory=recipe.weights.snapshot,
            host=recipe.network.host,
        )
        self._skips_in_a_row = 0
        self._step = 0
        self._trained_tokens = 0
        self._busy_s = 0.0
        self._started = time.monotonic()
        self._closing = threading.Event()

    # --- the run

    def run(self, *, resume_from: Path | None) -> None:
        """Train to the last step, or to the first one after a stop was asked for."""
        if resume_from is not None:
            self._restore(resume_from)
        # What the instances start from: the first delta builds on it.
        self._publisher.publish(PolicyVersion(self._step), self._backend.shards())
        self._introduce()
        if resume_from is not None:
            self._announce()
        elif self._recipe.evaluation.before_training:
            self._start_evaluation(0)
        saved = self._step
        while self._step < self._recipe.trainer.steps:
            content = self._next_batch()
            if content is None:
                break
            self._train_step(content)
            if self._due(self._recipe.checkpoint.every_steps):
                self._save()
                saved = self._step
        if saved != self._step:
            self._save()
        if self._step >= self._recipe.trainer.steps:
            self._await_evaluation(self._step)
        self._events_from_zero("trained", step=self._step)

    def close(self) -> None:
        """End the connections."""
        self._closing.set()
        self._publisher.close()
        self._calls.run_until_complete(self._client.close())
        self._calls.close()

    # --- one step

    def _train_step(self, content: bytes) -> None:
        started = time.monotonic()
        batch = read_batch(content, self._recipe.algorithm)
        tally = StepTally(batch, version=self._step)
        for sequences in split_over_updates(
            batch.train.num_sequences,
            updates=self._recipe.algorithm.updates_per_step,
            seed=self._recipe.seed,
            step=self._step,
        ):
            report = self._update(batch, sequences, tally)
            self._count_skips(report)
            tally.add(report)
        self._step += 1
        self._backend.version = PolicyVersion(self._step)
        trained = time.monotonic()
        publish = self._publish()
        self._trained_tokens += batch.train.num_tokens
        self._busy_s += trained - started
        self._events_from_zero(
            "step",
            step=self._step,
            version=self._step,
            tokens=batch.train.num_tokens,
            step_s=round(trained - started, 4),
            tokens_per_s=round(batch.train.num_tokens / (trained - started), 1),
            publish_s=round(time.monotonic() - trained, 4),
            **publish,
            **gpu_memory(),
            **tally.numbers(),
        )
        if self._due(self._recipe.evaluation.every_steps) or self._is_last():
            self._start_evaluation(self._step)

    def _update(self, batch: Batch, sequences: list[int], tally: StepTally) -> StepReport:
        """Take one optimizer step on one mini-batch."""
        shares = split_over_ranks(sequences, batch.lengths(), ranks=self._ranks)
        mine = select(batch.train, shares[self._rank])
        totals = MinibatchTotals(
            answer_tokens=int(select(batch.train, sequences).answer_mask.sum()),
            sequences=len(sequences),
            max_new_tokens=self._recipe.rollout.max_new_tokens,
        )
        if self._recipe.algorithm.kl_coef > 0:
            mine = replace(mine, reference_logprobs=self._backend.logprobs(mine, of="reference"))
        if self._objective.needs_minibatch:
            mine = self._decide_keep(batch, shares, mine, tally)
        return self._backend.step(
            mine, lambda logprobs, micro: self._objective.loss(logprobs, micro, totals)
        )

    def _decide_keep(
        self, batch: Batch, shares: list[list[int]], mine: TrainBatch, tally: StepTally
    ) -> TrainBatch:
        """Let the objective look at the whole mini-batch of all ranks, then keep our part."""
        logprobs = self._gather(self._backend.logprobs(mine).cpu(), batch, shares)
        order = [sequence for share in shares for sequence in share]
        whole = select(batch.train, order)
        log_ratio = logprobs - whole.behavior_logprobs
        keep, numbers = self._objective.select(log_ratio, whole.advantages, whole.answer_mask)
        tally.note(numbers, log_ratio, token_index(batch.train, order))
        lengths = batch.lengths()
        before = sum(lengths[s] for share in shares[: self._rank] for s in share)
        return replace(mine, keep_mask=keep[before : before + mine.num_tokens])

    def _gather(self, local: Tensor, batch: Batch, shares: list[list[int]]) -> Tensor:
        """Join every rank's ``[tokens]`` float32, in rank order."""
        if self._ranks == 1:
            return local
        lengths = batch.lengths()
        sizes = [sum(lengths[s] for s in share) for share in shares]
        device = "cuda" if self._recipe.trainer.gpus else "cpu"
        padded = torch.zeros(max(sizes), device=device)
        padded[: len(local)] = local.to(device)
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size].cpu() for part, size in zip(parts, sizes, strict=True)])

    def _count_skips(self, report: StepReport) -> None:
        self._skips_in_a_row = self._skips_in_a_row + 1 if report.skipped else 0
        limit = self._recipe.trainer.optimizer.max_skips_in_a_row
        if self._skips_in_a_row >= limit:
            raise LossInputError(
                f"the gradient was not finite in {limit} optimizer steps in a row, at step "
                f"{self._step}",
                hint="lower `trainer.optimizer.lr`, or set `trainer.master_dtype` to `float32`",
            )

    # --- batches

    def _next_batch(self) -> bytes | None:
        """Wait for the next batch; None when the run was asked to stop. Ranks agree."""
        content = self._wait_for_batch() if self._rank == 0 else b""
        if self._ranks > 1:
            flag = torch.tensor([0 if content is None else 1])
            if self._recipe.trainer.gpus:
                flag = flag.cuda()
            dist.broadcast(flag, 0)
            if not int(flag):
                return None
            if self._rank:
                content = self._ask_for_batch(30.0)
        return content

    def _wait_for_batch(self) -> bytes | None:
        deadline_s = self._recipe.limits.no_progress_s
        with self._waits.waiting(f"dataflow: batch {self._step}", deadline_s=deadline_s):
            give_up = time.monotonic() + deadline_s
            while time.monotonic() < give_up:
                if (self._folder / STOP_FILE).exists():
                    return None
                content = self._ask_for_batch(_POLL_S)
                if content:
                    return content
        raise NotReadyError(
            f"batch {self._step} was not whole within {deadline_s:g} s",
            hint="see how many groups are dropped, and why, in the live view or metrics.jsonl",
        )

    def _ask_for_batch(self, wait_s: float) -> bytes:
        request = m.BatchRequest(step=self._step, wait_s=wait_s)
        patience_s = self._recipe.limits.ready_s
        return self._call_raw("/v1/batch", request, within_s=wait_s + patience_s)

    # --- versions

    def _introduce(self) -> None:
        host, port = self._publisher.address
        address = m.PublisherAddress(rank=self._rank, host=host, port=port)
        # torchrun gives all ranks of one start the same id, and each start another.
        lineage = os.environ.get("TORCHELASTIC_RUN_ID", "") or secrets.token_hex(8)
        report = m.PublishersReport(address=address, ranks=self._ranks, lineage=lineage)
        self._call("/v1/publishers", report, m.Done)
        if self._rank == 0:
            threading.Thread(target=self._beat, name="beat", daemon=True).start()
        self._barrier()
        self._events_from_zero("ready", pid=0)

    def _publish(self) -> dict[str, Any]:
        if self._rank == 0:
            self._await_leave()
        self._barrier()
        report = self._publisher.publish(PolicyVersion(self._step), self._backend.shards())
        self._barrier()
        self._announce()
        return {
            "changed_frac": round(report.changed_frac, 6),
            "full_bytes": report.full_bytes,
            "blocked_ms": round(report.blocked_s * 1000, 2),
            # Of the newest version that is encoded already, often the one before.
            "encoded": self._publisher.encoded,
        }

    def _announce(self) -> None:
        if self._rank == 0:
            message = m.VersionReport(version=self._step, published=True)
            self._call("/v1/version", message, m.VersionReply)

    def _await_leave(self) -> None:
        """Wait, not for ever, until a version that is to be evaluated is held somewhere."""
        request = m.VersionReport(version=self._step, published=False)
        reply = self._call("/v1/version", request, m.VersionReply)
        if reply.publish:
            return
        with self._waits.waiting(f"raas: {reply.why}", deadline_s=_EVALUATION_INSTALL_S):
            give_up = time.monotonic() + _EVALUATION_INSTALL_S
            while not reply.publish and time.monotonic() < give_up:
                time.sleep(0.05)
                reply = self._call("/v1/version", request, m.VersionReply)
        if not reply.publish:
            log.warning("publishing version %d although %s", self._step, reply.why)

    # --- evaluation

    def _start_evaluation(self, version: int) -> None:
        if self._rank == 0 and self._recipe.evaluation.datasets:
            self._call(
                "/v1/evaluation",
                m.EvaluationRequest(version=version, start=True),
                m.EvaluationReply,
            )

    def _await_evaluation(self, version: int) -> None:
        """Keep serving weights until the last version has been evaluated."""
        if self._rank == 0 and self._recipe.evaluation.datasets:
            deadline_s = self._recipe.evaluation.timeout_s
            with self._waits.waiting(f"raas: evaluation of {version}", deadline_s=deadline_s):
                give_up = time.monotonic() + deadline_s
                while time.monotonic() < give_up:
                    if (self._folder / STOP_FILE).exists():
                        break
                    request = m.EvaluationRequest(version=version, start=False)
                    reply = self._call("/v1/evaluation", request, m.EvaluationReply)
                    if reply.state == "done":
                        break
                    time.sleep(0.1)
        self._barrier()

    # --- checkpoints

    def _save(self) -> None:
        started = time.monotonic()
        folder = self._folder / "checkpoints"
        if self._rank == 0:
            checkpoints.begin(folder, step=self._step)
        self._barrier()
        scratch = folder / f".step-{self._step:06d}.tmp"
        self._backend.save(scratch / "trainer")
        self._barrier()
        if self._rank == 0:
            self._call(
                "/v1/checkpoint",
                m.CheckpointRequest(step=self._step, folder=str(scratch.resolve())),
                m.Done,
            )
            checkpoints.commit(scratch, step=self._step, ranks=self._ranks)
            checkpoints.prune(folder, keep=self._recipe.checkpoint.keep)
        self._barrier()
        self._events_from_zero(
            "checkpoint", step=self._step, wall_s=round(time.monotonic() - started, 3)
        )

    def _restore(self, folder: Path) -> None:
        self._backend.restore(folder / "trainer")
        self._step = int(self._backend.version)
        log.info("resumed at step %d from %s", self._step, folder)

    # --- inside

    def _due(self, every: int | None) -> bool:
        return every is not None and self._step % every == 0

    def _is_last(self) -> bool:
        return self._step == self._recipe.trainer.steps

    def _barrier(self) -> None:
        if self._ranks > 1:
            dist.barrier()

    def _call(self, path: str, body: msgspec.Struct, reply: type[T]) -> T:
        return self._calls.run_until_complete(self._client.call(path, body, reply))

    def _call_raw(self, path: str, body: msgspec.Struct, *, within_s: float) -> bytes:
        return self._calls.run_until_complete(self._client.call_raw(path, body, within_s=within_s))

    def _events_from_zero(self, event: str, **fields: Any) -> None:
        if self._rank == 0:
            self._events.send(event, **fields)

    def _beat(self) -> None:
        while not self._closing.wait(_BEAT_S):
            self._events.send("beat", numbers=self._numbers(), waits=self._waits.current()[:4])

    def _numbers(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "trained_tokens": self._trained_tokens,
            "busy_s": round(self._busy_s, 3),
            "wait_s": round(self._waits.total_s("dataflow") + self._waits.total_s("raas"), 3),
            "up_s": round(time.monotonic() - self._started, 3),
            "receivers": self._publisher.ledger.rows(newest=self._step),
        }
