"""What bad input gets: each its status and a sentence, and the server goes on (issue D, part 3)."""

from __future__ import annotations

import json
import resource
import shutil
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from moryflow.server.app import MAX_STREAMS, OPERATIONS
from moryflow.server.operations import Operation

from .conftest import PATIENCE, Reply, Server

HOSTILE: list[Any] = [
    None, True, -1, 1 << 70, 1e300, "", "x" * 70_000, "\0", "\ud800", "../../etc/passwd", "-", "null", "%", "٣",
    [], ["x"], [1 << 70], {}, {"a": {"b": []}},
]  # fmt: skip
"""What no caller means: other types, numbers no database holds, text no file system takes."""


def sentence(reply: Reply) -> dict[str, Any]:
    """Return an error, which must say what is wrong and what to do next."""
    told = reply.json
    assert {"code", "message", "next"} <= told.keys(), told
    assert told["code"] != "error", told
    assert all(told[key] for key in ("code", "message", "next")), told
    assert reply.headers["x-content-type-options"] == "nosniff"
    return dict(told)


def _requests(one: Operation, session: str) -> list[tuple[str, bytes | None]]:
    """Return the path and body of requests to an operation in which one thing after the other is hostile."""
    found = []
    for name in one.arguments.schema["properties"]:
        for value in HOSTILE:
            given: dict[str, Any] = {
                "id": session,
                "turn": "t_1",
                "text": "x",
                "q": "x",
                "domain": "read",
                "input": "x",
                "name": "x",
                "label": "l",
                name: value,
            }
            known = {key: each for key, each in given.items() if key in one.arguments.schema["properties"]}
            path = one.path
            for key in one.in_path:
                as_text = known.pop(key)
                as_text = as_text if isinstance(as_text, str) else json.dumps(as_text)
                path = path.replace(f"{{{key}}}", quote(as_text.encode("utf-8", "surrogatepass"), safe="")[:60_000] or "%00")
            if one.method in ("GET", "DELETE") or one.raw:
                query = {key: each if isinstance(each, str) else json.dumps(each) for key, each in known.items()}
                path += "?" + urlencode({key: each.encode("utf-8", "surrogatepass")[:50_000] for key, each in query.items()})
                found.append((path, None))
            else:
                found.append((path, json.dumps(known).encode()))
    return found


@pytest.mark.parametrize("one", [one for one in OPERATIONS if not one.stream], ids=lambda one: one.name)
def test_hostile_values(shared: Server, one: Operation) -> None:
    """Of every parameter of every operation: never a failure of ours, always a sentence, and no traceback."""
    for path, body in _requests(one, shared.session("Hello.")):
        reply = shared.ask(one.method, path, body)
        if reply.status >= 400:
            assert reply.status < 500, (path[:200], body[:200] if body else None, reply.data[:500])
            sentence(reply)
    assert shared.get("/health")["status"] == "ok"


@pytest.mark.parametrize(
    "along",
    [
        {"images": [{"x": "y"}]},
        {"images": [{"media_type": "image/png", "data": "no base64"}]},
        {"images": [{"media_type": "text/html", "data": "aGVsbG8="}]},
        {"images": [{"media_type": "image/png", "data": ""}]},
        {"files": [{"path": "a"}]},
        {"files": [{"path": "a", "text": "b", "more": "c"}]},
    ],
)
def test_what_is_no_attachment_is_refused_before_it_is_stored(shared: Server, along: dict[str, Any]) -> None:
    """A node is never changed: one that no turn could read would spoil the session for good."""
    session = shared.session("Hello.")
    refused = shared.ask("POST", f"/sessions/{session}/prompt", {"text": "go", **along})
    assert (refused.status, sentence(refused)["code"]) == (422, "config")
    assert shared.get(f"/sessions/{session}/messages")["messages"] == []
    shared.whole_turn(session)


@pytest.mark.parametrize("place", ["9" * 5_000, "9" * 19, "-1", "x", "²", "٣"])
def test_a_place_that_is_no_place(shared: Server, place: str) -> None:
    """A number that no event has is refused, or leads to a `reset`; what is not a number counts for nothing."""
    reply = shared.ask("GET", "/events?" + urlencode({"after": place}))
    assert (reply.status, sentence(reply)["code"]) == (422, "invalid")
    if not place.isascii():
        return
    if place.isdigit():
        reply = shared.ask("GET", "/events", headers={"Last-Event-ID": place})
        assert (reply.status, sentence(reply)["code"]) == (422, "invalid")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": ""}, 401),
        ({"Host": "rebind.test"}, 421),
        ({"Origin": "http://evil.test"}, 403),
        ({"Content-Length": "9" * 19}, 413),
    ],
)
def test_a_refusal_is_as_guarded_as_an_answer(shared: Server, headers: dict[str, str], status: int) -> None:
    """What is said to strangers carries the same headers: no sniffing, no framing, nothing kept (R3)."""
    reply = shared.ask("POST", "/sessions", headers=headers)
    assert reply.status == status
    sentence(reply)
    assert {name for name in reply.headers if name in GUARDS} == GUARDS


GUARDS = {
    "x-content-type-options", "cross-origin-resource-policy", "cross-origin-opener-policy", "referrer-policy", "cache-control",
    "content-security-policy", "x-dns-prefetch-control",
}  # fmt: skip


def test_a_home_that_goes_away_and_comes_back(start: Callable[..., Server]) -> None:
    """Meanwhile a sentence, afterwards all is there; the server never ended."""
    server = start()
    session = server.session("Hello.")
    away = server.home.with_name("away")
    token = {"Authorization": f"Bearer {server.token}"}
    server.home.rename(away)
    for method, path in (("GET", f"/sessions/{session}"), ("GET", "/sessions"), ("POST", "/sessions")):
        reply = _with(server, method, path, token)
        assert (reply.status, sentence(reply)["code"]) == (503, "gone"), reply.data
    assert _with(server, "GET", "/health", token).status == 200
    if server.home.exists():
        server.home.rename(server.home.with_name("made"))
    away.rename(server.home)
    assert server.get(f"/sessions/{session}")["id"] == session


def test_a_locked_database_is_said(server: Server) -> None:
    """Who cannot write says so, and goes on when the lock is gone."""
    session = server.session("Hello.")
    with sqlite3.connect(_database(server), isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        reply = server.ask("PATCH", f"/sessions/{session}", {"title": "another"})
        assert reply.status == 503, reply.data
        assert sentence(reply)["code"] == "locked"
        assert server.ask("GET", "/sessions").status == 200
        other.execute("ROLLBACK")
    assert server.ask("PATCH", f"/sessions/{session}", {"title": "another"}).status == 200


@pytest.fixture
def small_disk(home: Path) -> list[str]:
    """The beginning of a command for which the home is a file system of 4 MB."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    mount = ["sh", "-c", f'mount -t tmpfs -o size=4m,mode=700 tmpfs {home} && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, *mount, "true"], capture_output=True).returncode:
        pytest.skip("needs user namespaces to mount a small file system")
    return [*namespace, *mount]


def test_a_full_disk_is_said(start: Callable[..., Server], small_disk: list[str]) -> None:
    """Who cannot write says so, what is stored is read, and when there is space again all goes on."""
    server = start(inside=small_disk)
    inside = Path(f"/proc/{server.process.pid}/root")
    server.said["token_file"] = f"{inside}{server.said['token_file']}"
    session = server.session("Hello.", "Again.")
    server.whole_turn(session)
    filler = Path(f"{inside}{server.home}") / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 16, 1 << 8, 1):
            with suppress(OSError):
                while file.write(b"x" * size):
                    pass
    for method, path, body in (
        ("PATCH", f"/sessions/{session}", {"title": "t" * 20_000}),
        ("POST", "/sessions", {"model": "script:none"}),
        ("POST", f"/sessions/{session}/prompt", {"text": "go on " * 5_000}),
    ):
        reply = server.ask(method, path, body)
        assert (reply.status, sentence(reply)["code"]) == (503, "no_space"), reply.data
    assert server.get(f"/sessions/{session}")["nodes"][-1]["payload"]["text"] == "Hello."
    filler.unlink()
    assert server.ask("PATCH", f"/sessions/{session}", {"title": "another"}).status == 200
    server.whole_turn(session)
    assert server.get(f"/sessions/{session}")["nodes"][-1]["payload"]["text"] == "Again."


def test_a_database_in_the_place_of_another_is_said(start: Callable[..., Server], tmp_path: Path) -> None:
    """A turn that was at work fails with a sentence; then the server serves what is there, and streams begin anew."""
    server = start()
    session = server.session({"calls": [{"name": "hold", "arguments": {}}]}, "Never.")
    backup = tmp_path / "backup.db"
    with sqlite3.connect(_database(server)) as live, sqlite3.connect(backup) as copy:
        live.backup(copy)
    later = server.session("Hello.")
    turn = server.post(f"/sessions/{session}/prompt", {"text": "go"}, 202)["turn"]
    with server.stream() as stream:
        stream.until("open")
        database = _database(server)
        for part in ("-wal", "-shm"):
            database.with_name(database.name + part).unlink(missing_ok=True)
        backup.replace(database)
        assert stream.until("reset")["reason"] == "replaced"
    (server.home.parent / "files" / "go").touch()
    failed = server.get(f"/sessions/{session}/turns/{turn}")
    assert (failed["end_reason"], failed["exit_code"]) == ("host_error", 1)
    assert "nothing was stored" in failed["error"]["message"] and failed["error"]["next"]
    missing = server.ask("GET", f"/sessions/{later}")
    assert (missing.status, sentence(missing)["code"]) == (404, "not_found")
    with server.stream() as stream:
        stream.until("open")
        assert server.ask("PATCH", f"/sessions/{session}", {"mode": "full_access", "confirm": True}).status == 200
        stream.until("session.mode", session=session)


@pytest.fixture
def open_files() -> Iterator[None]:
    """Let this process, and the server that it starts, have as many files open as it takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4_096:
        pytest.skip("this machine lets nobody have 4,096 files open: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4_096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_connections_that_say_nothing(open_files: None, start: Callable[..., Server]) -> None:
    """A thousand that are open, and one that asks is answered."""
    server = start()
    many = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(1_000)]
    try:
        assert server.get("/health")["status"] == "ok"
        server.whole_turn(server.session("Hello."))
    finally:
        for one in many:
            one.close()
    assert server.get("/health")["status"] == "ok"


def test_more_streams_than_there_may_be(open_files: None, start: Callable[..., Server]) -> None:
    """The next one is told so; when one is closed there is room again, and requests are answered all the while."""
    server = start()
    head = f"GET /events HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAuthorization: Bearer {server.token}\r\n\r\n".encode()
    many = [socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) for _ in range(MAX_STREAMS)]
    try:
        for one in many:
            one.sendall(head)
        for one in many:
            assert one.recv(12) == b"HTTP/1.1 200"
        refused = server.ask("GET", "/events")
        assert (refused.status, sentence(refused)["code"]) == (429, "too_many")
        assert server.get("/health")["status"] == "ok"
        many.pop().close()
        while (again := _status(server, head)) == b"HTTP/1.1 429":
            pass
        assert again == b"HTTP/1.1 200"
    finally:
        for one in many:
            one.close()


def _status(server: Server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as one:
        one.sendall(request)
        return one.recv(12)


def _database(server: Server) -> Path:
    [file] = [path for path in server.home.rglob("*.db") if path.is_file()] or [*server.home.rglob("*.sqlite*")]
    return file


def _with(server: Server, method: str, path: str, token: dict[str, str]) -> Reply:
    """Ask without looking at the token's file."""
    connection = server.connection()
    try:
        connection.request(method, path, headers=token)
        reply = connection.getresponse()
        return Reply(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()
