"""PromptOrder: the endless seeded order of prompts, which survives a restart."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from astraflow.errors import DataError

__all__ = ["PromptOrder"]


class PromptOrder:
    """
    Position ``p`` is row ``permutation(epoch)[p % count]`` of the dataset.

    A position is taken once; one that is given back is taken again before any new one, lowest
    first. So the order depends on the seed alone, never on who sampled how fast.
    """

    def __init__(self, count: int, *, seed: int, shuffle: bool = True) -> None:
        if count < 1:
            raise DataError("the training set is empty after its filters")
        self._count = count
        self._seed = seed
        self._shuffle = shuffle
        self._next = 0
        self._returned: list[int] = []
        self._epoch = -1
        self._permutation: np.ndarray[Any, np.dtype[np.int64]] = np.arange(count)

    @property
    def epoch(self) -> float:
        """Passes over the dataset so far, as a fraction."""
        return self._next / self._count

    def take(self) -> int:
        """Return the next position."""
        if self._returned:
            return heapq.heappop(self._returned)
        self._next += 1
        return self._next - 1

    def give_back(self, position: int) -> None:
        """Have a position taken again, before any new one."""
        heapq.heappush(self._returned, position)

    def row(self, position: int) -> int:
        """Return the dataset row that stands at a position."""
        epoch, offset = divmod(position, self._count)
        if not self._shuffle:
            return offset
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._permutation = generator.permutation(self._count)
            self._epoch = epoch
        return int(self._permutation[offset])

    def seed_of(self, position: int) -> int:
        """Return the seed of a position's first sample; samples count up from it."""
        sequence = np.random.SeedSequence([self._seed, position])
        return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(2))

    def state(self, in_flight: list[int]) -> dict[str, Any]:
        """Return what :meth:`restore` needs; prompts in flight will be taken again."""
        return {
            "count": self._count,
            "seed": self._seed,
            "next": self._next,
            "returned": sorted({*self._returned, *in_flight}),
        }

    def resume_after(self, positions: Sequence[int]) -> None:
        """Continue after the positions that gave something; those between are taken again."""
        self._next = max(positions, default=-1) + 1
        self._returned = sorted(set(range(self._next)) - set(positions))

    def restore(self, state: dict[str, Any]) -> bool:
        """Continue where ``state`` was taken; False if it belongs to another dataset."""
        if (state["count"], state["seed"]) != (self._count, self._seed):
            return False
        self._next = state["next"]
        self._returned = list(state["returned"])
        heapq.heapify(self._returned)
        return True
