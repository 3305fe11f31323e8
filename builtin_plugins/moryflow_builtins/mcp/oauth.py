"""OAuth in the helper process: the SDK's flow with PKCE and state, a redirect to this machine, tokens in a file of mode 0600.

The transport checks every address in the flow, and also the address that the browser will open.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp_types import Implementation
from moryflow_sdk.support.own_files import replace_file
from pydantic import AnyUrl

from .transports import MAX_BYTES, JudgedTransport, ServerGone

# The longest line of the browser's request to the callback address, in bytes.
MAX_LINE = 16 * 1024
# Seconds in which the browser must have sent that line.
CALLBACK_TIMEOUT = 10.0
PATH = "/callback"


class LoginNeeded(ServerGone):
    """The server requires a login."""


class TokenFile:
    """The tokens for one server, and what is needed to renew them; implements the SDK's ``TokenStorage``.

    :param url: the address of the server; the tokens are never used for another address.
    :param fresh: whether this is a new login, which replaces what is stored.
    :raises LoginNeeded: others could read the file.
    """

    def __init__(self, path: Path, url: str, *, fresh: bool = False) -> None:
        self._path, self._fresh = path, fresh
        self.known: dict[str, Any] = {"url": url}
        if fresh:
            return
        with suppress(OSError, ValueError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                if os.fstat(descriptor).st_mode & 0o077:
                    raise LoginNeeded(f"others could read its tokens in {path}, so they are not used")
                found = json.load(file)
            self.known = found if found["url"] == url else self.known

    def __bool__(self) -> bool:
        return "tokens" in self.known

    async def get_tokens(self) -> OAuthToken | None:
        return self._model(OAuthToken, "tokens")

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self.store(tokens=_json(tokens), expires=expires)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._model(OAuthClientInformationFull, "client")

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.known["client"] = _json(client_info)

    def restore(self, provider: OAuthClientProvider) -> None:
        """Give `provider` what an earlier process stored: where tokens are renewed, and when they expire."""
        context = provider.context
        context.oauth_metadata = self._model(OAuthMetadata, "metadata")
        context.protected_resource_metadata = self._model(ProtectedResourceMetadata, "resource")
        context.auth_server_url = self.known.get("issuer")
        context.token_expiry_time = self.known.get("expires")

    def keep(self, provider: OAuthClientProvider) -> None:
        """Store what `provider` has learned about the authorization server."""
        context = provider.context
        metadata, resource = _json(context.oauth_metadata), _json(context.protected_resource_metadata)
        self.store(metadata=metadata, resource=resource, issuer=context.auth_server_url)

    def store(self, **changes: Any) -> None:
        """Replace the file; at no moment can other users read it. A logout in the meantime is not undone."""
        self.known |= changes
        if self._fresh:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not self._path.exists():
            return
        replace_file(self._path, json.dumps(self.known).encode())

    def _model(self, kind: Any, key: str) -> Any:
        value = self.known.get(key)
        return None if value is None else kind.model_validate(value)


def _json(value: Any) -> Any:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def signed_in(spec: Mapping[str, Any]) -> httpx2.Auth | None:
    """Return the authentication that sends and renews the stored tokens of a server; ``None`` if nobody has logged in."""
    file = TokenFile(Path(spec["tokens"]), spec["url"])
    if not file:
        return None

    async def never(url: str = "") -> Any:
        if scope := dict(parse_qsl(urlsplit(url).query)).get("scope"):
            file.store(wanted=scope)  # the next login asks for it
        raise LoginNeeded("its login has ended, or is not for this")

    provider = OAuthClientProvider(spec["url"], _about_us("http://127.0.0.1/callback"), file, never, never)
    file.restore(provider)
    return provider


def _about_us(redirect: str) -> OAuthClientMetadata:
    return OAuthClientMetadata(
        client_name="Moryflow",
        redirect_uris=[AnyUrl(redirect)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )


async def log_in(spec: Mapping[str, Any], show: Callable[[str], None]) -> dict[str, Any]:
    """Let the user log in to a server, and store the tokens.

    :param show: shows the user the address to open.
    :returns: ``needed``: whether the server required a login.
    """
    url = spec["url"]
    transport = JudgedTransport(url)
    wanted = ""
    with suppress(LoginNeeded):  # a file that others could read is replaced anyway
        wanted = TokenFile(Path(spec["tokens"]), url).known.get("wanted", "")
    file = TokenFile(Path(spec["tokens"]), url, fresh=True)
    callback = _Callback()
    async with await asyncio.start_server(callback.serve, "127.0.0.1", spec.get("port") or 0, limit=MAX_LINE) as server:
        redirect = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"

        async def open_browser(address: str) -> None:
            asked = dict(parse_qsl(urlsplit(address).query))
            if wanted:  # the SDK asks only for the scope that the server names first
                scope = " ".join(dict.fromkeys((*asked.get("scope", "").split(), *wanted.split())))
                address = str(httpx2.URL(address).copy_set_param("scope", scope))
            await transport.check(httpx2.URL(address))
            callback.state = asked["state"]
            show(address)

        if spec.get("client"):  # registered by hand: id and secret
            name, secret = spec["client"]
            method = "client_secret_basic" if secret else "none"
            await file.set_client_info(
                OAuthClientInformationFull(
                    client_id=name,
                    client_secret=secret or None,
                    redirect_uris=[AnyUrl(redirect)],
                    token_endpoint_auth_method=method,
                )
            )
        provider = OAuthClientProvider(url, _about_us(redirect), file, open_browser, callback.result)
        timeout = httpx2.Timeout(30.0)
        http = httpx2.AsyncClient(transport=transport, headers=spec["headers"], auth=provider, timeout=timeout, trust_env=False)
        stream = streamable_http_client(url, http_client=http, max_sse_event_size=MAX_BYTES)
        info = Implementation(name="moryflow", version=spec.get("client_version", "0"))
        async with Client(stream, client_info=info, cache=None) as client:
            if client.server_capabilities.tools is not None and not file:
                await client.list_tools(cache_mode="refresh")  # some servers ask for a login only here
        if file:
            file.keep(provider)
    return {"needed": bool(file)}


class _Callback:
    """Answers the browser at the callback address. A request with another state is not an answer to the login."""

    def __init__(self) -> None:
        self._answers: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.state = ""

    async def result(self) -> AuthorizationCodeResult:
        """Wait for the answer of the login."""
        given = await self._answers.get()
        if "code" not in given:
            said = f"{given.get('error', 'no code')} {given.get('error_description', '')}".strip()
            raise ServerGone(f"the login was refused: {said[:300]}")
        return AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss"))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, text = "400 Bad Request", "This is not what Moryflow waits for.\n"
        with suppress(TimeoutError, ValueError, OSError):
            line = await asyncio.wait_for(reader.readline(), CALLBACK_TIMEOUT)
            _, _, target = line.decode("latin-1").partition(" ")
            path, _, query = target.partition(" ")[0].partition("?")
            given = dict(parse_qsl(query))
            mine = secrets.compare_digest(given.get("state", "").encode(), self.state.encode())
            if path == PATH and self.state and mine:
                status, text = "200 OK", "You can close this window and go back to Moryflow.\n"
                self._answers.put_nowait(given)
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            writer.write((head + text).encode())
            await writer.drain()
        writer.close()
