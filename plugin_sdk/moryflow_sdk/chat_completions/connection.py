"""One connection to a server: h11 implements HTTP, asyncio's streams transport the bytes.

httpcore would add a pool for many hosts, other protocols and other event loops, which are not needed here; it took a twelfth
of a start. Importing this module imports h11.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import h11

from .failures import Broken, ConnectFailed, NoAnswer, NotHttp, TimedOut

_NEXT_ADDRESS = 0.25
"""Seconds after which the next address of a host name is tried in parallel (RFC 8305)."""
_AT_ONCE = 256 * 1024


class ByteStream:
    """A stream of bytes over TCP, with or without TLS; made by :meth:`to`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, host: str, port: int) -> ByteStream:
        """Connect to the first address of `host` that answers.

        :raises OSError: no address answers.
        """
        return cls(*await asyncio.open_connection(host, port, limit=_AT_ONCE, happy_eyeballs_delay=_NEXT_ADDRESS))

    @classmethod
    async def to_socket(cls, path: str) -> ByteStream:
        """Connect to a Unix socket.

        :raises OSError: nobody listens there.
        """
        return cls(*await asyncio.open_unix_connection(path, limit=_AT_ONCE))

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Switch to TLS. The caller must make sure that nothing arrived before (:meth:`is_quiet`).

        :raises OSError: the certificate is not valid for `host`, or the other side does not speak TLS.
        """
        try:
            await self._writer.start_tls(context, server_hostname=host)
        except AttributeError as error:  # asyncio has no transport any more: the other side has closed it
            raise ConnectionResetError("the connection was closed") from error
        except BaseException:
            self.abort()
            raise

    async def is_quiet(self) -> bool:
        """Whether the other side has sent nothing that was not read, and is still connected as far as is known."""
        for _ in range(2):  # lets the loop see what has arrived
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(0):
                await self._reader.read(1)
        except TimeoutError:
            return True
        except OSError:
            return False
        return False

    async def read(self) -> bytes:
        """Return the received bytes, waiting until there are any; at the end return ``b""``.

        :raises OSError: the connection broke.
        """
        return await self._reader.read(_AT_ONCE)

    def send(self, data: bytes) -> None:
        """Send `data`, as fast as the other side takes it."""
        self._writer.write(data)

    def abort(self) -> None:
        """Drop the connection at once, without TLS's closing handshake, which could block."""
        self._writer.transport.abort()


Headers = Sequence[tuple[bytes, bytes]]

CONNECT_TIMEOUT = 15.0
"""Seconds for setting up a connection, TLS included; through a proxy, the tunnel may take as long again."""
IDLE = 60.0
"""Seconds after which an unused connection is not used again."""

_HEAD_LIMIT = 100 * 1024


class ServerAddress(NamedTuple):
    """The address that a connection leads to: the server itself, or a proxy.

    :param tls: the context that checks the certificate of `host`; ``None`` for a connection without encryption.
    :param unix: the path of a Unix socket, in place of host and port.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    unix: str = ""


class Connection:
    """Sends one request after another. Only one caller may use it at a time; after a failure it cannot be used again.

    :param timeout: seconds for a request and the head of its answer, and for each further piece; ``None`` for no limit.
    """

    def __init__(self, stream: ByteStream, timeout: float | None) -> None:
        self._stream = stream
        self._timeout = timeout
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
        self._is_open = True
        self._heard = False
        self._since = 0.0

    @classmethod
    async def open(cls, place: ServerAddress, timeout: float | None) -> Connection:
        """Connect to the first address of `place` that answers.

        :raises ConnectFailed: no address answers, or the certificate is not valid.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                unix, host, port = place.unix, place.host, place.port
                stream = await (ByteStream.to_socket(unix) if unix else ByteStream.to(host, port))
                if place.tls is not None:
                    await stream.encrypt(place.tls, place.host)
                return cls(stream, timeout)
        except TimeoutError:
            raise ConnectFailed(f"no answer within {CONNECT_TIMEOUT:g} s") from None
        except OSError as error:
            raise ConnectFailed(_words(error)) from None

    async def tunnel(self, to: ServerAddress, headers: Headers) -> Connection:
        """Ask the proxy at the other end for a connection to `to`, and return that connection.

        :raises ConnectFailed: the proxy refuses, or the server's certificate is not valid.
        """
        target = f"[{to.host}]:{to.port}" if ":" in to.host else f"{to.host}:{to.port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                answer = await self.request(b"CONNECT", target.encode(), [(b"host", target.encode()), *headers], None)
                if not 200 <= answer.status_code < 300:
                    reason = bytes(answer.reason).decode("latin-1")
                    raise ConnectFailed(f"the proxy answered {answer.status_code} {reason}".strip())
                if (
                    self._protocol.trailing_data[0] or not await self._stream.is_quiet()
                ):  # would be taken for data that TLS protects
                    raise ConnectFailed("the proxy sent more than its answer")
                if to.tls is not None:
                    await self._stream.encrypt(to.tls, to.host)
        except (TimeoutError, TimedOut):
            raise ConnectFailed("the proxy did not answer in time") from None
        except Broken:  # the answer is not quoted: it may repeat the request with the password
            raise ConnectFailed("the proxy closed the connection, or does not speak HTTP") from None
        except OSError as error:
            raise ConnectFailed(_words(error)) from None
        return Connection(self._stream, self._timeout)

    async def is_usable(self) -> bool:
        """Whether another request may be sent: not idle for too long, still connected, and no data that nobody asked for."""
        return time.monotonic() - self._since < IDLE and await self._stream.is_quiet()

    async def request(self, method: bytes, target: bytes, headers: Headers, body: bytes | None) -> h11.Response:
        """Send a request in one piece, and return the head of its answer.

        :raises ValueError: the request contains characters that are not allowed.
        :raises TimedOut: the server did not answer in time.
        :raises NoAnswer: the connection ended before a single byte of an answer.
        :raises Broken: the connection ended in the middle of the answer, or the answer is not HTTP.
        """
        self._heard = False
        try:
            out = self._protocol.send(h11.Request(method=method, target=target, headers=[*headers])) or b""
            out += (self._protocol.send(h11.Data(data=body)) or b"") if body else b""
            out += self._protocol.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise ValueError(str(error)) from error
        try:
            self._stream.send(out)
            async with asyncio.timeout(self._timeout):
                while not isinstance(event := await self._event(), h11.Response):
                    if not isinstance(event, h11.InformationalResponse):
                        raise Broken("the connection was closed")
                return event
        except TimeoutError:
            raise TimedOut("no answer came in time") from None

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the body of the answer as it arrives.

        :raises TimedOut: nothing arrived in time.
        :raises Broken: the connection ended before the body did, or the answer is not HTTP.
        """
        while True:
            event = self._next()
            if event is h11.NEED_DATA:
                try:
                    async with asyncio.timeout(self._timeout):
                        event = await self._event()
                except TimeoutError:
                    raise TimedOut("nothing came in time") from None
            if not isinstance(event, h11.Data):
                return
            yield bytes(event.data)

    @property
    def has_ended(self) -> bool:
        """Whether the end of the answer has arrived; body data that has not been read yet is discarded."""
        while isinstance(self._next(), h11.Data):
            pass
        return self._protocol.their_state is not h11.SEND_BODY

    def finish(self) -> bool:
        """Prepare for the next request and return true; close the connection if it cannot be used again.

        It cannot if the answer has not ended, if more data followed it, or if the server said that it was the last one.
        """
        is_complete = self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE
        if is_complete and not self._protocol.trailing_data[0]:
            self._protocol.start_next_cycle()
            self._since = time.monotonic()
            return True
        self.close()
        return False

    def close(self) -> None:
        """Drop the connection at once."""
        self._stream.abort()

    async def _event(self) -> Any:
        while (event := self._next()) is h11.NEED_DATA:
            try:
                data = await self._stream.read()
            except OSError as error:
                raise (Broken if self._heard else NoAnswer)(str(error)) from error
            self._is_open = bool(data)
            self._heard = self._heard or self._is_open
            self._protocol.receive_data(data)
        return event

    def _next(self) -> Any:
        try:
            return self._protocol.next_event()
        except h11.RemoteProtocolError as error:
            if not self._is_open and not self._heard:
                raise NoAnswer("the server closed the connection without an answer") from error
            raise (NotHttp if self._is_open else Broken)(str(error)) from error


def _words(error: OSError) -> str:
    return str(error) or "the connection was closed"
