"""
Flow: the rules of the dataflow, from prompt to batch.

    order ─take─▶ lease ─answer─▶ filters ─▶ buffer ─batch─▶ trainer
      ▲             │ lost, released   │ dropped by cause    │ consumed
      └─────────────┘                  ▼                     ▼
                                    (every group is counted in the store)

Admission: prompts in flight and groups in the buffer never exceed
``(version + max_staleness + 1) * groups_per_batch - consumed``, so that what is sampled can
still be trained on. The check at hand-out stays: it is the guarantee, admission is the economy.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from astraflow.dataflow import batches, filters
from astraflow.dataflow.buffer import Buffer, BufferedGroup
from astraflow.dataflow.dispatch import Dispatch, Granted
from astraflow.dataflow.evaluate import Evaluation, Score
from astraflow.dataflow.prompts import PromptOrder
from astraflow.dataflow.store import Store
from astraflow.errors import WireError
from astraflow.recipe.schema import Recipe
from astraflow.records import Outcome, Prompt, SampleGroup
from astraflow.wire.messages import FailedLease, Lease

__all__ = ["Flow", "FlowState"]

log = logging.getLogger(__name__)


class FlowState(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint keeps of the dataflow, as msgpack."""

    step: int
    dataset: str
    order: dict[str, Any]
    buffered: list[BufferedGroup]
    arrived: int
    newest_row: int
    dropped: dict[str, int]
    produced: int
    consumed: int
    scores: list[Score]


class Flow:
    """
    The state of the dataflow. Calls are quick, never block, and come from one thread.

    Args:
        recipe: The run.
        prompts: The training set.
        evaluation_sets: Problems by dataset name.
        store: Where groups are written.
        dataset: Name and content hash of the training set, to notice another one on resume.
    """

    def __init__(
        self,
        recipe: Recipe,
        prompts: Sequence[Prompt],
        evaluation_sets: Mapping[str, Sequence[Prompt]],
        store: Store,
        *,
        dataset: str = "",
    ) -> None:
        self._recipe = recipe
        self._prompts = prompts
        self._evaluation_sets = evaluation_sets
        self._store = store
        self._dataset = dataset
        self._order = PromptOrder(len(prompts), seed=recipe.seed, shuffle=recipe.data.shuffle)
        self._dispatch = Dispatch(timeout_s=recipe.dataflow.lease_timeout_s)
        self._buffer = Buffer(
            max_staleness=recipe.dataflow.max_staleness, order=recipe.dataflow.order
        )
        self._groups_per_batch = recipe.trainer.batch_size // recipe.rollout.samples_per_prompt
        self._arrived = 0
        self._last_batch: tuple[int, bytes] | None = None
        self._leases = 0
        self.version = 0
        self.produced = 0
        self.consumed = 0
        self.dropped: dict[str, int] = {}
        self.lag_counts: dict[int, int] = {}
        self.recent_rewards: list[float] = []
        self.recent_right: list[float] = []
        self.sampled_tokens = 0
        self.evaluation: Evaluation | None = None
        self.scores: list[Score] = []

    # --- prompts out

    @property
    def num_prompts(self) -> int:
        """Rows of the training set (count)."""
        return len(self._prompts)

    @property
    def admissible(self) -> int:
        """Prompts that may be handed out now without sampling what must expire (groups)."""
        staleness = self._recipe.dataflow.max_staleness
        horizon = min(self.version + staleness + 1, self._recipe.trainer.steps)
        budget = horizon * self._groups_per_batch - self.consumed
        return max(0, budget - self._dispatch.count("train") - len(self._buffer))

    def lease(self, instance: str, *, version: int, most: int, now: float) -> list[Lease]:
        """Grant up to ``most`` leases; evaluation first, to an instance that holds its version."""
        leases: list[Lease] = []
        evaluation = self.evaluation
        while (
            len(leases) < most
            and evaluation is not None
            and evaluation.version == version
            and evaluation.has_work
        ):
            leases.append(self._evaluation_lease(evaluation))
        # What an instance samples now must still be young enough for the trainer's version.
        if version >= max(self.version - self._recipe.dataflow.max_staleness, 0):
            for _ in range(min(most - len(leases), self.admissible)):
                leases.append(self._training_lease())
        for lease in leases:
            self._dispatch.grant(lease, instance, now=now)
        return leases

    def renew(self, instance: str, lease_ids: Sequence[str], *, now: float) -> list[str]:
        """Renew leases on a beat; return those that the instance no longer holds."""
        lost = self._dispatch.renew(instance, lease_ids, now=now)
        self._reclaim(self._dispatch.forgotten(instance, now=now))
        return lost

    def forget(self, instance: str) -> int:
        """Take back every lease of an instance that is dead; return how many (groups)."""
        return self._reclaim(self._dispatch.forget(instance))

    def release(self, instance: str, lease_ids: Sequence[str]) -> int:
        """Take leases back unanswered; return how many (groups)."""
        return self._reclaim(self._dispatch.release(instance, lease_ids))

    def expire(self, *, now: float) -> int:
        """Take back leases of silent instances, end late evaluations; return how many groups."""
        if self.evaluation and self.evaluation.is_late(self._recipe.evaluation.timeout_s, now=now):
            self._end_evaluation(now)
        return self._reclaim(self._dispatch.expire(now=now))

    # --- groups in

    def report(
        self, groups: Sequence[SampleGroup], failed: Sequence[FailedLease], *, now: float
    ) -> dict[str, int]:
        """Take finished and failed groups; return what became of them, counted by cause."""
        counts: dict[str, int] = {}
        self._store.begin()
        for group in groups:
            fate = self._take_group(group, now)
            counts[fate] = counts.get(fate, 0) + 1
        for failure in failed:
            fate = self._take_failure(failure, now)
            counts[fate] = counts.get(fate, 0) + 1
        self._store.commit()
        return counts

    # --- batches out

    def batch(self, step: int) -> bytes | None:
        """
        Hand out the batch of ``step``, the same bytes when asked again; None until it is whole.

        Raises:
            WireError: the trainer asks for a step that is neither the last nor the next.
        """
        if self._last_batch is not None and self._last_batch[0] == step:
            return self._last_batch[1]
        handed_out = self.consumed // self._groups_per_batch
        if step == handed_out - 1 and self._last_batch is None:
            return self._pack_again(step)
        if step != handed_out:
            raise WireError(
                f"the trainer asks for batch {step}, and the dataflow would hand out {handed_out}",
                hint="trainer and dataflow must resume from the same checkpoint",
            )
        self._drop_stale(step)
        if len(self._buffer) < self._groups_per_batch:
            return None
        groups = self._buffer.take(self._groups_per_batch)
        self._store.begin()
        self._store.consume([group.row_id for group in groups], step=step)
        self._store.commit()
        self.consumed += len(groups)
        for lag, count in batches.lags(groups, version=step).items():
            self.lag_counts[lag] = self.lag_counts.get(lag, 0) + count
        self._last_batch = (step, batches.pack(groups, step=step))
        return self._last_batch[1]

    def _pack_again(self, step: int) -> bytes | None:
        """Make the batch of ``step`` again, which the service handed out before it died."""
        groups = self._store.groups("consumed", step=step)
        if len(groups) != self._groups_per_batch:
            return None  # the checkpoint's own step: the trainer has had it
        self._last_batch = (step, batches.pack(self._buffer.ordered(groups), step=step))
        return self._last_batch[1]

    def set_version(self, version: int) -> None:
        """Note that the trainer holds ``version``; more prompts may become admissible."""
        self.version = max(self.version, version)
        self._store.note("version", self.version)

    # --- evaluation

    def evaluate(self, version: int, *, now: float) -> Evaluation | None:
        """Start evaluating ``version``; None when the recipe names no datasets."""
        if not self._evaluation_sets:
            return None
        if self.evaluation is None or self.evaluation.version != version:
            self._end_evaluation(now)
            self._store.note("evaluating", version)
            samples = self._recipe.evaluation.samples
            self.evaluation = Evaluation(
                version,
                self._evaluation_sets,
                samples=samples,
                started_at=now,
                place=self._recipe.workflow.answer,
                seed=self._recipe.seed,
            )
        return self.evaluation

    def score_of(self, version: int) -> Score | None:
        """Return the score of an evaluated version."""
        return next((score for score in self.scores if score.version == version), None)

    # --- checkpoints

    def save(self, path: Path, *, step: int) -> None:
        """Write the state as of after ``step`` batches; prompts in flight are sampled anew."""
        state = FlowState(
            step=step,
            dataset=self._dataset,
            order=self._order.state(self._dispatch.positions()),
            buffered=self._buffer.groups(),
            arrived=self._arrived,
            newest_row=self._store.newest_row(),
            dropped=self.dropped,
            produced=self.produced,
            consumed=self.consumed,
            scores=self.scores,
        )
        path.write_bytes(msgspec.msgpack.encode(state))

    def restore(self, path: Path) -> None:
        """
        Continue from a checkpoint.

        Raises:
            WireError: the file is damaged.
        """
        try:
            state = msgspec.msgpack.decode(path.read_bytes(), type=FlowState)
        except (OSError, msgspec.DecodeError) as error:
            raise WireError(f"the dataflow state `{path}` cannot be read: {error}") from error
        same = state.dataset == self._dataset and self._order.restore(state.order)
        self.version = state.step
        self.consumed = state.consumed
        self._arrived = state.arrived
        self.dropped = dict(state.dropped)
        self.produced = state.produced
        self.scores = list(state.scores)
        self._store.begin()
        self._store.rewind(newest_row=state.newest_row, step=state.step, buffered=state.buffered)
        if not same:
            log.warning(
                "the training set is not the one of the checkpoint; it starts at its first prompt "
                "and %d buffered groups are left out",
                len(state.buffered),
            )
            rows = [group.row_id for group in state.buffered]
            self._store.drop(rows, cause="other_dataset")
            self._count_drop("other_dataset", len(rows))
            self._store.note("order_from", state.newest_row)
        self._store.note("version", self.version)
        self._store.note("evaluating", -1)
        self._store.note("scores", self.scores)
        self._store.commit()
        for group in state.buffered if same else ():
            self._buffer.add(group)

    def recover(self, *, now: float) -> None:
        """
        Continue from what the store holds, after the service died and the trainer did not.

        Every group that was reported is where it was; prompts that were in flight are sampled
        anew, and an evaluation that was open starts again.
        """
        counts = self._store.counts()
        self.produced = sum(counts.values())
        self.consumed = counts.get("consumed", 0)
        self.dropped = {
            state.removeprefix("dropped:"): count
            for state, count in counts.items()
            if state.startswith("dropped:")
        }
        for group in self._store.groups("buffered"):
            self._buffer.add(group)
        self._arrived = self._store.newest_row()
        first = self._store.noted("order_from", int, 0)
        self._order.resume_after(self._store.positions(after_row=first))
        self.version = self._store.noted("version", int, 0)
        self.scores = self._store.noted("scores", list[Score], [])
        evaluating = self._store.noted("evaluating", int, -1)
        if evaluating >= 0 and self.score_of(evaluating) is None:
            self.evaluate(evaluating, now=now)
        log.info(
            "recovered: %d groups produced, %d consumed, %d buffered, dropped %s",
            self.produced,
            self.consumed,
            len(self._buffer),
            self.dropped,
        )

    # --- numbers

    def numbers(self) -> dict[str, Any]:
        """Return the counters that the live view and the metrics show."""
        rewards, right = self.recent_rewards[-512:], self.recent_right[-512:]
        return {
            "version": self.version,
            "epoch": round(self._order.epoch, 4),
            "in_flight": self._dispatch.count("train"),
            "evaluating": self._dispatch.count("evaluate"),
            "buffered": len(self._buffer),
            "groups_per_batch": self._groups_per_batch,
            "admissible": self.admissible,
            "produced": self.produced,
            "consumed": self.consumed,
            "dropped": self.dropped,
            "lags": self.lag_counts,
            "sampled_tokens": self.sampled_tokens,
            "reward_mean": sum(rewards) / len(rewards) if rewards else None,
            "right_frac": sum(right) / len(right) if right else None,
        }

    # --- inside

    def _training_lease(self) -> Lease:
        rollout = self._recipe.rollout
        position = self._order.take()
        return Lease(
            lease_id=self._lease_id("t", position),
            purpose="train",
            prompt=self._prompts[self._order.row(position)],
            position=position,
            samples=rollout.samples_per_prompt,
            temperature=rollout.temperature,
            max_new_tokens=rollout.max_new_tokens,
            seed=self._order.seed_of(position),
        )

    def _evaluation_lease(self, evaluation: Evaluation) -> Lease:
        section = self._recipe.evaluation
        lease_id = self._lease_id("e", evaluation.version)
        _, index, prompt = evaluation.take(lease_id)
        return Lease(
            lease_id=lease_id,
            purpose="evaluate",
            prompt=prompt,
            position=index,
            samples=section.samples,
            temperature=section.temperature,
            max_new_tokens=section.max_new_tokens or self._recipe.rollout.max_new_tokens,
            # The same problems with the same seeds at each version: differences are the policy's.
            seed=PromptOrder(1, seed=self._recipe.seed + 1).seed_of(index),
        )

    def _lease_id(self, kind: str, number: int) -> str:
        self._leases += 1
        return f"{kind}{number}-{self._leases}-{self._store.newest_row()}"

    def _take_group(self, group: SampleGroup, now: float) -> str:
        granted = self._dispatch.finish(group.lease_id)
        if granted is None:
            return "late"  # its prompt was handed out again; the other answer counts
        if granted.lease.purpose == "evaluate":
            return self._take_answers(group, now)
        cause = self._cause_to_drop(group, granted.lease)
        row_id = self._store.add_group(
            group,
            position=granted.lease.position,
            prompt_id=granted.lease.prompt.id,
            cause=cause or None,
        )
        self.produced += 1
        self.sampled_tokens += sum(len(sample.token_ids) for sample in group.samples)
        if cause != "malformed":
            self._note_rewards(group)
        if cause:
            return self._count_drop(cause)
        self._arrived += 1
        self._buffer.add(
            BufferedGroup(
                row_id=row_id,
                position=granted.lease.position,
                min_version=min(v for sample in group.samples for v in sample.versions),
                arrived=self._arrived,
                group=group,
            )
        )
        return "buffered"

    def _cause_to_drop(self, group: SampleGroup, lease: Lease) -> str:
        why = filters.malformed(group, samples=lease.samples)
        if why:
            log.warning("the group of prompt `%s` is refused: %s", lease.prompt.id, why)
            return "malformed"
        if filters.ungradable(group):
            log.warning("the gold answer of prompt `%s` cannot be read", lease.prompt.id)
            return "gold_unparsable"
        if self._recipe.dataflow.drop_equal_rewards and filters.equal_rewards(group):
            return "equal_rewards"
        return ""

    def _take_answers(self, group: SampleGroup, now: float) -> str:
        evaluation = self.evaluation
        found = evaluation.finish(group, now=now) if evaluation else None
        if evaluation is None or found is None:
            return "late"
        dataset, prompt = found
        self._store.add_answers(
            group.samples, version=evaluation.version, dataset=dataset, prompt_id=prompt.id
        )
        self._note_score()
        return "evaluated"

    def _take_failure(self, failure: FailedLease, now: float) -> str:
        granted = self._dispatch.finish(failure.lease_id)
        if granted is None:
            return "late"
        log.warning(
            "no group for prompt `%s`: %s (%s)",
            granted.lease.prompt.id,
            failure.why,
            failure.cause,
        )
        if granted.lease.purpose == "evaluate":
            if self.evaluation is not None:
                self.evaluation.give_up(failure.lease_id, now=now, why=failure.why)
                self._note_score()
            return "evaluated"
        self.produced += 1
        self._store.add_failure(
            failure.lease_id,
            position=granted.lease.position,
            prompt_id=granted.lease.prompt.id,
            cause=failure.cause,
        )
        return self._count_drop(failure.cause)

    def _note_rewards(self, group: SampleGroup) -> None:
        self.recent_rewards += [sample.reward for sample in group.samples]
        self.recent_right += [float(s.outcome is Outcome.RIGHT) for s in group.samples]
        del self.recent_rewards[:-4096], self.recent_right[:-4096]

    def _note_score(self) -> None:
        score = self.evaluation.score if self.evaluation else None
        if score is not None and self.score_of(score.version) is None:
            self.scores.append(score)
            self._store.note("scores", self.scores)

    def _end_evaluation(self, now: float) -> None:
        if self.evaluation is not None and self.evaluation.state != "done":
            self.evaluation.close(now=now)
            self._note_score()

    def _count_drop(self, cause: str, count: int = 1) -> str:
        self.dropped[cause] = self.dropped.get(cause, 0) + count
        return cause

    def _drop_stale(self, version: int) -> None:
        stale = self._buffer.drop_stale(version=version)
        if stale:
            self._store.begin()
            self._store.drop([group.row_id for group in stale], cause="stale")
            self._store.commit()
            self._count_drop("stale", len(stale))

    def _reclaim(self, lost: Sequence[Granted]) -> int:
        for granted in lost:
            if granted.lease.purpose == "train":
                self._order.give_back(granted.lease.position)
            elif self.evaluation is not None:
                self.evaluation.give_back(granted.lease.lease_id)
        return len(lost)
