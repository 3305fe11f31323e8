"""OAuth in the helper process: the SDK's flow with PKCE and state, a redirect to this machine, tokens in a file of mode 0600.

The transport checks every address in the flow, and also the address that the browser will open.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
from moryflow_sdk.support.own_files import replace_file, try_lock
from pydantic import AnyUrl, ValidationError

from .transports import MAX_BYTES, JudgedTransport, ServerGone

MAX_HEAD = 16 * 1024
"""The largest request of the browser to the callback address, in bytes."""
SECONDS = 10.0
"""How long the browser may take to send that request."""
PATH = "/callback"
RENEWAL_SECONDS = 30.0
"""How long to wait for another process that is renewing the same tokens."""
LOOK_SECONDS = 0.05
"""Seconds between two checks whether it has finished."""
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PAGE = b"You can close this window and go back to Moryflow.\n"


class LoginNeeded(ServerGone):
    """The server requires a login."""


class TokenFile:
    """The tokens for one server, and what is needed to renew them; implements the SDK's ``TokenStorage``.

    Another process may renew the tokens, or remove them by a logout; storing something here does not undo that.

    :param url: the address of the server; the tokens are never used for another address.
    :param fresh: whether this is a new login: old tokens are ignored, and replaced by new ones.
    """

    def __init__(self, path: Path, url: str, *, fresh: bool = False) -> None:
        self._path, self._url, self._fresh = path, url, fresh
        self._seen: tuple[int, int] | None = None
        self._known: dict[str, Any] = {} if fresh else self._read()

    def __bool__(self) -> bool:
        return "tokens" in self._known

    def _read(self) -> dict[str, Any]:
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            with os.fdopen(descriptor, encoding="utf-8") as file:
                about = os.fstat(descriptor)
                self._seen = about.st_ino, about.st_ctime_ns
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
        try:
            about = self._path.stat(follow_symlinks=False)
        except FileNotFoundError:
            raise LoginNeeded("nobody is logged in any more") from None
        if self._seen != (about.st_ino, about.st_ctime_ns):
            self._known = {}  # even if reading fails, do not keep the old tokens
            self._known = self._read()
        if not self:
            raise LoginNeeded("its login is for something else now")

    @asynccontextmanager
    async def renewing(self) -> AsyncGenerator[None]:
        """Lock out renewals by other processes: if refresh tokens work only once, a second renewal would end the login.

        If locking fails, for example on a full disk, the tokens are renewed all the same.
        """
        descriptor = -1
        try:
            with suppress(OSError):
                descriptor = os.open(self._path.with_name(f".{self._path.name}.lock"), _LOCK, 0o600)
                for _ in range(int(RENEWAL_SECONDS / LOOK_SECONDS)):
                    if try_lock(descriptor):
                        break
                    await asyncio.sleep(LOOK_SECONDS)
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    async def get_tokens(self) -> OAuthToken | None:
        return _model(OAuthToken, self._known.get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Store renewed tokens, unless another process has stored tokens of a new login in the meantime."""
        before = self._known.get("tokens")
        if not self._fresh:
            with suppress(LoginNeeded):
                self.look_again()
            if self._known.get("tokens") != before:
                return
        expires = None if tokens.expires_in is None else time.time() + tokens.expires_in
        self._store({"url": self._url, "tokens": _json(tokens), "expires": expires})

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return _model(OAuthClientInformationFull, self._known.get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._known["client"] = _json(client_info)

    def want(self, scope: str) -> None:
        """Store a scope that this login does not have, so that the next login asks for it."""
        if scope:
            self._store({"wanted": scope})

    @property
    def wanted(self) -> str:
        """The scope that the last login did not have."""
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
        self._store(
            {
                "metadata": _json(context.oauth_metadata),
                "resource": _json(context.protected_resource_metadata),
                "issuer": context.auth_server_url,
            }
        )

    def _store(self, changes: Mapping[str, Any]) -> None:
        """Store `changes`. If they cannot be written, renewed tokens are used only by this process."""
        if not self._fresh:
            with suppress(LoginNeeded):
                self.look_again()
        there = self._known if self._fresh else self._read()
        self._known |= changes
        if self._fresh:
            self._write(self._known)
        elif there:
            with suppress(OSError):
                self._write({**there, **changes})

    def _write(self, stored: Mapping[str, Any]) -> None:
        """Replace the file; at no moment can other users read it."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = replace_file(self._path, json.dumps(stored).encode())
        self._seen = about.st_ino, about.st_ctime_ns


class StoredLogin(OAuthClientProvider):
    """Sends and renews stored tokens; each request first checks whether another process has renewed or removed them."""

    def __init__(self, url: str, file: TokenFile) -> None:
        async def never(url: str = "") -> Any:
            file.want(_scope_in(url))
            raise LoginNeeded("its login has ended, or is not for this")

        super().__init__(url, _about_us("http://127.0.0.1/callback"), file, never, never)
        self._file = file
        file.restore(self)

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        async with AsyncExitStack() as renewal:
            await self._take_changes()
            flow = super().async_auth_flow(request)
            try:
                outgoing = await anext(flow)
                if outgoing is not request:  # the flow renews the tokens; other requests of this process wait in it
                    await renewal.enter_async_context(self._file.renewing())
                    if await self._take_changes():
                        await flow.aclose()
                        flow = super().async_auth_flow(request)
                        outgoing = await anext(flow)
                while True:
                    if outgoing is request:
                        await renewal.aclose()  # renewed tokens are stored by now, and the answer may take minutes
                    response = yield outgoing
                    if outgoing is request and response.status_code == 401 and (token := await self._take_changes()):
                        request.headers["Authorization"] = f"Bearer {token}"
                        response = yield request
                    outgoing = await flow.asend(response)
            except StopAsyncIteration:
                return
            finally:
                await flow.aclose()

    async def _take_changes(self) -> str:
        """Load the stored tokens; return the token to send if it is a new one, else an empty text."""
        self._file.look_again()
        stored = await self._file.get_tokens()
        if stored is None or stored == self.context.current_tokens:
            return ""
        self.context.current_tokens, self.context.client_info = stored, await self._file.get_client_info()
        self._file.restore(self)
        return stored.access_token


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
        self._host = b""
        self._state = ""
        self._answer: asyncio.Future[AuthorizationCodeResult] = asyncio.get_running_loop().create_future()

    @classmethod
    @asynccontextmanager
    async def listening(cls, port: int) -> AsyncGenerator[Callback]:
        """Listen while the block runs, on loopback only."""
        callback = cls()
        server = await asyncio.start_server(callback._serve, "127.0.0.1", port, limit=MAX_HEAD)
        async with server:
            host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            callback.uri, callback._host = f"http://{host}{PATH}", host.encode()
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
        status = "400 Bad Request"
        try:
            async with asyncio.timeout(SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
            status = self._status(head)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            pass
        body = _PAGE if status.startswith("200") else b"This is not what Moryflow waits for.\n"
        fields = (
            f"HTTP/1.1 {status}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Referrer-Policy: no-referrer",
            "Connection: close",
        )
        with suppress(ConnectionError):
            writer.write("\r\n".join(fields).encode() + b"\r\n\r\n" + body)
            await writer.drain()
        writer.close()

    def _status(self, head: bytes) -> str:
        """Take the answer from the browser's request, if it is one, and return the HTTP status."""
        first, *fields = head.split(b"\r\n")
        words = first.decode("latin-1").split(" ")
        hosts = [field.partition(b":")[2].strip() for field in fields if field.lower().startswith(b"host:")]
        if len(words) != 3 or words[0] != "GET" or hosts != [self._host]:
            return "400 Bad Request"
        parts = urlsplit(words[1])
        given = {name: values[0] for name, values in parse_qs(parts.query).items()}
        mine = secrets.compare_digest(given.get("state", "").encode(), self._state.encode()) and self._state
        if parts.path != PATH or not mine or self._answer.done():
            return "404 Not Found"
        if "code" in given:
            self._answer.set_result(AuthorizationCodeResult(code=given["code"], state=given["state"], iss=given.get("iss")))
        else:
            said = f"{given.get('error', 'no code')} {given.get('error_description', '')}".strip()
            self._answer.set_exception(ServerGone(f"the login was refused: {said[:300]}"))
        return "200 OK"
