"""Store: every group and every evaluated answer of a run in one SQLite file (WAL)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from astraflow.dataflow.buffer import BufferedGroup
from astraflow.records import GradedSample, Outcome, SampleGroup

__all__ = ["EVALUATIONS_SCHEMA", "Store"]

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS groups (
    id INTEGER PRIMARY KEY,
    lease_id TEXT NOT NULL UNIQUE,
    position INTEGER NOT NULL,          -- place of the prompt in the endless order
    prompt_id TEXT NOT NULL,
    min_version INTEGER NOT NULL,       -- of the oldest token
    reward_mean REAL NOT NULL,
    right INTEGER NOT NULL,             -- samples
    samples INTEGER NOT NULL,
    answer_tokens INTEGER NOT NULL,
    state TEXT NOT NULL,                -- buffered, consumed or dropped
    cause TEXT,                         -- why it was dropped
    step INTEGER,                       -- whose batch it went into
    received_at REAL NOT NULL,          -- Unix time (s)
    body BLOB NOT NULL                  -- msgpack of the whole group
);
CREATE INDEX IF NOT EXISTS groups_state ON groups (state);
CREATE TABLE IF NOT EXISTS state (
    name TEXT PRIMARY KEY,              -- of what a restarted service must know
    value BLOB NOT NULL                 -- msgpack
);
CREATE VIEW IF NOT EXISTS training_solve_rates AS
    SELECT prompt_id, min_version AS version, SUM(samples) AS samples, SUM(right) AS right,
        1.0 * SUM(right) / SUM(samples) AS solve_rate
    FROM groups WHERE samples > 0 GROUP BY prompt_id, min_version;
"""

EVALUATIONS_SCHEMA = """
CREATE TABLE IF NOT EXISTS evaluations (
    version INTEGER NOT NULL,
    dataset TEXT NOT NULL,
    prompt_id TEXT NOT NULL,
    sample INTEGER NOT NULL,
    reward REAL NOT NULL,
    outcome TEXT NOT NULL,
    finish TEXT NOT NULL,
    answer_tokens INTEGER NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (version, dataset, prompt_id, sample)
);
CREATE VIEW IF NOT EXISTS solve_rates AS
    SELECT dataset, prompt_id, version, COUNT(*) AS samples,
        SUM(outcome = 'right') AS right, 1.0 * SUM(outcome = 'right') / COUNT(*) AS solve_rate
    FROM evaluations GROUP BY dataset, prompt_id, version;
"""
"""Every evaluated answer, and the share of right ones by problem and version; an evaluation
outside a run writes the same, so that one reader serves both."""


class Store:
    """
    The file and its one connection, used from one thread.

    A commit is durable against the death of the process; against the death of the machine the
    last moments may be lost, never the file (``synchronous=NORMAL`` with WAL).
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.executescript(_SCHEMA + EVALUATIONS_SCHEMA)

    def begin(self) -> None:
        """Start one transaction over the calls up to :meth:`commit`."""
        self._db.execute("BEGIN")

    def commit(self) -> None:
        """Make what was written since :meth:`begin` durable."""
        self._db.execute("COMMIT")

    def add_group(
        self, group: SampleGroup, *, position: int, prompt_id: str, cause: str | None
    ) -> int:
        """Write a group that came in, buffered or dropped by ``cause``; return its key."""
        versions = [version for sample in group.samples for version in sample.versions]
        rewards = [sample.reward for sample in group.samples]
        cursor = self._db.execute(
            "INSERT INTO groups (lease_id, position, prompt_id, min_version, reward_mean, right,"
            " samples, answer_tokens, state, cause, received_at, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                group.lease_id,
                position,
                prompt_id,
                min(versions, default=0),
                sum(rewards) / len(rewards) if rewards else 0.0,
                sum(sample.outcome is Outcome.RIGHT for sample in group.samples),
                len(group.samples),
                len(versions),
                "dropped" if cause else "buffered",
                cause,
                time.time(),
                msgspec.msgpack.encode(group),
            ),
        )
        return int(cursor.lastrowid or 0)

    def add_failure(self, lease_id: str, *, position: int, prompt_id: str, cause: str) -> None:
        """Write that a prompt gave no group; it counts as produced and dropped."""
        self._db.execute(
            "INSERT INTO groups (lease_id, position, prompt_id, min_version, reward_mean, right,"
            " samples, answer_tokens, state, cause, received_at, body)"
            " VALUES (?, ?, ?, 0, 0.0, 0, 0, 0, 'dropped', ?, ?, x'')",
            (lease_id, position, prompt_id, cause, time.time()),
        )

    def consume(self, row_ids: Iterable[int], *, step: int) -> None:
        """Note that groups went into the batch of ``step``."""
        self._db.executemany(
            "UPDATE groups SET state = 'consumed', step = ? WHERE id = ?",
            [(step, row_id) for row_id in row_ids],
        )

    def drop(self, row_ids: Iterable[int], *, cause: str) -> None:
        """Note that buffered groups were dropped."""
        self._db.executemany(
            "UPDATE groups SET state = 'dropped', cause = ? WHERE id = ?",
            [(cause, row_id) for row_id in row_ids],
        )

    def newest_row(self) -> int:
        """Return the key of the newest group, 0 when there is none."""
        return int(self._db.execute("SELECT COALESCE(MAX(id), 0) FROM groups").fetchone()[0])

    def rewind(self, *, newest_row: int, step: int, buffered: Iterable[BufferedGroup]) -> None:
        """Forget what happened after a checkpoint, so that the accounts agree with it."""
        self._db.execute("DELETE FROM groups WHERE id > ?", (newest_row,))
        self._db.execute(
            "UPDATE groups SET state = 'buffered', cause = NULL, step = NULL WHERE id IN"
            " (SELECT value FROM json_each(?))",
            (msgspec.json.encode([group.row_id for group in buffered]).decode(),),
        )
        self._db.execute("DELETE FROM evaluations WHERE version > ?", (step,))

    def add_answers(
        self,
        samples: Iterable[GradedSample],
        *,
        version: int,
        dataset: str,
        prompt_id: str,
    ) -> None:
        """Write the graded answers to one evaluation problem."""
        self._db.executemany(
            "INSERT OR REPLACE INTO evaluations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    version,
                    dataset,
                    prompt_id,
                    index,
                    sample.reward,
                    sample.outcome.value,
                    sample.finish.value,
                    len(sample.token_ids),
                    sample.text,
                )
                for index, sample in enumerate(samples)
            ],
        )

    def positions(self, *, after_row: int) -> list[int]:
        """List the positions that have a row with a key above ``after_row``, ascending."""
        rows = self._db.execute(
            "SELECT DISTINCT position FROM groups WHERE id > ? ORDER BY position", (after_row,)
        )
        return [position for (position,) in rows]

    def groups(self, state: str, *, step: int | None = None) -> list[BufferedGroup]:
        """Read groups back by their state, those of one batch only if ``step`` is given."""
        rows = self._db.execute(
            "SELECT id, position, min_version, body FROM groups"
            " WHERE state = ? AND (? IS NULL OR step = ?) ORDER BY id",
            (state, step, step),
        )
        return [
            BufferedGroup(
                row_id=row_id,
                position=position,
                min_version=min_version,
                arrived=row_id,
                group=msgspec.msgpack.decode(body, type=SampleGroup),
            )
            for row_id, position, min_version, body in rows
        ]

    def note(self, name: str, value: object) -> None:
        """Keep something that a restarted service must know."""
        self._db.execute(
            "INSERT OR REPLACE INTO state VALUES (?, ?)", (name, msgspec.msgpack.encode(value))
        )

    def noted(self, name: str, kind: type[T], default: T) -> T:
        """Return what :meth:`note` kept."""
        row = self._db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return default if row is None else msgspec.msgpack.decode(row[0], type=kind)

    def counts(self) -> dict[str, int]:
        """Count groups by state, dropped ones by cause (``dropped:CAUSE``)."""
        rows = self._db.execute("SELECT state, cause, COUNT(*) FROM groups GROUP BY state, cause")
        return {f"{state}:{cause}" if cause else state: count for state, cause, count in rows}

    def close(self) -> None:
        """Close the file."""
        self._db.close()
