"""OAuth in the helper process: the SDK's flow with PKCE and state, a redirect to this machine, tokens in a file of mode 0600.

The transport checks every address in the flow, and also the address that the browser will open.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
from pydantic import AnyUrl, ValidationError

from .transports import MAX_BYTES, JudgedTransport, ServerGone

MAX_HEAD = 16 * 1024
"""The largest request of the browser to the callback address, in bytes."""
SECONDS = 10.0
"""How long the browser may take to send that request."""
PATH = "/callback"
_PAGE = b"You can close this window and go back to Moryflow.\n"


class LoginNeeded(ServerGone):
    """The server requires a login."""


class TokenFile:
    """The tokens for one server, and what is needed to renew them; implements the SDK's ``TokenStorage``.

    The file is read again before each request, because another process may have renewed the tokens, or logged out.

    :param url: the address of the server; the tokens are never used for another address.
    :param fresh: whether this is a new login: old tokens are ignored, and replaced by new ones.
    """

    def __init__(self, path: Path, url: str, *, fresh: bool = False) -> None:
        self._path, self._url, self._fresh = path, url, fresh
        self._known: dict[str, Any] = {"url": url} if fresh else self._read()

    def __bool__(self) -> bool:
        return "tokens" in self._known

    def _read(self) -> dict[str, Any]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                about = os.fstat(descriptor)
                if about.st_uid != os.getuid() or about.st_mode & 0o077:
                    raise LoginNeeded(f"others could read its tokens in {self._path}, so they are not used")
                found = json.load(file)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) and found.get("url") == self._url else {}

    def look_again(self) -> None:
        """Load what another process has stored in the meantime.

        :raises LoginNeeded: the user has logged out.
        """
        self._known = self._read()
        if not self:
            raise LoginNeeded("nobody is logged in any more")

    async def get_tokens(self) -> OAuthToken | None:
        return _model(OAuthToken, self._known.get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        expires = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self.store(tokens=_json(tokens), expires=expires)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return _model(OAuthClientInformationFull, self._known.get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._known["client"] = _json(client_info)

    @property
    def wanted(self) -> str:
        """The scope that the last login did not have, so that the next one asks for it."""
        return str(self._known.get("wanted", ""))

    def restore(self, provider: OAuthClientProvider) -> None:
        """Give `provider` what an earlier process stored: where tokens are renewed, and when they expire."""
        context = provider.context
        context.oauth_metadata = _model(OAuthMetadata, self._known.get("metadata"))
        context.protected_resource_metadata = _model(ProtectedResourceMetadata, self._known.get("resource"))
        context.auth_server_url = self._known.get("issuer")
        context.token_expiry_time = self._known.get("expires")

    def keep(self, provider: OAuthClientProvider) -> None:
        """Store what `provider` has learned about the authorization server."""
        context = provider.context
        metadata, resource = _json(context.oauth_metadata), _json(context.protected_resource_metadata)
        self.store(metadata=metadata, resource=resource, issuer=context.auth_server_url)

    def store(self, **changes: Any) -> None:
        """Replace the file; at no moment can other users read it. A logout, or a new login, is not undone.

        :raises OSError: a new login cannot be stored; renewed tokens are then used only by this process.
        """
        there, before = ({}, None) if self._fresh else (self._read(), self._known.get("tokens"))
        self._known |= changes
        if not self._fresh and (not there or there.get("tokens") != before):
            return
        with nullcontext() if self._fresh else suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._path, json.dumps(self._known).encode())


class StoredLogin(OAuthClientProvider):
    """Sends and renews stored tokens, as they are in the file at each request."""

    def __init__(self, url: str, file: TokenFile) -> None:
        async def never(url: str = "") -> Any:
            if scope := _scope_in(url):
                file.store(wanted=scope)
            raise LoginNeeded("its login has ended, or is not for this")

        super().__init__(url, _about_us("http://127.0.0.1/callback"), file, never, never)
        self._file = file
        file.restore(self)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        self._file.look_again()
        stored = await self._file.get_tokens()
        if stored != self.context.current_tokens:
            self.context.current_tokens, self.context.client_info = stored, await self._file.get_client_info()
            self._file.restore(self)
        async with aclosing(super().async_auth_flow(request)) as flow:
            with suppress(StopAsyncIteration):
                outgoing = await anext(flow)
                while True:
                    outgoing = await flow.asend((yield outgoing))


def _json(value: Any) -> Any:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def _model(kind: Any, value: Any) -> Any:
    try:
        return None if value is None else kind.model_validate(value)
    except ValidationError:
        return None


def signed_in(spec: Mapping[str, Any]) -> httpx2.Auth | None:
    """Return the authentication that sends and renews the stored tokens of a server; ``None`` if nobody has logged in."""
    file = TokenFile(Path(spec["tokens"]), spec["url"])
    return StoredLogin(spec["url"], file) if file else None


def _about_us(redirect: str) -> OAuthClientMetadata:
    return OAuthClientMetadata(
        client_name="Moryflow",
        redirect_uris=[AnyUrl(redirect)],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )


def _registered(client: Sequence[str], redirect: str) -> OAuthClientInformationFull:
    """Return the registration of a client that the user has registered by hand: id and secret."""
    name, secret = client
    method = "client_secret_basic" if secret else "none"
    return OAuthClientInformationFull(
        client_id=name, client_secret=secret or None, redirect_uris=[AnyUrl(redirect)], token_endpoint_auth_method=method
    )


async def log_in(spec: Mapping[str, Any], show: Callable[[str], Awaitable[None]]) -> dict[str, Any]:
    """Let the user log in to a server, and store the tokens.

    :param show: shows the user the address to open.
    :returns: ``needed``: whether the server required a login.
    """
    transport = JudgedTransport(spec["url"])
    wanted = ""
    with suppress(LoginNeeded):  # a file that others could read is replaced anyway
        wanted = TokenFile(Path(spec["tokens"]), spec["url"]).wanted
    file = TokenFile(Path(spec["tokens"]), spec["url"], fresh=True)
    async with Callback.listening(spec.get("port") or 0) as callback:

        async def open_browser(url: str) -> None:
            url = _with_scope(url, wanted)
            await transport.check(httpx2.URL(url))
            callback.expect(parse_qs(urlsplit(url).query).get("state", [""])[0])
            await show(url)

        if spec.get("client"):
            await file.set_client_info(_registered(spec["client"], callback.uri))
        provider = OAuthClientProvider(spec["url"], _about_us(callback.uri), file, open_browser, callback.result)
        timeout = httpx2.Timeout(30.0)
        http = httpx2.AsyncClient(transport=transport, headers=spec["headers"], auth=provider, timeout=timeout, trust_env=False)
        stream = streamable_http_client(spec["url"], http_client=http, max_sse_event_size=MAX_BYTES)
        info = Implementation(name="moryflow", version=spec.get("client_version", "0"))
        async with Client(stream, client_info=info, cache=None) as client:
            if client.server_capabilities.tools is not None and not file:
                await client.list_tools(cache_mode="refresh")  # some servers ask for a login only here
        if file:
            file.keep(provider)
    return {"needed": bool(file)}


def _scope_in(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("scope", [""])[0]


def _with_scope(url: str, wanted: str) -> str:
    """Return the login address with the scope `wanted` added: the SDK asks only for the scope that the server names first."""
    asked = _scope_in(url).split()
    more = [scope for scope in wanted.split() if scope not in asked]
    return str(httpx2.URL(url).copy_set_param("scope", " ".join((*asked, *more)))) if more else url


class Callback:
    """The callback address on this machine for the browser. A request with another state is not accepted."""

    def __init__(self) -> None:
        self.uri = ""
        self._host = ""
        self._state = ""
        self._answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    @classmethod
    @asynccontextmanager
    async def listening(cls, port: int) -> AsyncGenerator[Callback]:
        """Listen while the block runs, on loopback only."""
        callback = cls()
        server = await asyncio.start_server(callback._serve, "127.0.0.1", port, limit=MAX_HEAD)
        async with server:
            callback._host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            callback.uri = f"http://{callback._host}{PATH}"
            yield callback

    def expect(self, state: str) -> None:
        """Accept only an answer with this state from now on; a service may ask for a second login, with a wider scope."""
        if self._answer.done():
            self._answer = asyncio.get_running_loop().create_future()
        self._state = state

    async def result(self) -> AuthorizationCodeResult:
        """Wait for the answer of the login.

        :raises ServerGone: the user, or the service, refused.
        """
        return await self._answer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            async with asyncio.timeout(SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                taken = False
                with suppress(ValueError):  # its address cannot be parsed
                    taken = self._take(head)
                status, body = ("200 OK", _PAGE) if taken else ("400 Bad Request", b"This is not what Moryflow waits for.\n")
                fields = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\nReferrer-Policy: no-referrer"
                writer.write(f"HTTP/1.1 {status}\r\n{fields}\r\nConnection: close\r\n\r\n".encode() + body)
                await writer.drain()
        writer.close()

    def _take(self, head: str) -> bool:
        """Take the answer from the browser's request; return whether it is one."""
        found = re.match(r"GET (\S+) HTTP/1\.\d\r\n", head)
        hosts = re.findall(r"(?im)^host:[ \t]*(\S+)\s*$", head)
        if found is None or hosts != [self._host]:
            return False
        parts = urlsplit(found[1])
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        mine = self._state and secrets.compare_digest(given.get("state", "").encode(), self._state.encode())
        if parts.path != PATH or not mine or self._answer.done():
            return False
        if "code" in given:
            self._answer.set_result(AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss")))
        else:
            said = f"{given.get('error', 'no code')} {given.get('error_description', '')}".strip()
            self._answer.set_exception(ServerGone(f"the login was refused: {said[:300]}"))
        return True
