"""httpx: loaded without its command line, set up in a thread, and its errors in our words."""

from __future__ import annotations

import importlib
import sys
import threading
from base64 import b64encode
from concurrent.futures import Future
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from moryflow_sdk.errors import ModelError, ModelErrorCode
from moryflow_sdk.redact import redact

from .endpoint import Endpoint
from .failures import next_step, plain

if TYPE_CHECKING:
    import ssl

    import httpx

_UNUSED = ("httpx._main", "h2")
_lock = threading.Lock()


def load_httpx() -> Any:
    """Import httpx and httpcore without what is never used here, half of the time: a command line (click, rich) and HTTP/2.

    Both packages import those inside ``try … except ImportError``. ``None`` in ``sys.modules`` is Python's own way to say
    that a module is not there; it is taken back at once, so that whoever asks for ``httpx._main``, or for a client with
    ``http2=True``, later still gets it.
    """
    loaded = sys.modules.get("httpx")
    if loaded is not None and hasattr(loaded, "AsyncClient"):
        return loaded
    with _lock:
        hidden: dict[str, ModuleType | None] = {name: None for name in _UNUSED if name not in sys.modules}
        sys.modules.update(hidden)  # type: ignore[arg-type]
        try:
            importlib.import_module("httpcore")
            return importlib.import_module("httpx")
        finally:
            for name in hidden:
                sys.modules.pop(name, None)


class Preparation:
    """What a first request needs: httpx, its transport, and for https the TLS set-up, made in a thread."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._future: Future[ssl.SSLContext | None] | None = None

    def start(self) -> Future[ssl.SSLContext | None]:
        """Begin, once; the future is done when everything is loaded."""
        if self._future is None:
            self._future = Future()
            threading.Thread(target=self._work, args=(self._future,), name="moryflow-httpx", daemon=True).start()
        return self._future

    def _work(self, future: Future[ssl.SSLContext | None]) -> None:
        try:
            httpx = load_httpx()
            importlib.import_module("httpcore._backends.anyio")
            importlib.import_module("anyio._backends._asyncio")
            future.set_result(httpx.create_ssl_context() if self._endpoint.is_tls else None)
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            future.set_exception(error)


class Wire:
    """The connections to one endpoint, used as httpx's transport: no redirects (R29), no cookies, time limits on everything.

    A client of httpx would do the same work around every request, and a step is short.
    """

    def __init__(self, endpoint: Endpoint, context: ssl.SSLContext | None) -> None:
        loaded = load_httpx()
        self._request: type[httpx.Request] = loaded.Request
        self._url: type[httpx.URL] = loaded.URL
        self._endpoint = endpoint
        self._headers: httpx.Headers = loaded.Headers(_headers(endpoint))
        self._urls: dict[str, httpx.URL] = {}
        self._extensions: dict[str, Any] = {"timeout": loaded.Timeout(endpoint.timeout, connect=15.0, pool=15.0).as_dict()}
        proxy = proxy_for(endpoint)
        try:
            self._transport: httpx.AsyncHTTPTransport = loaded.AsyncHTTPTransport(
                verify=False if context is None else context,
                trust_env=not endpoint.is_loopback,
                limits=loaded.Limits(max_keepalive_connections=4, keepalive_expiry=60),
                proxy=proxy,
            )
        except (ValueError, ImportError, loaded.InvalidURL):
            raise ModelError(
                "the proxy that the environment names cannot be used",
                code="unreachable",
                next_step="set HTTPS_PROXY and HTTP_PROXY to an http:// address, or add the server to NO_PROXY",
            ) from None

    async def send(self, method: str, path: str, body: bytes | None) -> httpx.Response:
        """Send a request and return what begins to come."""
        if path not in self._urls:
            self._urls[path] = self._url(self._endpoint.url(path))
        request = self._request(method, self._urls[path], headers=self._headers, content=body, extensions=self._extensions)
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()


def _headers(endpoint: Endpoint) -> dict[str, str]:
    """Return what every request carries. A compressed stream would be held back until a block is full, so none is asked for."""
    headers = {"accept": "text/event-stream, application/json", "accept-encoding": "identity", "user-agent": "moryflow"}
    address = urlsplit(endpoint.base_url)
    if address.username:
        pair = f"{unquote(address.username)}:{unquote(address.password or '')}"
        headers["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    elif endpoint.key:
        headers["authorization"] = f"Bearer {endpoint.key}"
    own = {name.lower(): value for name, value in endpoint.headers.items()}
    return {**headers, "content-type": "application/json", **own}


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


def connection_error(error: Exception, endpoint: Endpoint, *, answered: bool = False) -> ModelError:
    """Return the error for a connection that failed; `answered`: the head of an answer had come."""
    httpx = load_httpx()
    where = f"{endpoint.label} at {endpoint.shown}"
    code: ModelErrorCode
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        code, message = "unreachable", f"cannot reach {where}: {_reason(error)}"
    elif isinstance(error, httpx.TimeoutException | TimeoutError):
        code, message = "timeout", f"{where} did not answer in time"
    elif isinstance(error, httpx.DecodingError):
        code, message = "protocol", f"{where} sent a compressed answer that cannot be read"
    else:
        code, message = "incomplete" if answered else "unreachable", f"{where} closed the connection without an answer"
    return ModelError(redact(message, endpoint.key), code=code, next_step=next_step(code, endpoint))


def check(endpoint: Endpoint) -> None:
    """Refuse an address or a key that cannot be used, before anything is sent.

    :raises ModelError: it says which, and where it is set; never the key.
    """
    if not endpoint.key.isascii() or not endpoint.key.isprintable() or " " in endpoint.key:
        message = f"the key in {endpoint.key_source} has characters that a key cannot have"
        raise ModelError(message, code="auth", next_step=f"set it again: {endpoint.key_source}")
    try:
        parts = urlsplit(endpoint.base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and endpoint.base_url.isprintable() and " " not in endpoint.base_url
    except ValueError:
        usable = False
    if not usable:
        raise ModelError(
            f"{endpoint.label}: the address in {endpoint.url_source} is not an http:// or https:// address",
            code="bad_request",
            next_step=f"correct the address in {endpoint.url_source}",
        )


def unsendable(endpoint: Endpoint) -> ModelError:
    """Return the error for a request that cannot be written. What is wrong is not quoted: it may be a secret."""
    return ModelError(
        f"{endpoint.label}: the request cannot be sent: its address or one of its headers has characters it cannot have",
        code="bad_request",
        next_step=f"check models.providers.{endpoint.label}.headers and the address in {endpoint.url_source}",
    )


def _reason(error: BaseException) -> str:
    """Return the most telling words of a connection error: those of the last cause that has any."""
    cause: BaseException | None = error
    text = ""
    while cause is not None:
        text = str(cause) or text
        cause = cause.__cause__ or cause.__context__
    return plain(text)[:300] or type(error).__name__
