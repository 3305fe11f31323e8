"""Send a request to an endpoint and return the start of its answer: lazy imports, proxy, headers, kept connections."""

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

from .endpoint import Endpoint
from .failures import Broken, ConnectFailed, NoAnswer, Undecodable

if TYPE_CHECKING:
    import ssl

    import h11

    from .connection import Connection, Headers, ServerAddress

_KEPT = 4
"""At most this many connections are kept for the next request."""
_CERTIFICATES = (("SSL_CERT_FILE", "SSL_CERT_DIR"), ("REQUESTS_CA_BUNDLE",), ("CURL_CA_BUNDLE",))
"""Environment variables that name certificates; the first group in which one is set counts."""
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
    """Return a context that checks servers against the certificates that the environment names, by default certifi's.

    :raises ModelError: the environment names certificates that cannot be read.
    """
    import ssl

    context: ssl.SSLContext | None = None
    for name, kind, path in named_certificates():
        file, folder = (path, None) if kind == "cafile" else (None, path)
        try:
            if context is None:
                context = ssl.create_default_context(cafile=file, capath=folder)
            else:
                context.load_verify_locations(file, folder)
        except (OSError, ValueError) as error:  # the ssl.SSLError for a file without a certificate is an OSError too
            raise _no_certificates(name, path, str(getattr(error, "strerror", None) or error)) from error
    if context is None:
        context = ssl.create_default_context(cafile=importlib.import_module("certifi").where())
    context.set_alpn_protocols(["http/1.1"])
    return context


def named_certificates() -> list[tuple[str, Literal["cafile", "capath"], str]]:
    """Return the certificates that the environment names: variable, kind and path.

    The path of a folder may be several folders, separated as OpenSSL accepts them.

    :raises ModelError: nothing exists at a path, or the first variable names folders without certificates.
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
    """Return the ``st_mode`` of a path, or 0 if nothing exists there or the path is not valid."""
    try:
        return Path(path).stat().st_mode
    except (OSError, ValueError):
        return 0


def _holds_certificates(folder: str) -> bool:
    """Whether a folder has certificates under the names that ``openssl rehash`` gives them; OpenSSL finds no others."""
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
    """The connections to one endpoint: no redirects, no cookies, time limits on everything.

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
        self._targets: dict[str, bytes] = {}
        self._idle: list[Connection] = []
        self._is_closed = False

    async def send(self, method: str, path: str, body: bytes | None) -> HttpResponse:
        """Send a request and return the answer, whose body is still to come.

        The server may have closed a kept connection at the very moment of its use. If not a single byte of an answer arrives on
        a kept connection, the request is therefore sent once more on a new one.

        :raises ValueError: the request contains characters that are not allowed.
        :raises ConnectFailed, TimedOut, Broken: the request failed.
        """
        target = self._targets.get(path) or self._targets.setdefault(path, self._target(path))
        length = [] if body is None else [(b"content-length", b"%d" % len(body))]
        request = (method.encode(), target, [*self._headers, *length], body)
        kept = self._usable_idle()
        if kept is not None:
            try:
                return await self._ask(kept, request)
            except NoAnswer:
                self._close_idle()  # the others are just as old
        return await self._ask(await self._open(), request)

    async def _ask(self, connection: Connection, request: tuple[bytes, bytes, Headers, bytes | None]) -> HttpResponse:
        try:
            return HttpResponse(self, connection, await connection.request(*request))
        except BaseException:
            connection.close()
            raise

    def take_back(self, connection: Connection) -> None:
        """Keep a connection for the next request, if it can be used again."""
        if self._is_closed:
            connection.close()
        elif connection.finish():
            self._idle.append(connection)
            while len(self._idle) > _KEPT:
                self._idle.pop(0).close()

    async def aclose(self) -> None:
        """Close the kept connections now, and those in use when their answers have ended."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _usable_idle(self) -> Connection | None:
        """Return a kept connection that can be used at once, or ``None``."""
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
            raise ConnectFailed(f"the proxy at {_host_header(self._proxy)}: {error}") from None
        if self._context is None:
            return connection
        try:
            return await connection.tunnel(server, _authorization(self._proxy, b"proxy-authorization"))
        except BaseException:
            connection.close()
            raise

    def _target(self, path: str) -> bytes:
        """Return the target for the request line: a path, or the whole address if a proxy needs it."""
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
    """Return the header `name` with the user name and password of an address, or nothing if it has none."""
    if not address.username:
        return []
    pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
    return [(name, b"Basic " + b64encode(pair.encode()))]


def _host(address: SplitResult) -> str:
    """Return the host in the form that DNS uses. ASCII names skip the ``idna`` codec, which takes 2 ms to load."""
    host = address.hostname or ""
    return host if host.isascii() else host.encode("idna").decode()


def _host_header(address: SplitResult) -> str:
    """Return the host and the port, if any, in the form of an HTTP header."""
    host = _host(address)
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{address.port}" if address.port else host


def _address_of(proxy: SplitResult) -> ServerAddress:
    from .connection import ServerAddress

    context = tls_context() if proxy.scheme == "https" else None
    return ServerAddress(_host(proxy), proxy.port or (443 if context else 80), context)


def _proxy(endpoint: Endpoint) -> SplitResult | None:
    """Return the address of the proxy to use, or ``None``.

    :raises ModelError: the environment names a proxy that cannot be used.
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
    """Return the proxy that the environment names for this endpoint; an endpoint on this machine gets none."""
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
"""Decompress at most this many bytes at a time: compressed data may expand a thousandfold."""
_READ = ("gzip", "x-gzip", "deflate")
_PACKED = (*_READ, "br", "zstd", "compress", "x-compress")


def unpacked(pieces: AsyncGenerator[bytes], named: str) -> AsyncGenerator[bytes]:
    """Return the decompressed body; closing it also closes `pieces`. `named` is the value of ``content-encoding``.

    Other words in that header, such as a character set or "none", are ignored.

    :raises Undecodable: the body is compressed with a method that is not supported.
    """
    codings = [coding.strip() for coding in named.lower().split(",") if coding.strip() in _PACKED]
    if not codings:
        return pieces
    if codings[0] not in _READ or codings[1:]:
        raise Undecodable(", ".join(codings))
    return _unpack(pieces, codings[0])


async def _unpack(packed: AsyncGenerator[bytes], coding: str) -> AsyncGenerator[bytes]:
    """Yield the decompressed data, at most :data:`AT_ONCE` bytes at a time. Some servers compress each event by itself.

    :raises Broken: the body ends within its compressed data, as one does that only a closed connection ends.
    """
    head, unpacker, is_whole = b"", None, True
    async with contextlib.aclosing(packed) as pieces:
        async for piece in pieces:
            if unpacker is None:
                head += piece
                is_whole = not head
                if len(head) < 2:
                    continue
                piece, unpacker = head, zlib.decompressobj(_window(head, coding))
            out = b""
            while piece or len(out) == AT_ONCE:
                is_whole = is_whole and not piece
                try:
                    out = unpacker.decompress(piece, AT_ONCE)
                except zlib.error as error:
                    raise Undecodable(str(error)) from error
                yield out
                piece = unpacker.unconsumed_tail
                if unpacker.eof:
                    is_whole = True
                    piece, unpacker = unpacker.unused_data, zlib.decompressobj(_window(b"", coding))
    if not is_whole:
        raise Broken("the compressed answer is cut off")


def _window(head: bytes, coding: str) -> int:
    """Return zlib's ``wbits``: for a zlib or gzip header, or for none, which is what some servers mean by "deflate"."""
    is_bare = bool(head) and coding == "deflate" and head[0] & 15 != 8 and head[:2] != b"\x1f\x8b"
    return -zlib.MAX_WBITS if is_bare else zlib.MAX_WBITS | 32
