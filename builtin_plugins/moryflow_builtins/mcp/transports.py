"""How the helper process reaches a server: the SDK's clients, over a program, or over an address that is checked."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

import httpx2
from mcp.client.stdio import StdioServerParameters, stdio_client
from moryflow_sdk.support.processes import CALL_MARK, children
from moryflow_sdk.support.urls import NotPublic, public, vetted

from .helper import servers_mark

MAX_BYTES = 32 * 1024 * 1024
"""The largest HTTP response, in bytes."""
_LAST_WORDS = 20
_POLL_INTERVAL = 0.5


class ServerGone(Exception):
    """The server cannot be reached any more; the message says why."""


class ServerProgram:
    """A server that is a program. The last lines of its standard error are kept, for the message when it ends."""

    _starting = asyncio.Lock()

    def __init__(self, spec: Mapping[str, Any]) -> None:
        mark = servers_mark(os.environ.get(CALL_MARK, "mcp"))
        env = {**spec["env"], CALL_MARK: mark}
        self._parameters = StdioServerParameters(command=spec["command"], args=list(spec["args"]), env=env, cwd=spec["cwd"])
        self._words: deque[str] = deque(maxlen=_LAST_WORDS)
        self._processes: set[int] = set()

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Any]:
        """Start the program and yield the streams of its messages; afterwards the SDK ends it with its process group.

        :raises OSError: the program cannot be started.
        """
        reading, writing = os.pipe()
        lines = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(reading, "rb"))
        listening = asyncio.create_task(self._listen(lines))
        try:
            with os.fdopen(writing, "w") as errors:
                async with self._starting:
                    before = set(children(os.getpid()))
                    client = stdio_client(self._parameters, errlog=errors)
                    streams = await client.__aenter__()
                    self._processes = set(children(os.getpid())) - before
            try:
                yield streams
            finally:
                await client.__aexit__(None, None, None)
        finally:
            listening.cancel()
            pipe.close()

    async def _listen(self, lines: asyncio.StreamReader) -> None:
        while chunk := await lines.read(65536):
            self._words.extend(line[:200] for line in chunk.decode("utf-8", "replace").splitlines()[-_LAST_WORDS:])

    @property
    def ended(self) -> bool:
        """Whether the program has ended, also if a process that it started keeps its standard output open."""
        return bool(self._processes) and self._processes.isdisjoint(children(os.getpid()))

    async def wait(self) -> None:
        """Wait until the program has ended."""
        while not self.ended:  # noqa: ASYNC110
            await asyncio.sleep(_POLL_INTERVAL)

    def last_words(self) -> str:
        """Return the last lines that the program printed on standard error."""
        words = " / ".join(word for word in self._words if word.strip())
        return f"it said: {words[-1500:]}" if words else ""


class JudgedTransport(httpx2.AsyncBaseTransport):
    """Connects to exactly the address that was checked: any address for the configured server, a public one for all others.

    If the configured server is on this machine, the hosts that it names, such as its authorization server, may be too. All
    hosts that are neither on this machine nor the server itself must use https, because keys are sent to them.

    :ivar refused: whether the server required a login.
    :ivar lost: whether the server does not know the session any more.
    :ivar failure: the status of its newest answer to a message, if that was an error; the SDK does not report it.
    """

    def __init__(self, url: str) -> None:
        self._own, self._path = _place(httpx2.URL(url)), httpx2.URL(url).path
        self._local = False
        self.refused = self.lost = False
        self.failure = ""
        self._connections: dict[str, httpx2.AsyncHTTPTransport] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        host = request.url.host
        address = await self._checked_address(request.url)
        inner = self._connections.setdefault(host, httpx2.AsyncHTTPTransport(trust_env=False))
        sent = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers={**request.headers, "accept-encoding": "identity"},
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await inner.handle_async_request(sent)
        if own := (_place(request.url), request.url.path) == (self._own, self._path):
            more = response.status_code == 403 and "insufficient_scope" in response.headers.get("www-authenticate", "")
            self.refused = more or response.status_code == 401
            self.lost = self.lost or (response.status_code == 404 and "mcp-session-id" in request.headers)
        if (packed := response.headers.get("content-encoding", "identity")) != "identity":
            await response.aclose()  # the size of its decompressed body would have no limit
            raise httpx2.ReadError(f"the answer is compressed with {packed[:20]!r}, which was not requested")
        response.stream = _Bounded(response.stream)
        if own and request.method == "POST":
            said = f"HTTP {response.status_code} {httpx2.codes.get_reason_phrase(response.status_code)}".rstrip()
            self.failure = said if response.is_error else ""
        return response

    async def aclose(self) -> None:
        for connection in self._connections.values():
            await connection.aclose()

    async def check(self, url: httpx2.URL) -> None:
        """Check an address that a browser will open.

        :raises httpx2.ConnectError: this transport would refuse to connect to it.
        """
        await self._checked_address(url)

    async def _checked_address(self, url: httpx2.URL) -> str:
        if url.scheme not in ("http", "https") or url.userinfo:
            raise httpx2.ConnectError(
                f"connections to {str(url)[:200]} are refused: it is not an http or https address without a password"
            )
        place = _place(url)
        found = await asyncio.get_running_loop().getaddrinfo(place[1], place[2], type=socket.SOCK_STREAM)
        answers = [str(entry[4][0]) for entry in found]
        if place == self._own:
            if wrong := _unintended_address(url.host, answers):
                raise httpx2.ConnectError(f"{url.host} resolves to {wrong}; connections to it are refused")
            self._local = all(map(_is_loopback, answers))
            return answers[0]
        if self._local and all(map(_is_loopback, answers)):
            return answers[0]
        if url.scheme != "https":
            raise httpx2.ConnectError(f"connections to {str(url)[:200]} are refused: it is not https")
        try:
            return str(vetted(answers)[0])
        except NotPublic as error:
            raise httpx2.ConnectError(f"connections to {str(url)[:200]} are refused: {error}") from error


def _place(url: httpx2.URL) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


_PRIVATE = tuple(map(ip_network, ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")))


def _unintended_address(host: str, answers: Sequence[str]) -> str:
    """Return an address that the author of `host` cannot have meant: neither public nor in a private network.

    Such addresses, in whatever form, are those of this machine or its cloud services.
    """
    if host == "localhost" or host in answers:
        return ""
    found = ((each, ip_address(each)) for each in answers)
    return next((each for each, address in found if not (public(address) or any(address in one for one in _PRIVATE))), "")


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_BYTES
        async for piece in self._inner:
            left -= len(piece)
            if left < 0:
                raise httpx2.ReadError(f"the answer is larger than {MAX_BYTES // 2**20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


def host_of(url: str) -> str:
    """Return the part of the address that belongs to a server's identity: scheme, host and port."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
