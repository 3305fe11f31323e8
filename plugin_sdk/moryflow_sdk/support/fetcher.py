"""Fetch from the web: only from public addresses, and from exactly the address that was checked.

For each hop, a name is resolved once, all of its addresses must be public, and the connection goes to one of them. The target
of a redirect is checked like a new URL. No cookies, no keys and no proxy from the environment are used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from ipaddress import IPv4Network, ip_address
from typing import TYPE_CHECKING, Any

from moryflow_sdk.errors import ToolError

from .urls import NotPublic, RefusedUrl, Url, follow, is_local, parse_url, vetted

if TYPE_CHECKING:
    import ssl

    from moryflow_sdk.chat_completions.connection import Connection

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
Connect = Callable[[str, int], Awaitable[Any]]

REDIRECTS = 5
_FAKE_IPS = IPv4Network("198.18.0.0/15")
_STATUS_OF_REDIRECT = frozenset({301, 302, 303, 307, 308})
_HEADERS = (
    (b"user-agent", b"moryflow"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"close"),
)
_PACKED = ("gzip", "x-gzip", "deflate")


@dataclass(frozen=True)
class Fetched:
    """The answer to a fetch.

    :ivar url: the URL of the answer, after all redirects.
    :ivar cut: whether the body was longer than the limit and was cut.
    :ivar leads_to: the target of a redirect that the caller did not want to follow.
    """

    url: Url
    status: int
    headers: dict[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    cut: bool = False
    leads_to: Url | None = None


async def resolve_name(host: str, port: int) -> list[str]:
    """Return every address of a name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


async def connect_to(address: str, port: int) -> Any:
    """Return a connection to an address."""
    from moryflow_sdk.chat_completions.connection import ByteStream

    return await ByteStream.to(address, port)


@dataclass(frozen=True)
class Fetcher:
    """Fetches URLs, within limits.

    :param seconds: for all hops together, from resolving the first name to the last byte.
    :param most: bytes of a body after decompression; the rest is not read.
    :param permitted: returns whether a URL on this machine, or with an unusual port, may be fetched; by default none may.
    :param wanted: returns whether to follow a redirect to a URL; by default all are followed.
    :param behind_fake_ip: whether a proxy answers every name with an address in 198.18.0.0/15, and decides where it leads.
    """

    seconds: float = 30.0
    most: int = 10 * 1024 * 1024
    permitted: Callable[[Url], bool] = lambda _: False
    wanted: Callable[[Url], bool] = lambda _: True
    behind_fake_ip: bool = False
    resolve: Resolve = resolve_name
    connect: Connect = connect_to

    async def fetch(self, address: str) -> Fetched:
        """Fetch `address`.

        :raises ToolError: ``not_public`` if `address` may not be fetched, ``timeout``, or ``failed``.
        """
        try:
            async with asyncio.timeout(self.seconds):
                url = self._permitted_url(lambda: parse_url(address))
                for _ in range(REDIRECTS + 1):
                    got = await self._fetch_hop(url)
                    location = got.headers.get("location")
                    if got.status not in _STATUS_OF_REDIRECT or location is None:
                        return got
                    here, url = url, self._permitted_url(lambda at=url, to=location: follow(at, to))
                    if _origin(url) != _origin(here) and is_local(url):
                        raise ToolError(f"{here} redirects to this machine", code="not_public")
                    if not self.wanted(url):
                        return Fetched(here, got.status, got.headers, leads_to=url)
                raise ToolError(f"{address} redirects more than {REDIRECTS} times")
        except TimeoutError:
            raise ToolError(f"{address} did not answer within {self.seconds:g} s", code="timeout") from None

    def _permitted_url(self, read: Callable[[], Url]) -> Url:
        """Return the URL that `read` returns, or the one that it refuses if :attr:`permitted` allows that."""
        try:
            return read()
        except RefusedUrl as error:
            if error.service is not None and self.permitted(error.service):
                return error.service
            raise ToolError(str(error), code="not_public") from None

    async def _addresses(self, url: Url) -> Sequence[str]:
        if url.address is not None:
            return [str(url.address)]  # checked with the URL
        if is_local(url):
            return ["127.0.0.1", "::1"]  # without asking a resolver
        try:
            answers = await self.resolve(url.host, url.port)
            if self.behind_fake_ip and answers and all(ip_address(answer) in _FAKE_IPS for answer in answers):
                return answers
            return [str(address) for address in vetted(answers)]
        except NotPublic as error:
            raise ToolError(f"{url.host}: {error}", code="not_public") from None
        except (OSError, UnicodeError) as error:
            raise ToolError(f"{url.host} was not found: {error}") from None

    async def _fetch_hop(self, url: Url) -> Fetched:
        from moryflow_sdk.chat_completions.failures import Broken, NotHttp, TimedOut

        connection = await self._open(url)
        try:
            target, host = (url.path + url.query).encode("ascii"), str(url).split("/")[2]
            answer = await connection.request(b"GET", target, [(b"host", host.encode("ascii")), *_HEADERS], None)
            found = {_text(bytes(name)).lower(): _text(bytes(value)) for name, value in answer.headers}
            if answer.status_code in _STATUS_OF_REDIRECT:
                return Fetched(url, answer.status_code, found)
            content, cut = await _body(connection, found.get("content-encoding", ""), self.most)
            return Fetched(url, answer.status_code, found, content, cut)
        except NotHttp as error:
            raise ToolError(f"{url} does not answer as HTTP asks for: {error}") from None
        except (Broken, TimedOut, ValueError) as error:
            raise ToolError(f"the answer of {url} broke off: {error}") from None
        finally:
            connection.close()

    async def _open(self, url: Url) -> Connection:
        """Connect to the first address that answers; TLS checks the certificate against the name."""
        from moryflow_sdk.chat_completions.connection import Connection
        from moryflow_sdk.chat_completions.transport import tls_context

        context: ssl.SSLContext | None = await asyncio.to_thread(tls_context) if url.scheme == "https" else None
        problem: OSError | None = None
        addresses = await self._addresses(url)
        for address in addresses:
            try:
                async with asyncio.timeout(None if address == addresses[-1] else self.seconds / 3):
                    stream = await self.connect(address, url.port)
                    if context is not None:
                        await stream.encrypt(context, url.host)
                return Connection(stream, self.seconds)
            except TimeoutError:
                problem = OSError("no answer")
            except OSError as error:
                problem = error
        raise ToolError(f"{url} cannot be connected to: {problem}")


def _text(value: bytes) -> str:
    """Return a header as text. Many servers send a ``Location`` in UTF-8, and browsers follow it."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _origin(url: Url) -> tuple[str, str, int]:
    return url.scheme, url.host, url.port


async def _body(connection: Connection, encoding: str, most: int) -> tuple[bytes, bool]:
    from moryflow_sdk.chat_completions.failures import Undecodable
    from moryflow_sdk.chat_completions.transport import unpacked

    named = encoding.strip().lower()
    if named not in ("", "identity", *_PACKED):
        raise ToolError(f"the answer is compressed with {named!r:.60}, which was not requested")
    content = bytearray()
    try:
        async with aclosing(unpacked(connection.pieces(), named)) as pieces:
            async for piece in pieces:
                content += piece
                if len(content) > most:
                    return bytes(content[:most]), True
    except Undecodable as error:
        raise ToolError(f"the answer is not compressed as its header says: {error}") from None
    return bytes(content), False
