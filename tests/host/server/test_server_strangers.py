"""What somebody without a token may hold of the server: little, and not for long (R27, R32)."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

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
