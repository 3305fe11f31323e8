"""The bytes of one connection, over asyncio's transports: received and not yet read, written and not yet sent.

asyncio's own streams do not tell whether something waits to be read. Before a connection is used again, and before it is
encrypted, that has to be known: whatever came unasked would be read as the next answer, or as what TLS protects.
"""

from __future__ import annotations

import asyncio
import select
import ssl

_NEXT_ADDRESS = 0.25
"""Seconds after which a name's next address is tried beside the first (RFC 8305)."""
_MOST = 256 * 1024
"""Bytes that may wait to be read before the other side has to wait."""
_LOOK = 0.02
"""Seconds between two looks at what is still to be taken; of what waits below TLS, asyncio tells nobody."""


class ByteStream(asyncio.Protocol):
    """A connection; made by :meth:`to`."""

    def __init__(self) -> None:
        self._came = bytearray()
        self._ended = False
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._is_held_up = False
        self._socket: asyncio.Transport  # the lowest one, which knows what the system has taken
        self._transport: asyncio.Transport

    @classmethod
    async def to(cls, host: str, port: int) -> ByteStream:
        """Connect to the first address of `host` that answers.

        :raises OSError: none does.
        """
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(cls, host, port, happy_eyeballs_delay=_NEXT_ADDRESS)
        return stream

    async def encrypt(self, context: ssl.SSLContext, host: str) -> None:
        """Go on with TLS. Nothing may have come before (:attr:`has_more`).

        :raises OSError: the certificate is not good for `host`, or the other side does not speak TLS.
        """
        try:
            loop = asyncio.get_running_loop()
            transport = await loop.start_tls(self._transport, self, context, server_hostname=host)
        except BaseException:
            self.abort()
            raise
        if transport is None:
            raise ConnectionResetError("the connection was closed")
        self._transport = transport

    @property
    def has_more(self) -> bool:
        """Whether there are received bytes that were not read."""
        return bool(self._came)

    @property
    def is_quiet(self) -> bool:
        """Whether all was taken, and the other side has said and closed nothing, also not since the loop looked last."""
        if self._came or self._ended or self._transport.is_closing() or self._socket.get_write_buffer_size():
            return False
        look = select.poll()
        look.register(self._socket.get_extra_info("socket").fileno(), select.POLLIN)
        return not look.poll(0)

    async def read(self) -> bytes:
        """Return what has come, waiting for something; nothing at the end.

        :raises OSError: the connection broke.
        """
        if not self._came and not self._ended:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        if self._came:
            came, self._came = self._came, bytearray()
            if self._is_held_up:
                self._is_held_up = False
                self._transport.resume_reading()
            return bytes(came)
        if self._error is not None:
            raise self._error
        return b""

    async def send(self, data: bytes) -> None:
        """Send `data` and return once the system has taken it, or the other side has answered or gone already."""
        self._transport.write(data)
        while self._socket.get_write_buffer_size() and not self._came and not self._ended:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)

    def abort(self) -> None:
        """Drop the connection at once; a farewell that TLS would wait for is left out."""
        self._transport.abort()

    # ------------------------------------------------------------ called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._came += data
        if len(self._came) > _MOST and not self._is_held_up:
            self._is_held_up = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        self._ended, self._error = True, self._error or error
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
