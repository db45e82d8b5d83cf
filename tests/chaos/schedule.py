"""A seeded schedule of kills, stops and cut connections, and what must hold after it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.process.conftest import Run

Start = Callable[..., Run]

_KILLED_FRAC = 0.7
_LONGEST_STOP_S = 8.0
_LAST_STEPS = 20


def bounds(kills: int) -> tuple[str, ...]:
    """Return overrides with which a run lives through so many kills (count)."""
    return (
        f"trainer.steps={10 * max(kills, 10)}",
        "checkpoint.every_steps=1",
        "evaluation.every_steps=null",
        "limits.heartbeat_s=5",
        "recovery.backoff_s=0.1",
        "recovery.window_s=1",
        *(f"recovery.{kind}_restarts=50" for kind in ("raas", "dataflow", "trainer")),
    )


def disturb(run: Run, *, hits: int, seed: int, longest_pause_s: float) -> list[str]:
    """
    Kill a random process of the run, or stop it for a while, again and again.

    Args:
        run: Living; any of its processes but the supervisor may be hit.
        hits: Kills and stops (count).
        seed: Of moments, victims and kinds.
        longest_pause_s: Between two hits (s).

    Returns:
        What was done.
    """
    draw = random.Random(seed)
    done: list[str] = []
    while len(done) < hits:
        time.sleep(draw.uniform(0.2, longest_pause_s))
        assert run.process.poll() is None, "\n".join([*done, run.output()[-4000:]])
        with contextlib.suppress(ProcessLookupError, FileNotFoundError, IndexError):
            done.append(_hit(run, draw))
    return done


def end(run: Run) -> dict[str, int]:
    """
    Ask the run to end, and check that nothing was lost, counted twice or left behind.

    Returns:
        Groups by state (count).
    """
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.process.wait(120) == 130, run.output()[-4000:]  # noqa: PLR2004 - 128 + SIGINT
    run.until_gone()
    return check_accounts(run)


def check_accounts(run: Run) -> dict[str, int]:
    """Check that every group has one place, and every step its number of them."""
    with sqlite3.connect(run.folder / "rollouts.sqlite") as db:
        states = dict(db.execute("SELECT state, COUNT(*) FROM groups GROUP BY state"))
        total, positions = db.execute(
            "SELECT COUNT(*), COUNT(DISTINCT position) FROM groups"
        ).fetchone()
        sizes = db.execute(
            "SELECT COUNT(*) FROM groups WHERE state = 'consumed' GROUP BY step"
        ).fetchall()
    assert total == positions == sum(states.values())
    assert set(sizes) == {(4,)}
    return states


def last_reward(run: Run) -> float:
    """Return the mean reward of the newest steps' answers, 0 to 1."""
    lines = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rewards = [json.loads(line)["trainer/reward_mean"] for line in lines]
    return statistics.mean(rewards[-_LAST_STEPS:])


def shared_memory() -> set[str]:
    """Return the names in /dev/shm."""
    return set(os.listdir("/dev/shm"))


class CuttingProxy:
    """
    A TCP proxy that cuts what goes through it at random moments.

    Args:
        port: Where it leads to, on loopback.
        seed: Of the moments.
        longest_life_s: Longest time of one connection (s).
    """

    def __init__(self, port: int, *, seed: int, longest_life_s: float) -> None:
        self._target = port
        self._draw = random.Random(seed)
        self._longest_life_s = longest_life_s
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self.port = 0
        self.cuts = 0
        """Connections that were cut (count)."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listening.wait(10)

    def close(self) -> None:
        """Cut everything and end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        server = self._loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        pumps = [
            asyncio.ensure_future(_pump(reader, forth)),
            asyncio.ensure_future(_pump(back, writer)),
        ]
        life_s = self._draw.uniform(0.05, self._longest_life_s)
        _, alive = await asyncio.wait(pumps, timeout=life_s, return_when=asyncio.FIRST_COMPLETED)
        self.cuts += len(alive) == len(pumps)
        for pump in pumps:
            pump.cancel()
        for end_of in (writer, forth):
            # With data under way the other side sees a reset.
            end_of.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


def _hit(run: Run, draw: random.Random) -> str:
    victims = [pid for pid in run.processes() if pid != run.process.pid]
    pid = draw.choice(victims)
    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[-60:]
    if draw.random() < _KILLED_FRAC:
        os.kill(pid, signal.SIGKILL)
        return f"SIGKILL {pid} {command}"
    os.kill(pid, signal.SIGSTOP)
    still_s = draw.uniform(0.1, _LONGEST_STOP_S)
    time.sleep(still_s)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    return f"SIGSTOP {pid} for {still_s:.1f} s {command}"
