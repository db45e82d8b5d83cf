"""Which golds of a dataset do not verify against themselves, so that no answer may ever be paid."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from astraflow.grading.pool import GradingPool
from astraflow.records import Outcome

__all__ = ["report_golds", "unverified_golds"]

_log = logging.getLogger(__name__)

_SHOWN = 5


def unverified_golds(
    golds: Mapping[str, str], *, workers: int = 1, timeout_s: float = 3.0
) -> dict[str, Outcome]:
    """
    Return the ids whose gold does not verify against itself, with what went wrong.

    Plain numbers and words are told in this process, formulas in killable ones: 38,000 golds of
    DeepScaleR take about 20 s on one core.

    Args:
        golds: Gold by id.
        workers: Processes for formulas (count).
        timeout_s: Hard limit for one gold (s).

    Raises:
        NotReadyError: no worker could be started.
    """
    pool = GradingPool(workers=workers, timeout_s=timeout_s)
    try:
        outcomes = zip(golds, pool.check_golds(golds.values()), strict=True)
        return {key: outcome for key, outcome in outcomes if outcome is not Outcome.RIGHT}
    finally:
        pool.shut_down()


def report_golds(dataset: str, golds: Mapping[str, str]) -> dict[str, Outcome]:
    """Log a dataset's golds that do not verify against themselves, and return them."""
    found = unverified_golds(golds)
    if found:
        shown = ", ".join(f"`{key}` ({golds[key][:40]!r})" for key in list(found)[:_SHOWN])
        _log.warning(
            "%d of %d golds of `%s` do not verify against themselves, so only the same text is "
            "paid: %s%s",
            len(found),
            len(golds),
            dataset,
            shown,
            ", ..." if len(found) > _SHOWN else "",
        )
    return found
