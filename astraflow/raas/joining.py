"""Joining a live run: what an instance must know of it, from its folder or from its service."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from astraflow.errors import WireError
from astraflow.wire import messages as m
from astraflow.wire.auth import TOKEN_VARIABLE
from astraflow.wire.client import ServiceClient

__all__ = ["PATIENCE_S", "LiveRunFacts", "guest_name", "learn"]

PATIENCE_S = 20.0
"""Time for a dataflow service to come back (s): a guest is not restarted, and need not be."""

_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRunFacts:
    """A run that can be joined."""

    folder: Path
    """With recipe.json; logs go into its ``logs``."""

    run_id: str
    """``NAME/N``."""

    dataflow: str
    """Address of its dataflow service."""

    ended: Callable[[], bool]
    """Whether the run is known to be over, once its service does not answer."""


def guest_name() -> str:
    """Return a name for this instance that no other of any host has."""
    return f"raas-{platform.node()}-{os.getpid()}"


def learn(address: str, root: Path) -> LiveRunFacts:
    """
    Ask a dataflow service what run it serves, and make a folder for it here.

    Args:
        address: Such as ``http://10.0.0.5:41234``.
        root: Where run folders are made on this host.

    Raises:
        WireError: no token is set, the service cannot be reached, or it refuses the token.
    """
    token = os.environ.get(TOKEN_VARIABLE, "")
    if not token:
        raise WireError(
            f"`{address}` asks for the run's token, and {TOKEN_VARIABLE} is not set",
            hint=f"`export {TOKEN_VARIABLE}=...` with the text of the file `token` in the run "
            "folder there",
        )
    said = asyncio.run(_ask(address, token))
    folder = root / ".joined" / f"{said.run_id.replace('/', '-')}-{os.getpid()}"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "logs").mkdir()
    (folder / "recipe.json").write_text(said.recipe, encoding="utf-8")
    return LiveRunFacts(folder=folder, run_id=said.run_id, dataflow=address, ended=lambda: False)


async def _ask(address: str, token: str) -> m.RunReply:
    client = ServiceClient(address, token, patience_s=_ANSWER_S)
    try:
        return await client.call("/v1/run", m.RunRequest(), m.RunReply)
    finally:
        await client.close()
