"""``mcp login``: the flow against an authorization server of our own, the tokens, and addresses that are refused."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
from moryflow_builtins.mcp.helper import Helper, spec_of
from moryflow_builtins.mcp.oauth import TokenFile
from moryflow_sdk import ToolError
from moryflow_sdk.support.settings import ServerSettings

from .conftest import Servers
from .web_server import WebServer


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer(protected=True)
    yield server
    server.close()


def logged_in(servers: Servers, web: WebServer, browser: Any = None, **more: Any) -> Any:
    """Log in as the command does; `browser` is given the address that the person is shown."""

    def show(url: str) -> None:
        asyncio.get_running_loop().run_in_executor(None, browser or (lambda url: urlopen(url, timeout=60).read()), url)

    async def work() -> Any:
        folder = servers.home / "data" / "mcp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        helper = Helper(folder, os.environ)
        try:
            spec = spec_of(
                "hub", ServerSettings(url=web.url, **more), {**os.environ, "HUB_SECRET": "s3cret"}, servers.vault, folder
            )
            return await helper.request({"do": "login", "server": spec}, show=show)
        finally:
            await helper.close()

    return servers.wait(work())


def tokens_of(servers: Servers) -> Path:
    return servers.home / "data" / "mcp" / "tokens" / "hub.token.json"


def test_without_a_login_the_call_says_which_command_logs_in(servers: Servers, web: WebServer) -> None:
    """Nobody is registered and no browser opens because a model calls a tool."""
    found = servers.review({"hub": {"url": web.url}})
    assert isinstance(found["hub"], ToolError) and found["hub"].code == "mcp_login"
    assert "moryflow mcp login hub" in str(found["hub"].next_step) and "/register" not in web.paths()


def test_a_server_that_wants_a_login_is_added_without_its_tools(servers: Servers, web: WebServer) -> None:
    """The command that logs in needs the entry."""
    command = [sys.executable, "-m", "moryflow", "mcp", "add", "-y", "hub", "--url", web.url]
    environment = {**os.environ, "MORYFLOW_HOME": str(servers.home)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, "next: moryflow mcp login hub" in done.stderr) == (2, True), done.stderr
    assert json.loads((servers.home / "config.jsonc").read_text())["mcp"]["servers"]["hub"] == {"url": web.url}


def test_a_login_stores_tokens_that_only_the_person_can_read_and_calls_use_them(servers: Servers, web: WebServer) -> None:
    """State, PKCE and the resource are checked by the authorization server of the test (S0.38, R18)."""
    assert logged_in(servers, web) == {"needed": True}
    file = tokens_of(servers)
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    servers.review({"hub": {"url": web.url}})
    assert servers.call("hub", "echo", text="hi").result.output == "hi"
    assert servers.call_tool("read", path=str(file)).result.status == "denied"
    kept = json.loads(file.read_text())["tokens"]["access_token"]
    assert {token for _, path, token in web.seen if path == "/mcp" and token} == {f"Bearer {kept}"}
    assert {token for _, path, token in web.seen if path != "/mcp"} == {""}


def test_tokens_that_ended_are_renewed_without_the_person(servers: Servers, web: WebServer) -> None:
    """A later process knows when they end and where to renew them, and stores the new ones."""
    logged_in(servers, web)
    kept = json.loads(tokens_of(servers).read_text())
    before = kept["tokens"]["access_token"]
    tokens_of(servers).write_text(json.dumps({**kept, "expires": kept["expires"] - 7200}))
    web.tokens.clear()
    servers.review({"hub": {"url": web.url}})
    assert servers.call("hub", "echo", text="hi").result.output == "hi"
    assert json.loads(tokens_of(servers).read_text())["tokens"]["access_token"] != before


def test_tokens_of_another_address_or_that_others_can_read_are_not_sent(servers: Servers, web: WebServer) -> None:
    logged_in(servers, web)
    file, seen = tokens_of(servers), len(web.seen)
    whole = file.read_text()
    file.write_text(json.dumps({**json.loads(whole), "url": "https://other.example/mcp"}))
    servers.review({"hub": {"url": web.url}})
    file.write_text(whole)
    file.chmod(0o644)
    found = servers.review({"hub": {"url": web.url}})
    assert "others could read" in str(found["hub"]) and {token for _, _, token in web.seen[seen:]} == {""}


def test_a_logout_reaches_a_chat_that_runs_and_is_not_undone(servers: Servers, web: WebServer) -> None:
    """The next call forgets what this process knew, no renewal brings it back, and a new login is taken."""
    logged_in(servers, web)
    servers.review({"hub": {"url": web.url}})
    assert servers.call("hub", "echo", text="hi").result.output == "hi"
    file = TokenFile(tokens_of(servers), web.url)
    tokens_of(servers).unlink()
    file.store(wanted="more")
    assert not tokens_of(servers).exists() and servers.call("hub", "echo", text="x").result.code == "mcp_login"
    logged_in(servers, web)
    assert servers.call("hub", "echo", text="back").result.output == "back"


def test_a_login_replaces_tokens_that_others_could_read(servers: Servers, web: WebServer) -> None:
    """The command that is named as the next step works."""
    logged_in(servers, web)
    tokens_of(servers).chmod(0o644)
    assert logged_in(servers, web) == {"needed": True}
    assert stat.S_IMODE(tokens_of(servers).stat().st_mode) == 0o600


def test_a_login_that_was_taken_back_is_said(servers: Servers, web: WebServer) -> None:
    logged_in(servers, web)
    servers.review({"hub": {"url": web.url}})
    web.tokens.clear()
    web.metadata["token_endpoint"] = f"{web.origin}/gone"
    result = servers.call("hub", "echo", text="hi").result
    assert (result.status, result.code) == ("error", "mcp_login") and "moryflow mcp login hub" in result.output


def test_what_comes_back_with_another_state_is_not_the_answer(servers: Servers, web: WebServer) -> None:
    """A page that knows the port cannot end the login or slip in its own code."""
    codes: list[int] = []

    def browser(url: str) -> None:
        redirect = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        for wrong in (f"{redirect}?code=evil&state=evil", f"{redirect}?code=evil", redirect):
            try:
                urlopen(wrong, timeout=60)
            except HTTPError as error:
                codes.append(error.code)
        place = urlsplit(redirect)
        with socket.create_connection((place.hostname, place.port), timeout=60) as odd:
            odd.sendall(f"GET http://[ HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            codes.append(int(odd.recv(100).split()[1]))
        urlopen(url, timeout=60).read()

    assert logged_in(servers, web, browser) == {"needed": True}
    assert codes == [400, 400, 400, 400]


def test_a_refusal_of_the_service_ends_the_login(servers: Servers, web: WebServer) -> None:
    def browser(url: str) -> None:
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        urlopen(f"{asked['redirect_uri']}?error=access_denied&state={asked['state']}", timeout=60)

    with pytest.raises(ToolError, match="refused: access_denied"):
        logged_in(servers, web, browser)
    assert not tokens_of(servers).exists()


def test_a_client_that_was_registered_by_hand_is_used(servers: Servers, web: WebServer) -> None:
    """With a secret by name; nothing is registered then."""
    done = logged_in(servers, web, client_id="mine", client_secret="${HUB_SECRET}")
    assert done == {"needed": True} and "/register" not in web.paths()
    kept = json.loads(tokens_of(servers).read_text())["client"]
    assert (kept["client_id"], kept["client_secret"]) == ("mine", "s3cret")
    basic = base64.b64encode(b"mine:s3cret").decode()
    assert [token for _, path, token in web.seen if path == "/token"] == [f"Basic {basic}"]


LINK_LOCAL = "http://169.254.169.254/x"


@pytest.mark.parametrize("place", ["challenge", "authorization_servers", "authorization_endpoint", "token_endpoint"])
def test_metadata_that_leads_to_a_link_local_address_is_refused(servers: Servers, web: WebServer, place: str) -> None:
    """Addresses in metadata are judged like any other; one for the browser too, so it is not even shown."""
    match place:
        case "challenge":
            web.challenge = f'Bearer resource_metadata="{LINK_LOCAL}"'
        case "authorization_servers":
            web.resource[place] = [LINK_LOCAL]
        case _:
            web.metadata[place] = LINK_LOCAL
    shown: list[str] = []

    def browser(url: str) -> None:
        shown.append(url)
        urlopen(url, timeout=60).read()

    with pytest.raises(ToolError, match=r"connections to .* are refused"):
        logged_in(servers, web, browser)
    assert len(shown) == (place == "token_endpoint") and not tokens_of(servers).exists()


def test_the_command_shows_the_address_and_logs_in(servers: Servers, web: WebServer) -> None:
    servers.configure({"mcp": {"servers": {"hub": {"url": web.url}}}})
    command = [sys.executable, "-m", "moryflow", "mcp", "login", "hub", "--no-browser"]
    environment = {**os.environ, "MORYFLOW_HOME": str(servers.home)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None and process.stdout is not None
        address = next(line for line in process.stderr if line.startswith("http")).strip()
        urlopen(address, timeout=60).read()
        said = process.stdout.read()
        assert process.wait(120) == 0
    assert said == "logged in to hub\nnext: moryflow mcp review hub\n"
    assert "logged out" in servers.command("mcp", "logout", "hub") and not tokens_of(servers).exists()
