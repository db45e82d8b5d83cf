"""Serve typed msgpack endpoints with Starlette and uvicorn: token, size limit, bound port."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from astraflow.errors import AstraFlowError
from astraflow.wire.auth import authorized

__all__ = ["Endpoint", "bind", "build_app", "endpoint", "serve"]

log = logging.getLogger(__name__)

Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]
B = TypeVar("B", bound=msgspec.Struct)

# A group of 64 answers of 32k tokens is about 30 MB; a report holds some of them.
_MAX_BODY_BYTES = 512 * 1024 * 1024


def bind(host: str, port: int) -> socket.socket:
    """
    Bind a listening socket; port 0 takes a free one, so there is no race for it.

    Raises:
        AstraFlowError: the port is taken.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise AstraFlowError(
            f"{host}:{port} cannot be bound: {error.strerror}",
            hint="leave the port at 0 to take a free one",
        ) from error
    return listener


def endpoint(body: type[B], handle: Callable[[B], Awaitable[object]], token: str) -> Endpoint:
    """Wrap ``handle`` so that it gets a checked message and its answer is encoded."""
    decoder = msgspec.msgpack.Decoder(body)

    async def answer(request: Request) -> Response:
        if not authorized(_offered(request), token):
            return PlainTextResponse("the token of the run is missing or wrong", 401)
        content = await _read(request)
        if content is None:
            return PlainTextResponse(f"a body may have {_MAX_BODY_BYTES} bytes at most", 413)
        try:
            message = decoder.decode(content)
        except msgspec.DecodeError as error:
            return PlainTextResponse(f"not a {body.__name__}: {error}", 400)
        try:
            result = await handle(message)
        except AstraFlowError as error:
            return PlainTextResponse(str(error), 409)
        return _encoded(result)

    return answer


def build_app(
    endpoints: Mapping[str, Endpoint],
    *,
    token: str,
    healthy: Callable[[], bool],
    metrics: Callable[[], str],
) -> Starlette:
    """Make the application: POST ``endpoints``, and GET /healthz and /metrics."""

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok" if healthy() else "not ready", 200 if healthy() else 503)

    async def metrics_text(request: Request) -> Response:
        if not authorized(_offered(request), token):
            return PlainTextResponse("the token of the run is missing or wrong", 401)
        return PlainTextResponse(metrics(), media_type="text/plain; version=0.0.4")

    routes = [Route(path, answer, methods=["POST"]) for path, answer in endpoints.items()]
    routes += [Route("/healthz", healthz), Route("/metrics", metrics_text)]
    return Starlette(routes=routes)


async def serve(app: Starlette, listener: socket.socket) -> uvicorn.Server:
    """Return a server for ``app``; its ``serve(sockets=[listener])`` runs until asked to stop."""
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=60,
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    # The role has its own signal handling; uvicorn's would swallow the supervisor's SIGTERM.
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    return server


def _offered(request: Request) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ")


async def _read(request: Request) -> bytes | None:
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > _MAX_BODY_BYTES:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def _encoded(result: Any) -> Response:
    if result is None:
        return Response(status_code=204)
    if isinstance(result, bytes):
        return Response(result, media_type="application/octet-stream")
    return Response(msgspec.msgpack.encode(result), media_type="application/msgpack")
