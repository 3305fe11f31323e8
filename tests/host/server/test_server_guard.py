"""Who may speak to the server (R1, R2, R27, R32; CONTRACT 4)."""

from __future__ import annotations

import http.client
import stat
from pathlib import Path
from urllib.parse import quote

import pytest
from moryflow.server.app import OPERATIONS

from .conftest import Server


def _filled(path: str) -> str:
    return path.replace("{id}", "nobody")


def test_every_operation_wants_the_token(shared: Server) -> None:
    """Without, with a wrong and with an empty token each is a 401, before anything is looked at (R1)."""
    for given in ("", "Bearer ", "Bearer wrong", f"Basic {shared.token}", f"Bearer {shared.token}x"):
        for one in OPERATIONS:
            for path in (one.path, *one.aliases):
                if path == "/code":
                    continue
                reply = shared.ask(one.method, _filled(path), {}, headers={"Authorization": given})
                assert (reply.status, reply.json["code"]) == (401, "no_token"), (given, one.method, path)


def test_a_path_that_is_not_there_wants_the_token_too(shared: Server) -> None:
    """Nobody learns what exists (R32)."""
    for path in ("/docs", "/openapi.yaml", "/nothing", "//", "/page"):
        assert shared.ask("GET", path, headers={"Authorization": ""}).status == 401


@pytest.mark.parametrize(
    "name", ["a" * 300 + ".js", "..%2fapp.py", "page.js%00.js", "%2e%2e", ".", "sources.sha256", "\xff.js"]
)
def test_no_name_of_a_page_file_fails_or_leads_elsewhere(shared: Server, name: str) -> None:
    """A stranger needs no token for these, so each is a 404, and none is an error in the log (R32)."""
    reply = shared.ask("GET", f"/page/{quote(name, safe='%')}", headers={"Authorization": ""})
    assert (reply.status, reply.json["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Host": "rebind.test"}, 421, "wrong_host"),
        ({"Host": "127.0.0.1"}, 421, "wrong_host"),
        ({"Host": "127.0.0.1.evil.test:1"}, 421, "wrong_host"),
        ({"Origin": "http://evil.test"}, 403, "foreign_origin"),
        ({"Origin": "null"}, 403, "foreign_origin"),
        ({"Origin": "http://127.0.0.1:1"}, 403, "foreign_origin"),
        ({"Sec-Fetch-Site": "cross-site"}, 403, "foreign_origin"),
        ({"Sec-Fetch-Site": "same-site"}, 403, "foreign_origin"),
    ],
)
def test_a_foreign_page_is_refused_even_with_the_token(shared: Server, headers: dict[str, str], status: int, code: str) -> None:
    """Another Host is rebinding; another port of this machine is another origin (R2)."""
    for path in ("/health", "/", "/code", "/events"):
        reply = shared.ask("GET", path, headers=headers)
        assert (reply.status, reply.json["code"]) == (status, code), path


def test_our_own_page_is_let_in(shared: Server) -> None:
    """The browser says where a request comes from, and it is here."""
    own = {"Origin": f"http://localhost:{shared.port}", "Host": f"localhost:{shared.port}", "Sec-Fetch-Site": "same-origin"}
    assert shared.ask("GET", "/health", headers=own).status == 200
    assert shared.ask("OPTIONS", "/sessions", headers=own).status == 405


def test_two_hosts_are_none(shared: Server) -> None:
    """A request with two Host headers is somebody's trick."""
    connection = http.client.HTTPConnection("127.0.0.1", shared.port, timeout=60)
    connection.putrequest("GET", "/health", skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{shared.port}")
    connection.putheader("Host", "rebind.test")
    connection.putheader("Authorization", f"Bearer {shared.token}")
    connection.endheaders()
    assert connection.getresponse().status in (400, 421)


def test_answers_carry_no_cookie_and_cannot_be_read_as_something_else(shared: Server) -> None:
    """JSON with nosniff, nothing for other origins, nothing stored (R3)."""
    headers = shared.ask("GET", "/health").headers
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert not {"set-cookie", "access-control-allow-origin"} & headers.keys()


def test_a_body_that_is_too_large_is_refused_before_it_is_read(shared: Server) -> None:
    """Said in its length, or found out on the way (R27)."""
    said = shared.ask("POST", "/sessions", b"", headers={"Content-Length": str(11 << 20)})
    assert (said.status, said.json["code"]) == (413, "too_large")
    connection = shared.connection()
    head = {"Authorization": f"Bearer {shared.token}", "Content-Type": "application/json"}
    connection.request("POST", "/sessions", iter([b" " * (1 << 20)] * 12), head, encode_chunked=True)
    reply = connection.getresponse()
    assert reply.status == 413
    assert shared.get("/health")["status"] == "ok"


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"text": "x"}', "text/plain", 415),
        (b"text=x", "application/x-www-form-urlencoded", 415),
        (b'{"txt": "x"}', "application/json", 422),
        (b'{"text": 5}', "application/json", 422),
        (b'{"text": "x", "images": "no"}', "application/json", 422),
    ],
)
def test_a_bad_body_gets_its_status_and_a_sentence(shared: Server, body: bytes, kind: str, status: int) -> None:
    """No traceback, and the next step is named."""
    session = shared.session("Hello.")
    reply = shared.ask("POST", f"/sessions/{session}/prompt", body, headers={"Content-Type": kind})
    assert reply.status == status, reply.data
    assert set(reply.json) >= {"code", "message", "next"}
    assert reply.json["next"]


def test_the_link_is_good_once(shared: Server) -> None:
    """The code stands in the fragment, which no request carries, and is worth nothing afterwards (CONTRACT 4)."""
    code = shared.said["link"].partition("#code=")[2]
    first = shared.ask("POST", "/code", {"code": code}, headers={"Authorization": ""})
    assert (first.status, list(first.json)) == (200, ["token"])
    again = shared.ask("POST", "/code", {"code": code}, headers={"Authorization": ""})
    assert (again.status, again.json["code"]) == (401, "code_used")
    assert shared.ask("POST", "/code", {"code": "ü"}, headers={"Authorization": ""}).status == 401
    other = shared.post("/codes", {}, 201)
    assert shared.ask("POST", "/code", {"code": other["code"]}, headers={"Authorization": ""}).status == 200


def test_the_token_is_for_the_owner_alone(shared: Server) -> None:
    """256 bits in a file of mode 0600, which the first line of output names."""
    file = Path(shared.said["token_file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(shared.token) >= 43
    assert stat.S_IMODE((shared.home / "server" / "running.json").stat().st_mode) == 0o600
