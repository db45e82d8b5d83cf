"""Server: one SGLang process with one copy of the model, and the calls that it answers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import logging
import os
import pickle
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from astraflow.errors import AstraFlowError, NotReadyError
from astraflow_sglang.launch import KEY_VARIABLE

__all__ = ["Server", "ServerLoad"]

log = logging.getLogger(__name__)

_LOADER = "astraflow_sglang.loader.apply"
_ASK_AGAIN_S = 0.25
_STOP_WITHIN_S = 10.0
_LOG_TAIL_LINES = 15
_CONTROL_WITHIN_S = 120.0

ServerLoad = tuple[int, int, float]
"""Running requests, waiting requests, share of the cache in use."""


class Server:
    """
    One server.

    Args:
        name: For its log and messages.
        options: Options of SGLang by long name; True passes the bare option.
        devices: Value of CUDA_VISIBLE_DEVICES.
        log_path: Where its output goes.
        request_timeout_s: Longest time that one answer may take (s).
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, str | int | float | bool],
        *,
        devices: str,
        log_path: Path,
    ) -> None:
        self.name = name
        self._options = options
        self._devices = devices
        self._log_path = log_path
        self._key = secrets.token_hex(16)
        self._process: asyncio.subprocess.Process | None = None
        self._client: aiohttp.ClientSession | None = None
        self._ended: asyncio.Task[int] | None = None

    async def start(self, *, within_s: float) -> None:
        """
        Start the process and return once it answers.

        Raises:
            AstraFlowError: it ended.
            NotReadyError: it did not answer in time.
        """
        port = _free_port()
        command = [sys.executable, "-m", "astraflow_sglang.launch", "--port", str(port)]
        for name, value in self._options.items():
            option = "--" + name.replace("_", "-")
            command += [option] if value is True else [option, str(value)]
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": self._devices,
            KEY_VARIABLE: self._key,
            # Its children import our loader; a proxy must not come between us on loopback.
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }
        log.info("%s: %s", self.name, " ".join(command))
        with self._log_path.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        self._ended = asyncio.create_task(self._process.wait())
        # As many connections as requests: aiohttp finds a free one at once, however many.
        self._client = aiohttp.ClientSession(
            f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {self._key}"},
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=_CONTROL_WITHIN_S),
            trust_env=False,
        )
        await self._await_health(within_s)

    async def generate(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """
        Sample one answer and return SGLang's reply.

        Raises:
            AstraFlowError: the server refused, aborted or ended.
        """
        return await self._post("/generate", body, within_s=None)

    async def abort(self, request_id: str) -> None:
        """Free a request's place."""
        await self._post("/abort_request", {"rid": request_id})

    async def run_loader(self, control: str) -> None:
        """Call our loader in the server's worker, while no request is there, with one line."""
        body = {
            "serialized_named_tensors": [_pickled(control)],
            "load_format": _LOADER,
            # With requests alive a flush cannot succeed, and SGLang asserts that it does.
            "flush_cache": False,
            "abort_all_requests": False,
        }
        await self._post("/update_weights_from_tensor", body)

    async def checksum(self) -> Any:
        """Return SGLang's own checksum of its weights."""
        return await self._post("/weights_checker", {"action": "checksum"})

    async def read_load(self) -> ServerLoad:
        """Return how busy the server is."""
        reply = await self._get("/v1/loads?include=core")
        load = reply["loads"][0]
        return load["num_running_reqs"], load["num_waiting_reqs"], load["token_usage"]

    async def read_info(self) -> dict[str, Any]:
        """Return SGLang's own description of the server."""
        return await self._get("/server_info")

    def require_alive(self) -> None:
        """
        Check that the process runs.

        Raises:
            AstraFlowError: it has ended; the end of its log is in the message.
        """
        if self._ended is not None and self._ended.done():
            raise AstraFlowError(
                f"the SGLang server {self.name} ended with {_described(self._ended.result())}:\n"
                f"{self._log_tail()}",
                hint=f"the whole log is {self._log_path}",
            )

    async def ended(self) -> None:
        """Wait until the process has ended."""
        assert self._ended is not None
        await asyncio.wait([self._ended])

    async def close(self) -> None:
        """Stop the process and all that it started."""
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._process is None or self._ended is None:
            return
        self._signal(signal.SIGTERM)
        await asyncio.wait([self._ended], timeout=_STOP_WITHIN_S)
        self._signal(signal.SIGKILL)  # also what the server left behind in its group
        await self._ended
        self._process = None  # its number may soon be another's

    # --- inside

    async def _await_health(self, within_s: float) -> None:
        give_up = time.monotonic() + within_s
        while time.monotonic() < give_up:
            self.require_alive()
            assert self._client is not None
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                within = aiohttp.ClientTimeout(total=5.0)
                async with self._client.get("/health", timeout=within) as reply:
                    if reply.status == 200:  # noqa: PLR2004 - HTTP's own number
                        return
            await asyncio.sleep(_ASK_AGAIN_S)
        raise NotReadyError(
            f"the SGLang server {self.name} did not answer within {within_s:g} s:\n"
            f"{self._log_tail()}",
            hint="a first start compiles kernels: raise `rollout.sglang.start_timeout_s`",
        )

    async def _post(
        self, path: str, body: Mapping[str, Any], *, within_s: float | None = _CONTROL_WITHIN_S
    ) -> dict[str, Any]:
        return await self._ask("POST", path, body, within_s)

    async def _get(self, path: str) -> dict[str, Any]:
        return await self._ask("GET", path, None, _CONTROL_WITHIN_S)

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, within_s: float | None
    ) -> dict[str, Any]:
        self.require_alive()
        assert self._client is not None
        timeout = aiohttp.ClientTimeout(total=within_s)
        try:
            async with self._client.request(method, path, json=body, timeout=timeout) as reply:
                content = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.require_alive()
            raise AstraFlowError(
                f"the SGLang server {self.name} did not answer {path}: {error!r}"
            ) from error
        if reply.status != 200:  # noqa: PLR2004 - HTTP's own number
            raise AstraFlowError(
                f"the SGLang server {self.name} answers {path} with {reply.status}: "
                f"{content[:500].decode(errors='replace')}"
            )
        if not reply.content_type.startswith("application/json"):
            return {}
        answer: dict[str, Any] = msgspec.json.decode(content)
        return answer

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            lines = self._log_path.read_text(errors="replace").splitlines()
            return "\n".join(f"  {line}" for line in lines[-_LOG_TAIL_LINES:])
        return "  (no log)"


def _pickled(control: str) -> str:
    """
    Write a control line in the form SGLang takes: a list with one named tensor of bytes.

    Pickle is SGLang's choice of body for this call. It is only written here, on loopback, behind
    the server's key; nothing in this package reads one.
    """
    import torch

    content = torch.frombuffer(bytearray(control.encode()), dtype=torch.uint8)
    buffer = io.BytesIO()
    pickle.Pickler(buffer, protocol=5).dump([("control", content)])
    return base64.b64encode(buffer.getvalue()).decode()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _described(returncode: int) -> str:
    if returncode < 0:
        return f"signal {signal.Signals(-returncode).name}"
    return f"exit code {returncode}"
