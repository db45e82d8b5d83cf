"""Frames, endpoints, the client, waits and logs: what comes over a wire is checked or refused."""

from __future__ import annotations

import io
import logging
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from astraflow import logs
from astraflow.errors import AstraFlowError, WireError
from astraflow.wire import ServiceClient, Waits, authorized, new_token, read_token
from astraflow.wire.frames import (
    HEADER_BYTES,
    Frame,
    receive_frame,
    receive_frame_into,
    send_frame,
)
from astraflow.wire.server import bind, build_app, endpoint


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the test's endpoint is asked."""

    number: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What it answers."""

    double: int


# --- frames


def _wire_bytes(payload: bytes, **numbers: int) -> bytes:
    near, far = socket.socketpair()
    with near, far:
        size = send_frame(near, 8, payload, **numbers)
        return far.recv(size + 1)


def _receive(content: bytes, *, into: memoryview | None = None) -> Frame:
    """Receive one frame from a peer that sends ``content`` and then ends."""
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(5)
        near.sendall(content)
        near.shutdown(socket.SHUT_WR)
        return receive_frame(far) if into is None else receive_frame_into(far, into)


def test_frame_has_the_documented_layout() -> None:
    content = _wire_bytes(b"abc", sequence=7, transfer=9)
    magic, kind, _, sequence, transfer, size, _ = struct.unpack("<4sHHIIQQ", content[:32])
    assert HEADER_BYTES == 32
    assert (magic, kind, sequence, transfer, size) == (b"AFW1", 8, 7, 9, 3)
    assert content[32:] == b"abc"


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 100])
def test_frame_arrives_as_it_was_sent(payload: bytes) -> None:
    frame = _receive(_wire_bytes(payload, sequence=7, transfer=9))
    assert (frame.kind, frame.sequence, frame.transfer) == (8, 7, 9)
    assert bytes(frame.payload) == payload


def test_every_flipped_bit_of_a_frame_is_an_error() -> None:
    content = _wire_bytes(b"seventeen bytes!!", sequence=3, transfer=5)
    for bit in range(len(content) * 8):
        spoiled = bytearray(content)
        spoiled[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises(WireError):
            _receive(bytes(spoiled))


def test_flipped_bit_of_the_length_is_not_waited_for() -> None:
    content = _wire_bytes(b"abc")
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(0.5)
        for bit in range(16 * 8, 24 * 8):
            spoiled = bytearray(content)
            spoiled[bit // 8] ^= 1 << (bit % 8)
            near.sendall(spoiled[:HEADER_BYTES])  # the connection stays open, and silent
            with pytest.raises(WireError, match="does not match its check"):
                receive_frame(far)


@pytest.mark.parametrize("cut", range(36))
def test_cut_frame_is_an_error_and_not_a_short_payload(cut: int) -> None:
    content = _wire_bytes(b"four")
    with pytest.raises(WireError, match="bytes too early"):
        _receive(content[:cut])


def test_frame_longer_than_announced_is_refused_before_it_is_read() -> None:
    buffer = bytearray(4)
    content = _wire_bytes(b"fives")
    with pytest.raises(WireError, match="a frame of 5 bytes is longer than the 4 announced"):
        _receive(content, into=memoryview(buffer))
    assert buffer == b"\0" * 4
    frame = _receive(_wire_bytes(b"abc"), into=memoryview(buffer))
    assert (bytes(frame.payload), bytes(buffer)) == (b"abc", b"abc\0")


def test_peer_that_is_silent_is_an_error_with_the_time() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(0.05)
        with pytest.raises(WireError, match=r"sent nothing for 0\.05 s"):
            receive_frame(far)


def test_large_frame_crosses_sockets_that_take_it_in_pieces() -> None:
    payload = bytes(range(256)) * 40_000  # 10 MB, more than a socket's buffers
    near, far = socket.socketpair()
    with near, far:
        sender = threading.Thread(target=send_frame, args=(near, 1, memoryview(payload)))
        sender.start()
        frame = receive_frame(far)
        sender.join()
    assert frame.payload == payload


# --- endpoints


async def _double(question: Question) -> Reply:
    if question.number == 13:
        raise AstraFlowError("13 is unlucky", hint="ask for another")
    return Reply(double=2 * question.number)


async def _nothing(_: Question) -> None:
    return None


async def _raw(_: Question) -> bytes:
    return b"\0raw"


def _http(token: str = "secret", *, healthy: bool = True) -> httpx.AsyncClient:
    handlers: dict[str, Callable[[Question], Awaitable[object]]] = {
        "/double": _double, "/nothing": _nothing, "/raw": _raw,
    }  # fmt: skip
    app = build_app(
        {path: endpoint(Question, handle, "secret") for path, handle in handlers.items()},
        token="secret",
        healthy=lambda: healthy,
        metrics=lambda: "steps 3\n",
    )
    headers = [(b"Authorization", f"Bearer {token}".encode())] if token else []
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://role", headers=headers)


_ASKED = msgspec.msgpack.encode(Question(number=21))


async def test_endpoint_answers_a_right_question() -> None:
    async with _http() as http:
        answer = await http.post("/double", content=_ASKED)
        assert msgspec.msgpack.decode(answer.content) == {"double": 42}
        assert (await http.post("/nothing", content=_ASKED)).status_code == 204
        assert (await http.post("/raw", content=_ASKED)).content == b"\0raw"


@pytest.mark.parametrize("token", ["", "wrong", "secre", "secret ", "sécret"])
async def test_missing_or_wrong_token_is_refused_everywhere(token: str) -> None:
    async with _http(token) as http:
        for path in ("/double", "/nothing", "/raw"):
            assert (await http.post(path, content=_ASKED)).status_code == 401
        assert (await http.get("/metrics")).status_code == 401


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xc1",
        b"not msgpack",
        _ASKED[:-1],
        _ASKED + b"\0",
        msgspec.msgpack.encode({"number": "21"}),
        msgspec.msgpack.encode({"number": 21, "extra": 1}),
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode([21]),
    ],
)
async def test_broken_or_foreign_message_is_a_bad_request(content: bytes) -> None:
    async with _http() as http:
        answer = await http.post("/double", content=content)
    assert answer.status_code == 400
    assert answer.text.startswith("not a Question: ")


async def test_body_over_the_limit_is_refused_while_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("astraflow.wire.server._MAX_BODY_BYTES", 1000)
    asked_for = 0

    async def pieces() -> AsyncIterator[bytes]:
        nonlocal asked_for
        for _ in range(100):
            asked_for += 1
            yield b"\0" * 600

    async with _http() as http:
        assert (await http.post("/double", content=pieces())).status_code == 413
        assert asked_for == 2
        assert (await http.post("/double", content=_ASKED)).status_code == 200


async def test_error_of_ours_reaches_the_caller_with_its_hint() -> None:
    async with _http() as http:
        answer = await http.post("/double", content=msgspec.msgpack.encode(Question(number=13)))
    assert (answer.status_code, answer.text) == (409, "13 is unlucky; hint: ask for another")


async def test_health_needs_no_token_and_tells_whether_the_role_is_ready() -> None:
    async with _http("") as http:
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/double")).status_code == 405
    async with _http("", healthy=False) as http:
        assert (await http.get("/healthz")).status_code == 503
    async with _http() as http:
        assert (await http.get("/metrics")).text == "steps 3\n"


def test_taken_port_is_an_error_and_port_zero_a_free_one() -> None:
    first = bind("127.0.0.1", 0)
    first.listen()
    with first, pytest.raises(AstraFlowError, match="cannot be bound") as raised:
        bind("127.0.0.1", first.getsockname()[1])
    assert "leave the port at 0" in raised.value.hint


# --- the client


async def test_client_gives_up_at_its_deadline_and_names_the_address() -> None:
    closed = bind("127.0.0.1", 0)
    port = closed.getsockname()[1]
    closed.close()
    client = ServiceClient(f"http://127.0.0.1:{port}", "secret")
    with pytest.raises(WireError, match=rf"127\.0\.0\.1:{port}/double` could not be reached"):
        await client.call("/double", Question(number=1), Reply, within_s=0.3)
    await client.close()


@pytest.mark.parametrize(
    ("token", "number", "why"),
    [("secret", 13, "answered 409: 13 is unlucky"), ("wrong", 1, "answered 401: the token")],
)
async def test_client_raises_what_the_service_refuses(token: str, number: int, why: str) -> None:
    client = ServiceClient("http://role", token)
    await client.close()
    client._http = _http(token)
    with pytest.raises(WireError, match=why):
        await client.call("/double", Question(number=number), Reply)
    await client.close()


async def test_client_refuses_an_answer_of_another_form() -> None:
    client = ServiceClient("http://role", "secret")
    await client.close()
    client._http = _http()
    assert await client.call("/double", Question(number=4), Reply) == Reply(double=8)
    assert await client.call_raw("/nothing", Question(number=4), within_s=5) == b""
    with pytest.raises(WireError, match="broken message"):
        await client.call("/raw", Question(number=4), Reply)
    await client.close()


# --- tokens


def test_tokens_differ_and_only_the_same_one_is_authorized() -> None:
    token = new_token()
    assert len(token) >= 43
    assert token != new_token()
    assert authorized(token, token)
    assert not authorized(token[:-1], token)
    assert not authorized("", token)


def test_token_comes_from_the_environment_then_from_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASTRAFLOW_TOKEN", raising=False)
    with pytest.raises(WireError, match="no token for the run"):
        read_token(tmp_path)
    (tmp_path / "token").write_text("from the folder\n")
    assert read_token(tmp_path) == "from the folder"
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "from outside")
    assert read_token(tmp_path) == "from outside"


# --- waits


def test_open_waits_are_listed_oldest_first_and_closed_ones_add_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("astraflow.wire.waits.time.monotonic", lambda: now[0])
    waits = Waits()
    with waits.waiting("dataflow: batch 12", deadline_s=60):
        now[0] += 2
        with waits.waiting("rank 1: manifest", deadline_s=5):
            now[0] += 1
            assert waits.current() == [
                {"name": "dataflow: batch 12", "since_s": 3.0, "deadline_s": 60, "count": 1},
                {"name": "rank 1: manifest", "since_s": 1.0, "deadline_s": 5, "count": 1},
            ]
            assert waits.total_s("dataflow") == 3
    with waits.waiting("dataflow: batch 13", deadline_s=60):
        now[0] += 4
        assert waits.total_s("dataflow") == 7
    assert waits.current() == []
    assert waits.total_s("dataflow") == 7
    assert waits.total_s("nobody") == 0


def test_wait_that_ends_in_an_error_is_closed() -> None:
    waits = Waits()
    with pytest.raises(WireError), waits.waiting("rank 0: offer", deadline_s=1):
        raise WireError("cut")
    assert waits.current() == []


# --- logs


@pytest.fixture
def log_text(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    text = io.StringIO()
    monkeypatch.setattr("sys.stderr", text)
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    logs.configure("trainer/0")
    yield text
    root.handlers[:] = before
    root.setLevel(level)


_KEYS = ["hf_" + "aB3" * 10, "0123456789abcdef" * 2 + "01234567"]


@pytest.mark.parametrize("key", _KEYS)
def test_keys_are_hidden_in_messages_arguments_and_tracebacks(
    key: str, log_text: io.StringIO
) -> None:
    log = logging.getLogger("test")
    log.warning("the key %s", key)
    log.warning(f"token={key}, {key}")  # noqa: G004
    try:
        raise ValueError(f"no access with {key}")
    except ValueError:
        log.exception("it ended")
    said = log_text.getvalue()
    assert key not in said
    assert said.count("(hidden)") == 4
    assert "ValueError: no access with (hidden)" in said


def test_line_has_level_role_and_logger(log_text: io.StringIO) -> None:
    logging.getLogger("astraflow.test").warning("version %d serves", 3)
    assert (
        log_text.getvalue().rstrip().endswith("WARNING trainer/0 astraflow.test: version 3 serves")
    )
