"""What somebody without a token may hold of the server: little, and not for long (R27, R32)."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import uvicorn
from moryflow.server import connections
from moryflow.server.connections import ConnectionLimits, HttpConnection, Seldom
from uvicorn.server import ServerState

from .conftest import PATIENCE, Server


def raw(server: Server, *parts: bytes, token: bool = True) -> bytes:
    """Send lines of a request and return all that comes back until the server closes the connection or says no more."""
    token_line = f"Authorization: Bearer {server.token}\r\n".encode() if token else b""
    head = f"Host: 127.0.0.1:{server.port}\r\n".encode() + token_line
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as one:
        one.sendall(b"".join(part.replace(b"HEAD\r\n", head) for part in parts))
        one.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: one.recv(65_536), b"")).lower()


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit (util-linux)")
@pytest.mark.parametrize(
    "half", [b"", b"GET /se", b"POST /code HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nContent-Length: 9\r\n\r\n{"]
)
def test_half_open_connections_shut_nobody_out(start: Callable[..., Server], half: bytes) -> None:
    """More than the process may have files open, of every kind; the next request is answered, and nothing is printed (R27)."""
    server = start(inside=("prlimit", "--nofile=128"))
    sent = half.replace(b"PORT", str(server.port).encode())
    many = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(200)]
    try:
        for one in many:
            with suppress(OSError):  # it gave way to a later one
                one.sendall(sent)
        assert server.get("/health")["status"] == "ok"
    finally:
        for one in many:
            one.close()
    assert (server.home.parent / "errors0").read_text() == ""


async def _app(scope: Any, receive: Any, send: Any) -> None:
    """Answer ``/early`` at once and with much, everything else after its body."""
    while scope["path"] != "/early" and (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(400 if scope["path"] == "/early" else 1):
        await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    ("limit", "first", "then"),
    [
        ("HEAD_SECONDS", b"", b""),
        ("HEAD_SECONDS", b"GET / HT", b"T"),
        ("BODY_SECONDS", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n", b"x"),
        ("KEEP_SECONDS", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\r\n"),
        ("STALLED_SECONDS", b"GET /early HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    ],
)
def test_each_wait_for_a_client_has_an_end(monkeypatch: pytest.MonkeyPatch, limit: str, first: bytes, then: bytes) -> None:
    """For a head, a body, the next request and a reader; what drips in does not put it off (R27)."""
    monkeypatch.setattr(connections, limit, 0.2)

    lost = asyncio.Event()

    class Watched(HttpConnection):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async def drip(writer: asyncio.StreamWriter) -> None:
        while not lost.is_set():
            writer.write(then)
            await asyncio.sleep(0.01)

    async def main() -> None:
        loop, state, limits = asyncio.get_running_loop(), ServerState(), ConnectionLimits()
        config = uvicorn.Config(_app, lifespan="off", log_config=None)
        given: dict[str, Any] = {"config": config, "server_state": state, "app_state": {}, "_loop": loop}
        server = await loop.create_server(lambda: Watched(limits, **given), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(first)
        async with asyncio.timeout(PATIENCE):
            await drip(writer)
        assert limits.waiting == {}
        writer.close()
        server.close()

    asyncio.run(main())


def test_what_strangers_cause_is_printed_once_a_minute() -> None:
    """A line that they can cause at will; a failure of the server's own is always printed."""
    seldom = Seldom()
    said = [
        logging.makeLogRecord({"msg": f"socket.accept() out of system resource\nsocket: {n}", "exc_info": True}) for n in "ab"
    ]
    invalid = [logging.makeLogRecord({"msg": "Invalid HTTP request received."}) for _ in range(3)]
    failed = [logging.makeLogRecord({"msg": "Exception in ASGI application", "exc_info": True}) for _ in range(2)]
    assert [seldom.filter(record) for record in (*said, *invalid, *failed)] == [True, False, True, False, False, True, True]


def test_a_request_with_two_lengths_is_refused_and_the_rest_is_not_read(shared: Server) -> None:
    """Two programs may disagree where it ends: one answer, and the connection is closed (RFC 9112, 6.3)."""
    hidden = b"0\r\n\r\nGET /health HTTP/1.1\r\nHEAD\r\n\r\n"
    said = raw(shared, b"POST /sessions HTTP/1.1\r\nHEAD\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n", hidden)
    assert said.count(b"http/1.1 ") == 1 and said.startswith(b"http/1.1 400") and b'"two_lengths"' in said
    said = raw(shared, b"POST /sessions HTTP/1.1\r\nHEAD\r\nContent-Length: 6\r\nContent-Length: 0\r\n\r\n", hidden)
    assert said.count(b"http/1.1 ") == 1 and said.startswith(b"http/1.1 400")
    twice = b"POST /sessions HTTP/1.1\r\nHEAD\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}"
    assert raw(shared, twice, token=False).startswith(b"http/1.1 401")  # one and the same (RFC 9110, 8.6)


@pytest.mark.parametrize(
    "sent", [b"GET / HTTP/1.1\r\nHEAD\r\nHost: evil\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nA: \0\r\n\r\n"]
)
def test_what_is_no_http_gets_the_headers_of_every_answer(shared: Server, sent: bytes) -> None:
    """Without a token too: JSON with nosniff (R3)."""
    said = raw(shared, sent, token=False)
    assert said.startswith(b"http/1.1 400") and b"x-content-type-options: nosniff" in said and b'"next"' in said


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("TRACE", "/tools", {"get", "head"}), ("PUT", "/sessions/x", {"get", "head", "patch", "delete"})],
)
def test_a_wrong_method_gets_those_that_there_are(shared: Server, method: str, path: str, allowed: set[str]) -> None:
    """As RFC 9110, 15.5.6 wants it."""
    reply = shared.ask(method, path)
    assert (reply.status, reply.json["code"]) == (405, "wrong_method")
    assert {name.strip() for name in reply.headers["allow"].lower().split(",")} == allowed


@pytest.mark.parametrize("given", ["yes", "true", 1, "on", "1", None, [True]])
def test_only_true_confirms(shared: Server, given: Any) -> None:
    """And the same holds for every other switch in a body (S0.68, R37)."""
    session = shared.session("Hello.")
    for method, path in (("POST", "/sessions"), ("PATCH", f"/sessions/{session}")):
        reply = shared.ask(method, path, {"mode": "full_access", "confirm": given})
        assert (reply.status, reply.json["code"]) == (422, "invalid")
    assert shared.get(f"/sessions/{session}")["mode"] == "agent"
    assert shared.ask("POST", f"/sessions/{session}/prompt", {"text": "go", "queue": "no"}).status == 422
