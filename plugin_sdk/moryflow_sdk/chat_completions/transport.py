"""Send a request to an endpoint and return the start of its answer: lazy imports, proxy, headers, kept connections."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, unquote, urlsplit

from moryflow_sdk.errors import ModelError

from .endpoint import Endpoint
from .failures import Broken, ConnectFailed, NoAnswer, Undecodable

if TYPE_CHECKING:
    import ssl

    import h11

    from .connection import Connection, Headers

_SAFE = "/%:@!$&'()*+,;=~[]"
"""Characters of a path that are not quoted, beside letters and digits; ``%`` keeps what is quoted already."""


class WarmUp:
    """Loads in a thread what the first request needs: the code of asyncio and h11, and for https the TLS context."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._future: Future[ssl.SSLContext | None] | None = None

    def start(self) -> Future[ssl.SSLContext | None]:
        """Start loading, only once; the future is done when everything is loaded."""
        if self._future is None:
            self._future = Future()
            threading.Thread(target=self._work, args=(self._future,), name="moryflow-http", daemon=True).start()
        return self._future

    def _work(self, future: Future[ssl.SSLContext | None]) -> None:
        try:
            importlib.import_module("moryflow_sdk.chat_completions.connection")
            future.set_result(tls_context() if self._endpoint.is_tls else None)
        except BaseException as error:  # callers that wait must get the error, whatever it is
            future.set_exception(error)


def tls_context() -> ssl.SSLContext:
    """Return a context that checks servers against certifi's certificates, or those that ``SSL_CERT_FILE`` names."""
    import ssl

    is_named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")  # OpenSSL reads both by itself
    context = ssl.create_default_context(cafile=None if is_named else importlib.import_module("certifi").where())
    context.set_alpn_protocols(["http/1.1"])
    return context


class HttpResponse:
    """The head of an answer, and its body as it arrives."""

    def __init__(self, wire: HttpClient, connection: Connection, head: h11.Response) -> None:
        self.status: int = head.status_code
        self.headers: dict[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        """The headers, with names in lower case; if a name occurs several times, the last value."""
        self._wire = wire
        self._connection: Connection | None = connection
        self._body = connection.pieces()

    def pieces(self) -> AsyncGenerator[bytes]:
        """Return the body as it arrives, decompressed if the server compresses although it was asked not to. Call this once.

        :raises Undecodable: the body is compressed with a method that is not supported.
        """
        self._body = unpacked(self._body, self.headers.get("content-encoding", ""))
        return self._body

    @property
    def has_ended(self) -> bool:
        """Whether the end of the body has arrived; body data that has not been read yet is discarded."""
        return self._connection is None or self._connection.has_ended

    async def aclose(self) -> None:
        """Give the connection back, or drop it if the answer has not ended."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._body.aclose()
            self._wire.take_back(connection)


class HttpClient:
    """The connections to one endpoint, one of which is kept: no redirects, no cookies, time limits on everything.

    :raises ModelError: the environment names a proxy that cannot be used.
    :raises ValueError: a header contains characters that are not allowed.
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None) -> None:
        self._endpoint = endpoint
        self._context = context
        self._proxy = _proxy(endpoint)
        self._headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in _headers(endpoint).items()]
        if self._proxy is not None and context is None:  # without TLS, the proxy reads the request itself
            self._headers += _authorization(self._proxy, b"proxy-authorization")
        self._idle: Connection | None = None
        self._is_closed = False

    async def send(self, method: str, path: str, body: bytes | None) -> HttpResponse:
        """Send a request and return the answer, whose body is still to come.

        The server may have closed a kept connection at the very moment of its use. If not a single byte of an answer arrives on
        a kept connection, the request is therefore sent once more on a new one.

        :raises ValueError: the request contains characters that are not allowed.
        :raises ConnectFailed, TimedOut, Broken: the request failed.
        """
        length = [] if body is None else [(b"content-length", b"%d" % len(body))]
        request = (method.encode(), self._target(path), [*self._headers, *length], body)
        kept, self._idle = self._idle, None
        if kept is not None and await kept.is_usable():
            with contextlib.suppress(NoAnswer):
                return await self._ask(kept, request)
        elif kept is not None:
            kept.close()
        return await self._ask(await self._open(), request)

    async def _ask(self, connection: Connection, request: tuple[bytes, bytes, Headers, bytes | None]) -> HttpResponse:
        try:
            return HttpResponse(self, connection, await connection.request(*request))
        except BaseException:
            connection.close()
            raise

    def take_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, if it can be used again."""
        if not connection.finish():
            return
        if self._is_closed or self._idle is not None:
            connection.close()
        else:
            self._idle = connection

    async def aclose(self) -> None:
        """Close the kept connection now, and those in use when their answers have ended."""
        self._is_closed = True
        if self._idle is not None:
            self._idle.close()
            self._idle = None

    async def _open(self) -> Connection:
        from .connection import Connection, ServerAddress

        parts = urlsplit(self._endpoint.base_url)
        server = ServerAddress(_host(parts), parts.port or (443 if self._context else 80), self._context)
        if self._proxy is None:
            return await Connection.open(server, self._endpoint.timeout)
        try:
            tls = tls_context() if self._proxy.scheme == "https" else None
            proxy = ServerAddress(_host(self._proxy), self._proxy.port or (443 if tls else 80), tls)
            connection = await Connection.open(proxy, self._endpoint.timeout)
        except ConnectFailed as error:
            raise ConnectFailed(f"the proxy at {_host_header(self._proxy)}: {error}") from None
        if self._context is None:
            return connection
        try:
            return await connection.tunnel(server, _authorization(self._proxy, b"proxy-authorization"))
        except BaseException:
            connection.close()
            raise

    def _target(self, path: str) -> bytes:
        parts = urlsplit(self._endpoint.url(path))
        target = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE + '?')}" if parts.query else "")
        if self._proxy is None or self._context is not None:
            return target.encode()
        return f"http://{_host_header(parts)}{target}".encode()


def _headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers of every request. They ask for no compression: it would delay the stream until a block is full."""
    address = urlsplit(endpoint.base_url)
    headers = {
        "host": _host_header(address),
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "user-agent": "moryflow",
    }
    if address.username:
        headers["authorization"] = _authorization(address, b"authorization")[0][1].decode()
    elif endpoint.key:
        headers["authorization"] = f"Bearer {endpoint.key}"
    own = {name.lower(): value for name, value in endpoint.headers.items()}
    return {**headers, "content-type": "application/json", **own}


def _authorization(address: SplitResult, name: bytes) -> Headers:
    if not address.username:
        return []
    pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return [(name, b"Basic " + b64encode(pair.encode()))]


def _host(address: SplitResult) -> str:
    """Return the host in the form that DNS uses. ASCII names skip the ``idna`` codec, which takes 2 ms to load."""
    host = address.hostname or ""
    return host if host.isascii() else host.encode("idna").decode()


def _host_header(address: SplitResult) -> str:
    host = _host(address)
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{address.port}" if address.port else host


def _proxy(endpoint: Endpoint) -> SplitResult | None:
    """Return the proxy that the environment names for this endpoint; an endpoint on this machine gets none."""
    address = urlsplit(endpoint.base_url)
    if endpoint.is_loopback or not address.hostname:
        return None
    from urllib.request import getproxies, proxy_bypass

    found = getproxies()
    named = found.get(address.scheme.lower()) or found.get("all")
    if not named or proxy_bypass(address.hostname):
        return None
    try:
        parts = urlsplit(named if "://" in named else f"http://{named}")
        if parts.scheme in ("http", "https") and _host(parts) and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise ModelError(
        "the proxy that the environment names cannot be used",
        code="unreachable",
        next_step="set HTTPS_PROXY and HTTP_PROXY to an http:// address, or add the server to NO_PROXY",
    )


MAX_AT_ONCE = 256 * 1024
"""Decompress at most this many bytes at a time: compressed data may expand a thousandfold."""


def unpacked(pieces: AsyncGenerator[bytes], named: str) -> AsyncGenerator[bytes]:
    """Return the decompressed body; closing it also closes `pieces`. `named` is the value of ``content-encoding``.

    :raises Undecodable: the body is compressed with a method that is not supported.
    """
    coding = named.strip().lower()
    if coding in ("", "identity"):
        return pieces
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise Undecodable(coding)
    return _unpack(pieces)


async def _unpack(packed: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Yield the decompressed data, at most :data:`MAX_AT_ONCE` bytes at a time."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, as its header says
    async with contextlib.aclosing(packed) as pieces:
        async for piece in pieces:
            out = b""
            while piece or len(out) == MAX_AT_ONCE:
                try:
                    out = unpacker.decompress(piece, MAX_AT_ONCE)
                except zlib.error as error:
                    raise Undecodable(str(error)) from error
                yield out
                piece = unpacker.unconsumed_tail
    if not unpacker.eof:
        raise Broken("the compressed answer is cut off")
