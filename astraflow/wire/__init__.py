"""How processes talk: msgpack messages over HTTP, events on a pipe, frames over TCP."""

from astraflow.wire.auth import authorized, new_token, read_token
from astraflow.wire.client import ServiceClient
from astraflow.wire.events import Events, Lifeline
from astraflow.wire.waits import Waits

__all__ = [
    "Events",
    "Lifeline",
    "ServiceClient",
    "Waits",
    "authorized",
    "new_token",
    "read_token",
]
