"""Tokens of browsers and programs beside the server's own (D88)."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from typing import Any

from .conftest import MORYFLOW, Server

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


def let_in(server: Server, agent: str = FIREFOX, token: str = "") -> str:
    """Exchange a fresh code as a browser does; return its token."""
    code = server.post("/codes", {}, 201)["code"]
    headers = {"Authorization": f"Bearer {token}" if token else "", "User-Agent": agent}
    reply = server.ask("POST", "/code", {"code": code}, headers=headers)
    assert reply.status == 200, reply.data
    return str(reply.json["token"])


def status(server: Server, token: str) -> int:
    return server.ask("GET", "/health", headers={"Authorization": f"Bearer {token}"}).status


def command(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "MORYFLOW_HOME": str(server.home)}
    return subprocess.run(
        [*MORYFLOW, "serve", "tokens", *words], capture_output=True, text=True, env=environ, cwd=server.vault, check=False
    )


def test_each_browser_has_a_token_of_its_own(server: Server) -> None:
    """It is not the server's, it works, and its name is that of the browser; only a hash of it is kept (D88)."""
    one, other = let_in(server), let_in(server, "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0) Version/18.0 Mobile Safari/604.1")
    assert len({one, other, server.token}) == 3
    assert [status(server, token) for token in (one, other, server.token)] == [200, 200, 200]
    rows = server.get("/tokens")
    assert sorted(row["name"] for row in rows) == ["Firefox, Linux", "Safari, iPhone"]
    assert not any(row["here"] for row in rows)
    for file in (server.home / "server" / "tokens").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert one.partition(".")[2] not in file.read_text()


def test_a_browser_that_is_let_in_keeps_its_token(server: Server) -> None:
    """A second link gives it no second one; a token that counts no more is replaced (D88)."""
    token = let_in(server)
    assert let_in(server, token=token) == token
    assert len(server.get("/tokens")) == 1
    assert let_in(server, token="0" * 8 + "." + "x" * 43) != token


def test_a_revoked_token_ends_at_once_with_its_stream(server: Server) -> None:
    """Whoever revokes it; the others, and the server's own, go on (D88)."""
    one, other = let_in(server), let_in(server)
    reply = server.ask("GET", "/tokens", headers={"Authorization": f"Bearer {one}"})
    [id] = [row["id"] for row in reply.json if row["here"]]
    connection = server.connection()
    connection.request("GET", "/events", headers={"Authorization": f"Bearer {one}"})
    stream = connection.getresponse()
    stream.readline()
    assert server.ask("DELETE", f"/tokens/{id}").json == {"revoked": id}
    server.whole_turn(server.session("Hello."))  # events that the stream would have sent
    for line in iter(stream.readline, b""):
        assert b"session" not in line
    assert [status(server, token) for token in (one, other, server.token)] == [401, 200, 200]
    assert server.ask("DELETE", f"/tokens/{id}").json["code"] == "not_found"


def test_tokens_are_listed_and_revoked_at_a_shell(server: Server) -> None:
    """By id, or by a name that only one has; a program gets one by name, in place of an older one (D88)."""
    browsers = [let_in(server), let_in(server)]
    older, program = (command(server, "add", "backup").stdout.strip() for _ in range(2))
    assert (status(server, older), status(server, program)) == (401, 200)
    rows: list[dict[str, Any]] = json.loads(command(server, "list", "--json").stdout)
    assert sorted(row["name"] for row in rows) == ["Firefox, Linux", "Firefox, Linux", "backup"]
    assert "backup" in command(server, "list").stdout
    several = command(server, "revoke", "Firefox, Linux")
    assert (several.returncode, "2 tokens are called" in several.stderr) == (2, True)
    assert command(server, "revoke", "backup").returncode == 0
    assert command(server, "revoke", browsers[0].partition(".")[0]).returncode == 0
    assert [status(server, token) for token in (program, *browsers)] == [401, 401, 200]
    nobody = command(server, "revoke", "backup")
    assert (nobody.returncode, "moryflow serve tokens list" in nobody.stderr) == (2, True)


def test_a_damaged_token_counts_for_nothing_and_can_be_removed(server: Server) -> None:
    """Its file is listed, and no name of a file leads elsewhere (D88)."""
    token = let_in(server)
    id = token.partition(".")[0]
    (server.home / "server" / "tokens" / id).write_text("not JSON")
    assert status(server, token) == 401
    assert status(server, f"../token.{token}") == 401
    assert [(row["id"], row["name"]) for row in server.get("/tokens")] == [(id, "damaged")]
    assert server.ask("DELETE", f"/tokens/{id}").status == 200
