"""From an endpoint to the start of an answer: imports, proxy, headers, connection."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import stat
import threading
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, quote, unquote, urlsplit

from moryflow_sdk.errors import ModelError

from .failures import ConnectFailed, NoAnswer, Undecodable
from .request import Endpoint

if TYPE_CHECKING:
    import ssl

    import h11

    from .connection import Connection, Headers, ServerAddress

_KEPT = 4
"""Connections that wait for the next request at most."""
_CERTIFICATES = (("SSL_CERT_FILE", "SSL_CERT_DIR"), ("REQUESTS_CA_BUNDLE",), ("CURL_CA_BUNDLE",))
"""Variables that name certificates; the first group that is set counts."""
_SAFE = "/%:@!$&'()*+,;=~[]"
"""What stays as it is in a path, beside letters and digits; what is quoted already among it."""


class WarmUp:
    """What a first request needs: asyncio's and h11's code, and for https the TLS set-up, made in a thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._future: Future[ssl.SSLContext | None] | None = None

    def start(self) -> Future[ssl.SSLContext | None]:
        """Begin, once; the future is done when everything is loaded."""
        if self._future is None:
            self._future = Future()
            threading.Thread(target=self._work, args=(self._future,), name="moryflow-http", daemon=True).start()
        return self._future

    def _work(self, future: Future[ssl.SSLContext | None]) -> None:
        try:
            importlib.import_module("moryflow_sdk.chat_completions.connection")
            future.set_result(tls_context() if self._endpoint.is_tls else None)
        except BaseException as error:  # waiting callers must hear of it, whatever it is
            future.set_exception(error)


def tls_context() -> ssl.SSLContext:
    """Return what certificates are checked with: those that the environment names, else certifi's.

    :raises ModelError: the environment names some that cannot be read.
    """
    named = named_certificates()
    context = _checked_by(named)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _checked_by(named: list[tuple[str, Literal["cafile", "capath"], str]]) -> ssl.SSLContext:
    """Return what certificates are checked with: `named`, or certifi's where there are none."""
    import ssl

    context: ssl.SSLContext | None = None
    for name, kind, path in named:
        file, folder = (path, None) if kind == "cafile" else (None, path)
        try:
            if context is None:
                context = ssl.create_default_context(cafile=file, capath=folder)
            else:
                context.load_verify_locations(file, folder)
        except (OSError, ValueError) as error:  # that of a file without a certificate is an OSError too
            raise _no_certificates(name, path, str(getattr(error, "strerror", None) or error)) from error
    return context or ssl.create_default_context(cafile=importlib.import_module("certifi").where())


def named_certificates() -> list[tuple[str, Literal["cafile", "capath"], str]]:
    """Return the certificates that the environment names: variable, kind and path.

    A folder may be several, as OpenSSL takes them.

    :raises ModelError: there is nothing at a path, or nothing in a folder that is named first.
    """
    found: list[tuple[str, Literal["cafile", "capath"], str]] = []
    for variables in _CERTIFICATES:
        for name in variables:
            if path := os.environ.get(name):
                folders = [part for part in path.split(os.pathsep) if stat.S_ISDIR(_mode(part))]
                if not folders and not _mode(path):
                    raise _no_certificates(name, path, "there is no such file or folder")
                found.append((name, "capath" if folders else "cafile", path))
                if folders and len(found) == 1 and not any(map(_holds_certificates, folders)):
                    raise _no_certificates(name, path, "the folder holds none under the name that OpenSSL looks for")
        if found:
            break
    return found


def _mode(path: str) -> int:
    """Return what kind of thing is at a path; 0 where nothing is, or nothing can be."""
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):
        return 0


def _holds_certificates(folder: str) -> bool:
    """Whether there are certificates in a folder as ``openssl rehash`` leaves them; others are not found there."""
    with contextlib.suppress(OSError):
        return any(re.fullmatch(r"[0-9a-f]{8}\.\d+", item.name) for item in Path(folder).iterdir())
    return False


def _no_certificates(variable: str, path: str, reason: str) -> ModelError:
    return ModelError(
        f"the certificates in {path[:300]}, named by the environment variable {variable}, cannot be read: {reason}",
        code="missing",
        next_step=f"correct {variable}, or unset it",
    )


class HttpResponse:
    """The head of an answer, and its body as it comes."""

    def __init__(self, wire: HttpClient, connection: Connection, head: h11.Response) -> None:
        self.status: int = head.status_code
        self.headers: dict[str, str] = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
        """The header lines; names in lower-case letters, and of several with one name the last."""
        self._wire = wire
        self._connection: Connection | None = connection
        self._body = connection.pieces()

    def pieces(self) -> AsyncGenerator[bytes]:
        """Return the body as it comes, unpacked where a server compresses although it was asked not to; call it once.

        :raises Undecodable: it is compressed in a way that cannot be read.
        """
        self._body = unpacked(self._body, self.headers.get("content-encoding", ""))
        return self._body

    @property
    def has_ended(self) -> bool:
        """Whether the end of the body has come; what may stand before it is thrown away."""
        return self._connection is None or self._connection.has_ended

    async def aclose(self) -> None:
        """Give the connection back, or drop it where the answer has not ended."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await self._body.aclose()
            self._wire.take_back(connection)


class HttpClient:
    """The connections to one endpoint: no redirects, no cookies, time limits on everything.

    :raises ModelError: the environment names a proxy that cannot be used.
    :raises ValueError: a header cannot be written.
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None) -> None:
        self._endpoint = endpoint
        self._context = context
        self._proxy = _proxy(endpoint)
        self._headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in _headers(endpoint).items()]
        if self._proxy is not None and context is None:  # it reads the request itself
            self._headers += _authorization(self._proxy, b"proxy-authorization")
        self._targets: dict[str, bytes] = {}
        self._idle: list[Connection] = []
        self._is_closed = False

    async def send(self, method: str, path: str, body: bytes | None) -> HttpResponse:
        """Send a request and return what begins to come.

        A kept connection may have been closed by the server at the very moment of its use, so a request of which not a single
        byte was answered on one is sent once more, on a new one.

        :raises ValueError: it cannot be written.
        :raises ConnectFailed, TimedOut, Broken: it did not get through.
        """
        target = self._targets.get(path) or self._targets.setdefault(path, self._target(path))
        length = [] if body is None else [(b"content-length", b"%d" % len(body))]
        request = (method.encode(), target, [*self._headers, *length], body)
        kept = self._kept()
        if kept is not None:
            try:
                return await self._ask(kept, request)
            except NoAnswer:
                self._drop_kept()  # they are as old
        return await self._ask(await self._open(), request)

    async def _ask(self, connection: Connection, request: tuple[bytes, bytes, Headers, bytes | None]) -> HttpResponse:
        try:
            return HttpResponse(self, connection, await connection.request(*request))
        except BaseException:
            connection.close()
            raise

    def take_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, if it can be used for one."""
        if self._is_closed:
            connection.close()
        elif connection.finish():
            self._idle.append(connection)
            while len(self._idle) > _KEPT:
                self._idle.pop(0).close()

    async def aclose(self) -> None:
        """Close the connections that wait, and the others when their answers have ended."""
        self._is_closed = True
        self._drop_kept()

    def _drop_kept(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _kept(self) -> Connection | None:
        """Return a connection that can be used at once."""
        while self._idle:
            if (kept := self._idle.pop()).is_usable:
                return kept
            kept.close()
        return None

    async def _open(self) -> Connection:
        from .connection import Connection, ServerAddress

        parts = urlsplit(self._endpoint.base_url)
        server = ServerAddress(_host(parts), parts.port or (443 if self._context else 80), self._context)
        if self._proxy is None:
            return await Connection.open(server, self._endpoint.timeout)
        try:
            connection = await Connection.open(_address_of(self._proxy), self._endpoint.timeout)
        except ConnectFailed as error:
            raise ConnectFailed(f"the proxy at {_shown_host(self._proxy)}: {error}") from None
        if self._context is None:
            return connection
        try:
            return await connection.tunnel(server, _authorization(self._proxy, b"proxy-authorization"))
        except BaseException:
            connection.close()
            raise

    def _target(self, path: str) -> bytes:
        """Return what a request asks for: a path, or the whole address where a proxy has to know it."""
        parts = urlsplit(self._endpoint.url(path))
        target = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE + '?')}" if parts.query else "")
        if self._proxy is None or self._context is not None:
            return target.encode()
        return f"http://{_shown_host(parts)}{target}".encode()


def _headers(endpoint: Endpoint) -> dict[str, str]:
    """Return what every request carries. A compressed stream would be held back until a block is full, so none is asked for."""
    address = urlsplit(endpoint.base_url)
    headers = {
        "host": _shown_host(address),
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
    """Return the header for the name and password in an address, if it has any."""
    if not address.username:
        return []
    pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return [(name, b"Basic " + b64encode(pair.encode()))]


def _host(address: SplitResult) -> str:
    """Return the host as DNS knows it. (The codec takes 2 ms to load.)"""
    host = address.hostname or ""
    return host if host.isascii() else host.encode("idna").decode()


def _shown_host(address: SplitResult) -> str:
    """Return the host, with its port where there is one, as HTTP wants it."""
    host = _host(address)
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{address.port}" if address.port else host


def _address_of(proxy: SplitResult) -> ServerAddress:
    from .connection import ServerAddress

    context = tls_context() if proxy.scheme == "https" else None
    return ServerAddress(_host(proxy), proxy.port or (443 if context else 80), context)


def _proxy(endpoint: Endpoint) -> SplitResult | None:
    """Return the address of the proxy to use.

    :raises ModelError: it cannot be used.
    """
    address = proxy_for(endpoint)
    if address is None:
        return None
    try:
        parts = urlsplit(address)
        if parts.scheme in ("http", "https") and _host(parts) and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise ModelError(
        "the proxy that the environment names cannot be used",
        code="unreachable",
        next_step="set HTTPS_PROXY and HTTP_PROXY to an http:// address, or add the server to NO_PROXY",
    )


def proxy_for(endpoint: Endpoint) -> str | None:
    """Return the proxy that the environment names for this endpoint; none for this machine."""
    address = urlsplit(endpoint.base_url)
    if endpoint.is_loopback or not address.hostname:
        return None
    from urllib.request import getproxies, proxy_bypass

    if proxy_bypass(address.hostname):
        return None
    found = getproxies()
    proxy = found.get(address.scheme.lower()) or found.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"


AT_ONCE = 256 * 1024
"""Bytes that are unpacked at a time: a thousand times as many may be in what came."""
_READ = ("gzip", "x-gzip", "deflate")
_PACKED = (*_READ, "br", "zstd", "compress", "x-compress")


def unpacked(pieces: AsyncGenerator[bytes], named: str) -> AsyncGenerator[bytes]:
    """Return a body as it was before it was packed, which closes `pieces` with itself; `named` is its ``content-encoding``.

    Whatever stands there beside the compressions, a character set or "none", is not a compression.

    :raises Undecodable: it is compressed in a way that cannot be read.
    """
    codings = [coding.strip() for coding in named.lower().split(",") if coding.strip() in _PACKED]
    if not codings:
        return pieces
    if codings[0] not in _READ or codings[1:]:
        raise Undecodable(", ".join(codings))
    return _unpack(pieces, codings[0])


async def _unpack(packed: AsyncGenerator[bytes], coding: str) -> AsyncGenerator[bytes]:
    """Yield what was compressed, at most so much at a time; servers may compress each event by itself."""
    head, unpacker = b"", None
    async with contextlib.aclosing(packed) as pieces:
        async for piece in pieces:
            if unpacker is None:
                head += piece
                if len(head) < 2:
                    continue
                piece, unpacker = head, zlib.decompressobj(_window(head, coding))
            out = b""
            while piece or len(out) == AT_ONCE:
                try:
                    out = unpacker.decompress(piece, AT_ONCE)
                except zlib.error as error:
                    raise Undecodable(str(error)) from error
                yield out
                piece = unpacker.unconsumed_tail
                if unpacker.eof:
                    piece, unpacker = unpacker.unused_data, zlib.decompressobj(_window(b"", coding))


def _window(head: bytes, coding: str) -> int:
    """Return what zlib wants to know: its own header, gzip's, or, as some servers understand "deflate", none."""
    is_bare = bool(head) and coding == "deflate" and head[0] & 15 != 8 and head[:2] != b"\x1f\x8b"
    return -zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32
