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
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import httpx2
import pytest
from mcp.shared.auth import OAuthToken
from moryflow_builtins.mcp.helper import Helper, spec_of
from moryflow_builtins.mcp.oauth import LoginNeeded, StoredLogin, TokenFile
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

    async def show(question: Mapping[str, Any]) -> Mapping[str, Any]:
        await asyncio.to_thread(browser or (lambda url: urlopen(url, timeout=60).read()), str(question["login"]))
        return {}

    async def work() -> Any:
        folder = servers.home / "data" / "mcp"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        helper = Helper(folder, os.environ)
        try:
            spec = spec_of(
                "hub", ServerSettings(url=web.url, **more), {**os.environ, "HUB_SECRET": "s3cret"}, servers.vault, folder
            )
            return await helper.request({"do": "login", "server": spec}, ask=show)
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


def test_what_another_process_did_with_the_tokens_is_not_undone(tmp_path: Path) -> None:
    """A chat that runs neither brings them back after a logout, nor puts old ones in the place of renewed ones."""

    def token(text: str) -> OAuthToken:
        return OAuthToken(access_token=text, token_type="Bearer")

    path, url = tmp_path / "hub.token.json", "https://hub.example/mcp"
    asyncio.run(TokenFile(path, url, fresh=True).set_tokens(token("old")))
    here, there = TokenFile(path, url), TokenFile(path, url)
    asyncio.run(there.set_tokens(token("new")))
    here.store(wanted="more")
    kept = json.loads(path.read_text())
    assert kept["tokens"]["access_token"] == "new"
    path.unlink()
    here.store(wanted="most")
    asyncio.run(here.set_tokens(token("back")))
    assert not path.exists()


def stored_login(path: Path, **changes: Any) -> StoredLogin:
    """What sends the stored tokens, as a process has it that has just begun."""
    url = "https://hub.example/mcp"
    if not path.exists():
        tokens = {"access_token": "old", "token_type": "Bearer", "refresh_token": "once"}
        client = {"client_id": "us", "redirect_uris": ["http://127.0.0.1/callback"], "token_endpoint_auth_method": "none"}
        path.write_text(json.dumps({"url": url, "tokens": tokens, "client": client, **changes}))
        path.chmod(0o600)
    return StoredLogin(url, TokenFile(path, url))


def request() -> httpx2.Request:
    return httpx2.Request("POST", "https://hub.example/mcp")


async def sent_by(login: StoredLogin) -> str:
    """Return the token of the first request that is sent."""
    async with aclosing(login.async_auth_flow(request())) as flow:
        return (await anext(flow)).headers["Authorization"]


def test_what_others_could_read_meanwhile_is_never_sent(tmp_path: Path) -> None:
    """Not at the second look either, and also where only the mode has changed."""
    path = tmp_path / "hub.token.json"
    login = stored_login(path)
    path.chmod(0o644)
    for _ in range(2):
        with pytest.raises(LoginNeeded):
            asyncio.run(sent_by(login))


def test_a_new_login_is_not_undone_by_a_renewal_of_the_old_one(tmp_path: Path) -> None:
    """Its tokens are of another client, so that a mixture of both could never be renewed."""

    async def work() -> None:
        flow = login.async_auth_flow(request())
        renewal = await anext(flow)
        path.write_text(whole.replace("old", "login").replace('"us"', '"them"').replace('"expires": 1.0', '"expires": null'))
        late = {"access_token": "late", "token_type": "Bearer", "refresh_token": "late", "expires_in": 60}
        await flow.asend(httpx2.Response(200, json=late, request=renewal))
        await flow.aclose()

    path = tmp_path / "hub.token.json"
    login = stored_login(path, expires=1.0)
    whole = path.read_text()
    asyncio.run(work())
    kept = json.loads(path.read_text())
    assert (kept["client"]["client_id"], kept["tokens"]["access_token"], kept["expires"]) == ("them", "login", None)


def test_a_logout_reaches_a_chat_that_runs(tmp_path: Path) -> None:
    """The next request is not sent with what this process still remembers; a new login is taken."""

    async def work() -> str:
        path = tmp_path / "hub.token.json"
        here = stored_login(path)
        await sent_by(here)
        whole = path.read_text()
        path.unlink()
        with pytest.raises(LoginNeeded):
            await sent_by(here)
        path.write_text(whole.replace("old", "new"))
        path.chmod(0o600)
        return await sent_by(here)

    assert asyncio.run(work()) == "Bearer new"


def test_a_full_disk_costs_a_renewal_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old token may be worth nothing by then; a login that cannot be stored fails."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    path, url = tmp_path / "hub.token.json", "https://hub.example/mcp"
    token = OAuthToken(access_token="a", token_type="Bearer")
    asyncio.run(TokenFile(path, url, fresh=True).set_tokens(token))
    file = TokenFile(path, url)
    monkeypatch.setattr("tempfile.mkstemp", full)
    asyncio.run(file.set_tokens(token.model_copy(update={"access_token": "b"})))
    kept = asyncio.run(file.get_tokens())
    assert kept is not None and kept.access_token == "b"
    with pytest.raises(OSError, match="No space"):
        asyncio.run(TokenFile(path, url, fresh=True).set_tokens(token))


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
    """A page that knows the port cannot end the login or slip in its own code; nor by another name of this machine."""
    codes: list[int] = []

    def browser(url: str) -> None:
        redirect = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        for wrong in (f"{redirect}?code=evil&state=evil", f"{redirect}?code=evil", redirect.replace("127.0.0.1", "localhost")):
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
