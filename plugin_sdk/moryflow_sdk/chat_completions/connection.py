"""One connection to a server: h11 knows HTTP, asyncio carries the bytes.

A pool for many hosts, other protocols and other event loops is not wanted here; what libraries with these add to a start
and to each step would be a tenth of both. Importing this module imports h11.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import h11

from .connection_errors import Broken, ConnectFailed, TimedOut

Headers = Sequence[tuple[bytes, bytes]]

CONNECT_TIMEOUT = 15.0
"""Seconds until a connection must stand, encrypted and through a proxy."""
IDLE = 60.0
"""Seconds after which an unused connection is not used again."""

_PIECE = 64 * 1024
_HEAD_LIMIT = 100 * 1024
_NEXT_ADDRESS = 0.25
"""Seconds after which a name's next address is tried beside the first (RFC 8305)."""


class Place(NamedTuple):
    """Where a connection leads: to the server itself, or to a proxy.

    :param tls: what the certificate of `host` is checked with; ``None`` for a connection that is not encrypted.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None


class Connection:
    """Sends one request after another. Whoever has one uses it alone; what fails in it cannot be used again.

    :param timeout: seconds that a write or a read may take.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout: float) -> None:
        self._reader = reader
        self._writer = writer
        self._timeout = timeout
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_LIMIT)
        self._since = 0.0

    @classmethod
    async def open(cls, place: Place, timeout: float) -> Connection:
        """Connect to the first address of `place` that answers.

        :raises ConnectFailed: none does, or its certificate is not good.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                opened = asyncio.open_connection(
                    place.host, place.port, ssl=place.tls, happy_eyeballs_delay=_NEXT_ADDRESS, limit=_PIECE
                )
                return cls(*await opened, timeout)
        except TimeoutError:
            raise ConnectFailed(f"no answer within {CONNECT_TIMEOUT:g} s") from None
        except OSError as error:
            raise ConnectFailed(str(error)) from error

    async def tunnel(self, to: Place, headers: Headers) -> Connection:
        """Ask the proxy at the other end for a connection to `to`, and return that.

        :raises ConnectFailed: the proxy refuses, or the server's certificate is not good.
        """
        target = f"[{to.host}]:{to.port}" if ":" in to.host else f"{to.host}:{to.port}"
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                answer = await self.request(b"CONNECT", target.encode(), [(b"host", target.encode()), *headers], None)
                if not 200 <= answer.status_code < 300:
                    reason = bytes(answer.reason).decode("latin-1")
                    raise ConnectFailed(f"the proxy answered {answer.status_code} {reason}".strip())
                if to.tls is not None:
                    await self._writer.start_tls(to.tls, server_hostname=to.host)
        except TimeoutError:
            raise ConnectFailed(f"no answer within {CONNECT_TIMEOUT:g} s") from None
        except (OSError, Broken, TimedOut) as error:
            raise ConnectFailed(str(error)) from error
        return Connection(self._reader, self._writer, self._timeout)

    @property
    def is_usable(self) -> bool:
        """Whether another request may be sent: the last one is over, and neither side has closed it since."""
        ended = self._reader.at_eof() or self._reader.exception() is not None or self._writer.is_closing()
        return not ended and time.monotonic() - self._since < IDLE

    async def request(self, method: bytes, target: bytes, headers: Headers, body: bytes | None) -> h11.Response:
        """Send a request in one piece, and return the head of its answer.

        :raises ValueError: it cannot be written.
        :raises TimedOut: the server did not take it, or did not answer, in time.
        :raises Broken: the connection ended, or what came is not HTTP.
        """
        try:
            out = self._protocol.send(h11.Request(method=method, target=target, headers=[*headers])) or b""
            out += (self._protocol.send(h11.Data(data=body)) or b"") if body else b""
            out += self._protocol.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise ValueError(str(error)) from error
        await self._send(out)
        while True:
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise Broken("the connection was closed")

    async def pieces(self) -> AsyncGenerator[bytes]:
        """Yield the body of the answer as it comes.

        :raises TimedOut: nothing came in time.
        :raises Broken: the connection ended before it, or what came is not HTTP.
        """
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)

    def finish(self) -> bool:
        """Make ready for the next request, or close it where the answer has not ended, or more came, or it was the last one."""
        over = self._protocol.our_state is h11.DONE and self._protocol.their_state is h11.DONE
        if over and not self._protocol.trailing_data[0]:
            self._protocol.start_next_cycle()
            self._since = time.monotonic()
            return True
        self.close()
        return False

    def close(self) -> None:
        """Drop it at once; a farewell that TLS would wait for is left out."""
        self._writer.transport.abort()

    async def _send(self, out: bytes) -> None:
        self._writer.write(out)
        if not self._writer.transport.get_write_buffer_size():  # the system has taken it all
            return
        try:
            async with asyncio.timeout(self._timeout):
                await self._writer.drain()
        except TimeoutError:
            raise TimedOut("the request was not taken in time") from None
        except OSError:
            pass  # a server may answer and close before it has read all: what it says is read next

    async def _event(self) -> Any:
        """Return what h11 makes of what has come.

        :raises TimedOut: nothing came in time.
        :raises Broken: the connection ended in the middle, or what came is not HTTP.
        """
        try:
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                async with asyncio.timeout(self._timeout):
                    data = await self._reader.read(_PIECE)
                self._protocol.receive_data(data)
        except TimeoutError:
            raise TimedOut("nothing came in time") from None
        except (OSError, h11.RemoteProtocolError) as error:
            raise Broken(str(error)) from error
        return event
