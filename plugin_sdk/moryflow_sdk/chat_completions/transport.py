"""httpcore, the engine of httpx: loaded and set up in a thread, and its errors in our words.

What httpx adds around it (redirects, cookies, a client's settings) is not wanted here, and costs a tenth of a step.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import zlib
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from concurrent.futures import Future
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, unquote, urlsplit

from moryflow_sdk.errors import ModelError

from .endpoint import Endpoint

if TYPE_CHECKING:
    import ssl

    import httpcore

_lock = threading.Lock()
_SAFE = "/%:@!$&'()*+,;=~[]"
"""What stays as it is in a path, beside letters and digits; what is quoted already among it."""


def load_httpcore() -> Any:
    """Import httpcore without HTTP/2, which is never used here and a third of its time.

    It imports that inside ``try … except ImportError``. ``None`` in ``sys.modules`` is Python's own way to say that a
    module is not there; it is taken back at once, so that whoever asks for a pool with ``http2=True`` later gets it.
    """
    loaded = sys.modules.get("httpcore")
    if loaded is not None and hasattr(loaded, "AsyncConnectionPool"):
        return loaded
    with _lock:
        hidden = "h2" not in sys.modules
        if hidden:
            sys.modules["h2"] = cast("Any", None)
        try:
            return importlib.import_module("httpcore")
        finally:
            if hidden:
                sys.modules.pop("h2", None)


class Undecodable(Exception):
    """An answer is compressed in a way that cannot be read."""


class Preparation:
    """What a first request needs: httpcore, its locks, and for https the TLS set-up, made in a thread."""

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
            load_httpcore()
            importlib.import_module("moryflow_sdk.chat_completions.network")
            importlib.import_module("anyio._backends._asyncio")  # httpcore's locks
            future.set_result(_tls_context() if self._endpoint.is_tls else None)
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            future.set_exception(error)


def _tls_context() -> ssl.SSLContext:
    """Return what certificates are checked with: those that the environment names, else certifi's."""
    import ssl

    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    if not (file or folder):
        file = importlib.import_module("certifi").where()
    return ssl.create_default_context(cafile=file or None, capath=folder or None)


class Answered:
    """The head of an answer, and its body as it comes."""

    def __init__(self, response: httpcore.Response) -> None:
        self.status: int = response.status
        self._response = response

    @cached_property
    def headers(self) -> dict[str, str]:
        """The header lines; names in small letters, and of several with one name the last."""
        return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self._response.headers}

    def pieces(self) -> AsyncIterator[bytes]:
        """Return the body as it comes, unpacked where a server compresses although it was asked not to.

        :raises Undecodable: it is compressed in a way that cannot be read.
        """
        pieces = aiter(cast("AsyncIterable[bytes]", self._response.stream))
        coding = self.headers.get("content-encoding", "identity").strip().lower()
        if coding in ("identity", ""):
            return pieces
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise Undecodable(coding)
        return _unpacked(pieces)

    async def aclose(self) -> None:
        """Give the connection back, or drop it where the answer has not ended."""
        await self._response.aclose()


async def _unpacked(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
    async for piece in pieces:
        try:
            yield unpacker.decompress(piece)
        except zlib.error as error:
            raise Undecodable(str(error)) from error


class Wire:
    """The connections to one endpoint: no redirects (R29), no cookies, time limits on everything.

    :raises ModelError: the environment names a proxy that cannot be used.
    :raises ValueError: a header cannot be written.
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None) -> None:
        from .network import Network

        self._core = core = load_httpcore()
        self._endpoint = endpoint
        self._headers = [(name.encode("ascii"), value.encode("ascii")) for name, value in _headers(endpoint).items()]
        self._urls: dict[str, httpcore.URL] = {}
        limits = {"connect": 15.0, "pool": 15.0, "read": endpoint.timeout, "write": endpoint.timeout}
        self._extensions: dict[str, Any] = {"timeout": limits}
        self._pool: httpcore.AsyncConnectionPool = core.AsyncConnectionPool(
            ssl_context=context,
            proxy=_proxy(endpoint),
            max_connections=100,
            max_keepalive_connections=4,
            keepalive_expiry=60,
            network_backend=Network(),
        )

    async def send(self, method: str, path: str, body: bytes | None) -> Answered:
        """Send a request and return what begins to come."""
        if path not in self._urls:
            self._urls[path] = self._url(path)
        length = [] if body is None else [(b"content-length", b"%d" % len(body))]
        headers = [*self._headers, *length]
        request = self._core.Request(method, self._urls[path], headers=headers, content=body, extensions=self._extensions)
        return Answered(await self._pool.handle_async_request(request))

    def _url(self, path: str) -> httpcore.URL:
        parts = urlsplit(self._endpoint.url(path))
        target = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE + '?')}" if parts.query else "")
        host = _host(parts.hostname or "")
        return self._core.URL(scheme=parts.scheme, host=host, port=parts.port, target=target)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()


def _headers(endpoint: Endpoint) -> dict[str, str]:
    """Return what every request carries. A compressed stream would be held back until a block is full, so none is asked for."""
    address = urlsplit(endpoint.base_url)
    headers = {
        "host": _host(address.netloc.rpartition("@")[2]),
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "user-agent": "moryflow",
    }
    if address.username:
        pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
        headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    elif endpoint.key:
        headers["authorization"] = f"Bearer {endpoint.key}"
    own = {name.lower(): value for name, value in endpoint.headers.items()}
    return {**headers, "content-type": "application/json", **own}


def _host(place: str) -> str:
    """Return a host, with its port where there is one, as HTTP and DNS want it. (The codec takes 2 ms to load.)"""
    return place.lower() if place.isascii() else place.lower().encode("idna").decode()


def _proxy(endpoint: Endpoint) -> httpcore.Proxy | None:
    """Return the proxy to use.

    :raises ModelError: it cannot be used.
    """
    address = proxy_for(endpoint)
    if address is None:
        return None
    core = load_httpcore()
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") or (parts.scheme in ("socks5", "socks5h") and bool(find_spec("socksio")))
        if usable and parts.hostname:
            bare = core.URL(scheme=parts.scheme, host=parts.hostname, port=parts.port, target="/")
            return core.Proxy(bare, auth=(unquote(parts.username), unquote(parts.password or "")) if parts.username else None)
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
