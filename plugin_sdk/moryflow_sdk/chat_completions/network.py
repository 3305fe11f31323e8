"""httpcore's sockets, on asyncio's own streams: one layer less around every byte than with anyio.

Importing this module imports httpcore.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Generator, Iterable
from typing import Any

import httpcore

_BUFFER = 256 * 1024
"""Bytes that may wait to be read before the server has to wait."""
_HAPPY_EYEBALLS = 0.25
"""Seconds after which a name's next address is tried beside the first (RFC 8305)."""


class Stream(httpcore.AsyncNetworkStream):
    """A connection. The head of a request waits for its body, so that both leave in one packet."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._head = b""
        self._is_head = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has come, nothing at the end; a head without a body is sent first.

        :raises httpcore.ReadTimeout: nothing came in time.
        :raises httpcore.ReadError: the connection broke.
        """
        with _as(httpcore.ReadTimeout, httpcore.ReadError):
            async with asyncio.timeout(timeout):
                if self._head:
                    await self._send(b"")
                self._is_head = True
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send `buffer`, or keep it for the next call where it begins a request.

        :raises httpcore.WriteTimeout: the server did not take it in time.
        :raises httpcore.WriteError: the connection broke.
        """
        if self._is_head:
            self._head, self._is_head = buffer, False
        elif buffer:
            with _as(httpcore.WriteTimeout, httpcore.WriteError):
                async with asyncio.timeout(timeout):
                    await self._send(buffer)

    async def _send(self, buffer: bytes) -> None:
        head, self._head = self._head, b""
        self._writer.write(head + buffer)
        await self._writer.drain()

    async def aclose(self) -> None:
        """Drop the connection; a farewell that TLS would wait for is left out."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Encrypt the connection from here on.

        :raises httpcore.ConnectTimeout: the handshake took too long.
        :raises httpcore.ConnectError: the handshake or the certificate failed.
        """
        try:
            with _as(httpcore.ConnectTimeout, httpcore.ConnectError):
                async with asyncio.timeout(timeout):
                    await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            self._writer.transport.abort()
            raise
        return self

    def get_extra_info(self, info: str) -> Any:
        """Tell httpcore whether an idle connection has ended, and what TLS agreed on."""
        if info == "is_readable":
            return self._reader.at_eof() or self._reader.exception() is not None
        return self._writer.get_extra_info(info)


class Network(httpcore.AsyncNetworkBackend):
    """Opens connections for httpcore."""

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of `host` that answers.

        :raises httpcore.ConnectTimeout: none answered in time.
        :raises httpcore.ConnectError: none can be reached.
        """
        with _as(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                opened = asyncio.open_connection(host, port, limit=_BUFFER, happy_eyeballs_delay=_HAPPY_EYEBALLS)
                return Stream(*await opened)

    async def sleep(self, seconds: float) -> None:
        """Wait, between two tries to connect."""
        await asyncio.sleep(seconds)


@contextlib.contextmanager
def _as(late: type[Exception], broken: type[Exception]) -> Generator[None]:
    """Give errors of asyncio the names that httpcore has for them. (asyncio's time limit is an :class:`OSError` too.)"""
    try:
        yield
    except TimeoutError as error:
        raise late(error) from error
    except OSError as error:
        raise broken(error) from error
