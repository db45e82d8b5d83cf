"""The threads that share large loops over weights; the compiled loops run without the lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

__all__ = ["spread"]

T = TypeVar("T")
R = TypeVar("R")

# Below this much memory to walk through, handing work to threads costs more than it saves.
_WORTH_BYTES = 4 * 1024 * 1024


def spread(work: Callable[[T], R], items: Sequence[T], *, total_bytes: int) -> list[R]:
    """
    Do ``work`` on every item, in threads if there is enough of it; return the results in order.

    Args:
        work: Safe to call from several threads.
        items: What to work on.
        total_bytes: Memory that all of it walks through (bytes).
    """
    if total_bytes < _WORTH_BYTES or len(items) < 2:
        return [work(item) for item in items]
    return list(_pool().map(work, items))


@cache
def _pool() -> ThreadPoolExecutor:
    cores = len(os.sched_getaffinity(0))
    return ThreadPoolExecutor(min(cores, 16), thread_name_prefix="weights")
