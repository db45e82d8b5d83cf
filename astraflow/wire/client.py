"""ServiceClient: typed msgpack calls to a service of this run, with deadlines and retries."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import httpx
import msgspec

from astraflow.errors import WireError

__all__ = ["ServiceClient"]

T = TypeVar("T")
_CONNECT_S = 5.0
_PAUSE_S = 0.2


class ServiceClient:
    """
    One service's HTTP address with the run's token.

    A call that cannot reach the service is tried again until its deadline; one that the service
    answers with an error is not.

    Args:
        address: Such as ``http://127.0.0.1:8000``.
        token: The run's token.
        patience_s: Deadline of a call that names none; a service that is being restarted must
            be back within it (s).
    """

    def __init__(self, address: str, token: str, *, patience_s: float = 30.0) -> None:
        self.address = address
        self._patience_s = patience_s
        self._http = httpx.AsyncClient(
            base_url=address,
            headers={"Authorization": f"Bearer {token}"},
            # The services of a run are never behind a proxy; an environment's proxy would break
            # loopback.
            trust_env=False,
            timeout=httpx.Timeout(60.0, connect=_CONNECT_S),
        )

    async def call(
        self, path: str, body: msgspec.Struct, reply: type[T], *, within_s: float | None = None
    ) -> T:
        """
        Post ``body`` and decode the answer.

        Raises:
            WireError: the service could not be reached in time, refused, or answered nonsense.
        """
        content = await self.call_raw(path, body, within_s=within_s)
        try:
            return msgspec.msgpack.decode(content, type=reply)
        except msgspec.DecodeError as error:
            raise WireError(f"`{path}` answered with a broken message: {error}") from error

    async def call_raw(
        self, path: str, body: msgspec.Struct, *, within_s: float | None = None
    ) -> bytes:
        """
        Post ``body`` and return the answer's bytes; empty when the service had nothing.

        Raises:
            WireError: as for :meth:`call`.
        """
        within_s = self._patience_s if within_s is None else within_s
        content = msgspec.msgpack.encode(body)
        loop = asyncio.get_running_loop()
        give_up = loop.time() + within_s
        while True:
            left_s = give_up - loop.time()
            try:
                response = await self._http.post(path, content=content, timeout=max(left_s, 1.0))
            except (httpx.TransportError, OSError) as error:
                if loop.time() + _PAUSE_S >= give_up:
                    raise WireError(
                        f"`{self.address}{path}` could not be reached within {within_s:g} s: "
                        f"{type(error).__name__} {error}",
                        hint="look at the log of the role that serves it",
                    ) from error
                await asyncio.sleep(_PAUSE_S)
                continue
            return _checked(response, path)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _checked(response: httpx.Response, path: str) -> bytes:
    if response.status_code == httpx.codes.NO_CONTENT:
        return b""
    if response.is_success:
        return response.content
    raise WireError(f"`{path}` answered {response.status_code}: {_reason(response)}")


def _reason(response: httpx.Response) -> Any:
    return response.text[:500] or "no reason given"
