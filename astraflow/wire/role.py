"""The frame that every role runs in: signals, lifeline, heartbeats, and the edge for errors."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from astraflow.errors import AstraFlowError
from astraflow.logs import configure
from astraflow.wire.events import Events, Lifeline
from astraflow.wire.waits import Waits

__all__ = ["Role", "leave", "run_role"]

log = logging.getLogger(__name__)

_BEAT_S = 1.0


class Role:
    """What a role's code gets from its frame."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events = Events()
        self.waits = Waits()
        self.stop = asyncio.Event()
        """Set when somebody asked this role to leave."""

    def ready(self, **fields: Any) -> None:
        """Say that the role answers now."""
        log.info("ready %s", fields or "")
        self.events.send("ready", pid=os.getpid(), **fields)

    async def beat(self, numbers: Callable[[], dict[str, Any]]) -> None:
        """Send heartbeats with the role's numbers and waits until cancelled."""
        while True:
            self.events.send("beat", numbers=numbers(), waits=self.waits.current()[:4])
            await asyncio.sleep(_BEAT_S)


def run_role(name: str, body: Callable[[Role], Awaitable[None]]) -> int:
    """
    Run a role to its end and return its exit code.

    An error ends the process here and nowhere else: with its traceback in the log and one event
    for the supervisor.
    """
    configure(name)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    Lifeline().watch()
    return asyncio.run(_run(name, body))


def leave(code: int) -> NoReturn:
    """
    End this process at once, with everything written.

    The interpreter's own end stops daemon threads wherever they are; inside a C++ frame of torch
    or of a socket call that is `std::terminate`, and a finished run would look like a crash.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


async def _run(name: str, body: Callable[[Role], Awaitable[None]]) -> int:
    role = Role(name)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, role.stop.set)
    # Ctrl-C reaches the supervisor, which asks each role in order; a role alone stops by it.
    if role.events.connected:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGINT, role.stop.set)
    try:
        await body(role)
    except AstraFlowError as error:
        log.error("%s", error, exc_info=True)
        role.events.send(
            "error", what=error.what[:1500], hint=error.hint[:1500], code=error.exit_code
        )
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the edge of the role: logged, reported, ended
        log.exception("the role ends with an error")
        role.events.send("error", what=f"{type(error).__name__}: {error}"[:1500], hint="", code=1)
        return 1
    role.events.send("done")
    return 0
