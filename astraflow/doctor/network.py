"""Loopback, which everything but a download goes over: ports, throughput, proxies."""

from __future__ import annotations

import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping

from astraflow.doctor.finding import Finding, Subject, fail, ok, skipped, warn
from astraflow.errors import AstraFlowError
from astraflow.recipe.files import ResolvedRecipe
from astraflow.wire.server import bind

__all__ = ["examine_loopback", "examine_ports", "examine_proxies"]

_MIB = 2**20
_SENT_BYTES = 256 * _MIB
_PIECE_BYTES = _MIB
_TIMEOUT_S = 10.0
# Version after version goes over it: 3.4 GB of a 1.7B model would take 17 s.
_SLOW_MIB_PER_S = 200.0
_LOOPBACK = ("127.0.0.1", "localhost")


def examine_loopback(subject: Subject) -> Iterator[Finding]:
    """Bind a free port, connect to it and send what a version of a small model takes."""
    try:
        with bind("127.0.0.1", 0) as listener:
            speed = _measure(listener)
    except (OSError, AstraFlowError) as error:
        cure = "`ip link set lo up`; then look at the firewall: `iptables -L INPUT -n`"
        yield fail("loopback", f"127.0.0.1 takes no connection: {error}", cure)
        return
    found = f"{speed:.0f} MiB/s through a socket of 127.0.0.1"
    if speed < _SLOW_MIB_PER_S:
        yield warn("loopback", found, "look for a sandbox or a busy host: `uptime`, `ss -s`")
    else:
        yield ok("loopback", found)


def examine_ports(subject: Subject) -> Iterator[Finding]:
    """Bind every port that the recipe fixes; all others are chosen free at the start."""
    ports = _fixed_ports(subject.recipe) if subject.recipe else {}
    if not ports:
        yield skipped("fixed ports", "none: every role takes a free port")
        return
    for path, port in ports.items():
        try:
            bind("127.0.0.1", port).close()
        except (AstraFlowError, OverflowError) as error:
            cure = (
                f"see who holds it with `ss -ltnp 'sport = :{port}'`, or take another: "
                f"`--set {path}=PORT`"
            )
            yield fail(f"port {port}", f"{error} (`{path}`)", cure)
        else:
            yield ok(f"port {port}", f"free (`{path}`)")


def examine_proxies(
    subject: Subject, environment: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Find a proxy that would be asked for 127.0.0.1."""
    variables = os.environ if environment is None else environment
    proxies = {
        name.lower().removesuffix("_proxy"): value
        for name, value in variables.items()
        if name.lower() in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") and value
    }
    asked = proxies.get("http") or proxies.get("all")
    if asked is None:
        yield ok("proxies", "none for http")
        return
    # urllib's own rules are the strictest: it knows names and suffixes, but no 127.0.0.0/8.
    bypass = {"no": proxies.get("no", "")}
    met = [
        host
        for host in _LOOPBACK
        if not urllib.request.proxy_bypass_environment(host, bypass)  # type: ignore[attr-defined]
    ]
    if not met:
        yield ok("proxies", f"`{asked}`, and NO_PROXY spares loopback")
        return
    yield warn(
        "proxies",
        f"http to {' and '.join(met)} goes through `{asked}`; calls between our roles and to "
        "SGLang ignore proxies, but huggingface_hub, requests and curl obey them",
        "`export NO_PROXY=127.0.0.1,localhost`",
    )


def _measure(listener: socket.socket) -> float:
    """Send to ourselves; MiB/s."""
    listener.listen(1)
    listener.settimeout(_TIMEOUT_S)
    sender = threading.Thread(target=_send, args=(listener.getsockname(),), daemon=True)
    sender.start()
    peer, _ = listener.accept()
    with peer:
        peer.settimeout(_TIMEOUT_S)
        buffer, received, started = bytearray(_PIECE_BYTES), 0, time.perf_counter()
        while received < _SENT_BYTES:
            count = peer.recv_into(buffer)
            if not count:
                raise ConnectionError(f"closed after {received} of {_SENT_BYTES} bytes")
            received += count
        return received / _MIB / (time.perf_counter() - started)


def _send(address: tuple[str, int]) -> None:
    piece = bytes(_PIECE_BYTES)
    with socket.create_connection(address, timeout=_TIMEOUT_S) as client:
        for _ in range(_SENT_BYTES // _PIECE_BYTES):
            client.sendall(piece)


def _fixed_ports(resolved: ResolvedRecipe) -> dict[str, int]:
    """List what an engine's own options fix, by path in the recipe."""
    backend = resolved.recipe.rollout.backend
    settings = getattr(resolved.recipe.rollout, backend, None)
    options: Mapping[str, object] = getattr(settings, "server_args", None) or {}
    return {
        f"rollout.{backend}.server_args.{name}": value
        for name, value in options.items()
        if name.replace("-", "_").endswith("port") and type(value) is int and value
    }
